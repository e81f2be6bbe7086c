# fastformer.c
#
#   make run                 build, train a small model on the embedded corpus, print a sample
#   make test                build and run every test
#   make train_fastformer    the trainer
#   make train_gpt2          GPT-2, on the same loop
#   make tokenize            text -> tokens
#   make train_fastformercu  the trainers on the GPU, with CUDA; also train_gpt2cu, test_fastformercu, test_gpt2cu
#   make kurtosis            moments of the tensors of a checkpoint
#   make data/wikitext2      a data set (also data/tinyshakespeare)
#   make lint format         clang-format, clang-tidy, cppcheck
#   make clean
#
# What is optional is detected; say ONEDNN=0 or OPENMP=0 to build without it, ONEDNN_ROOT=DIR for a oneDNN that is
# not where the compiler looks, CUDA=DIR for CUDA in another place, CUDA_ARCHS="80 90" for other GPUs, SANITIZE=1 for
# AddressSanitizer and UBSan, WERROR=1 to make warnings errors, V=1 to see the commands.

CC ?= cc
ARCH ?= native
BUILD ?= build
VERSION := 0.1.0
Q := $(if $(V),,@)

# ---- what is there -------------------------------------------------------------------------------------------------
H := \#
compiles = $(shell printf '%s\n' $(1) | $(CC) -x c - $(2) -o /dev/null >/dev/null 2>&1 && echo 1)

ONEDNN_FLAGS := $(if $(ONEDNN_ROOT),-I$(ONEDNN_ROOT)/include)
ONEDNN_LIBS := $(if $(ONEDNN_ROOT),-L$(ONEDNN_ROOT)/lib -Wl$(,)-rpath$(,)$(ONEDNN_ROOT)/lib) -ldnnl
, := ,
ONEDNN ?= $(call compiles,'$(H)include <dnnl.h>' 'int main(void) { return !dnnl_version(); }',$(ONEDNN_FLAGS) $(ONEDNN_LIBS))
OPENMP ?= $(call compiles,'$(H)include <omp.h>' 'int main(void) { return !omp_get_max_threads(); }',-fopenmp)

# A C++ compiler runs the CUDA sources on the CPU, for tests.
CPLUSPLUS ?= $(shell printf '$(H)include <tuple>\nint main() { return 0; }\n' | $(CXX) -std=c++17 -x c++ - -o /dev/null >/dev/null 2>&1 && echo 1)
CUDA ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc)))
CUDA_ARCHS ?= 80 90 100

USE_CPLUSPLUS := $(filter 1,$(CPLUSPLUS))
USE_ONEDNN := $(filter 1,$(ONEDNN))
USE_OPENMP := $(filter 1,$(OPENMP))

# ---- flags ---------------------------------------------------------------------------------------------------------
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
# Kernels may fuse multiply and add and ignore floating-point traps and errno; they may not reorder sums, so results
# are those of the source.
OPTIMISE := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
SANITIZERS := $(if $(filter 1,$(SANITIZE)),-fsanitize=address$(,)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -Wno-pass-failed)
CPPFLAGS += -D_GNU_SOURCE -DFLOAT_BUILD='"$(FLOAT)"' -DVERSION='"$(VERSION)"' -I. -Idev/trainer -Idev/text -Idev/tasks -Idev/cpu -Idev/fastformer -Idev/gpt2 -Idev/test -MMD -MP
CFLAGS_ALL := -std=c17 -g $(OPTIMISE) -march=$(ARCH) $(WARNINGS) $(if $(USE_OPENMP),-fopenmp,-fopenmp-simd -Wno-unknown-pragmas) $(SANITIZERS) $(CFLAGS)
LDLIBS_ALL := $(LDLIBS) -lm

INCLUDES_CUDA := -D_GNU_SOURCE -Drestrict=__restrict__ -I. -Idev/cuda -Idev/trainer -Idev/text -Idev/tasks -Idev/cpu -Idev/fastformer -Idev/gpt2 -Idev/test -MMD -MP
EMULATE := -std=c++17 -g1 -O1 -x c++ -DCUDA_ON_CPU -Wall -Wextra -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror) $(if $(USE_OPENMP),-fopenmp) $(SANITIZERS)
# Code for each architecture, and PTX of the last one for later GPUs.
NVCC_FLAGS := -std=c++17 -O3 --threads 0 -Xcompiler -Wall$(,)-Wextra $(if $(filter 1,$(WERROR)),-Werror all-warnings) $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(,)code=sm_$(a)) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS))$(,)code=compute_$(lastword $(CUDA_ARCHS))

SUFFIX := $(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(USE_OPENMP),,-serial)
# Two builds of everything: `real` is float in one (with oneDNN), double in the other (for gradient checks).
FLOAT := $(BUILD)/float$(SUFFIX)$(if $(USE_ONEDNN),-onednn)
DOUBLE := $(BUILD)/double$(SUFFIX)
FLAGS_FLOAT := $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS))
FLAGS_DOUBLE := -DREAL_IS_DOUBLE
LIBS_FLOAT := $(if $(USE_ONEDNN),$(ONEDNN_LIBS))

# ---- files ---------------------------------------------------------------------------------------------------------
TRAINERS := train_fastformer train_gpt2
TRAINER_TESTS := $(TRAINERS:train_%=test_%)
# Programs on the GPU, X.cu as Xcu. Each links the CPU's model of the same name.
CUDA_TRAINERS := $(TRAINERS:%=%cu)
CUDA_TESTS := $(patsubst %.cu,%cu,$(notdir $(wildcard dev/*/test_*.cu)))
vpath %.c dev/gpt2 dev/tools # where programs lie, beside the top directory
vpath %.cu dev/fastformer dev/gpt2 dev/cuda
SHARED := $(wildcard dev/trainer/*.c dev/tasks/*.c dev/text/*.c dev/cpu/*.c)
MODEL_TEST := dev/test/model_test.o dev/test/model_reference.o dev/test/test.o
TESTS := $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/*.c))
CORPUS := $(sort $(wildcard Makefile *.md data/*.md *.c *.cu dev/*.md dev/*/*.md dev/*/*.[ch] dev/*/*.cu dev/*/*.cuh data/*.sh scripts/*.sh))
# Tests that check derivatives and exact algebra run in double as well.
DOUBLE_TESTS := test_layers test_gemm test_decode test_classifier test_attention

PROGRAMS := $(TRAINERS) tokenize kurtosis
.PHONY: $(PROGRAMS) $(TRAINER_TESTS) $(CUDA_TRAINERS) $(CUDA_TESTS) all run test lint format clean detected bench data/wikitext2 data/tinyshakespeare
.SECONDARY:
all: $(PROGRAMS)

link_FLOAT = @mkdir -p $(@D); echo '  LINK  $@'; $(if $(Q),,set -x;) $(CC) $(CFLAGS_ALL) $^ -o $@ $(LIBS_FLOAT) $(LDLIBS_ALL)
link_DOUBLE = @mkdir -p $(@D); echo '  LINK  $@'; $(if $(Q),,set -x;) $(CC) $(CFLAGS_ALL) $^ -o $@ $(LDLIBS_ALL)

define variant # $(1) directory, $(2) FLOAT or DOUBLE
$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	@echo '  CC    $$@'
	$$(Q)$$(CC) $$(CPPFLAGS) $$(FLAGS_$(2)) $$(CFLAGS_ALL) -c $$< -o $$@
$(1)/dev/trainer/corpus.o: build/corpus.txt
$(1)/lib.a: $(SHARED:%.c=$(1)/%.o)
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^
$(TRAINER_TESTS:%=$(1)/bin/%): $(1)/bin/%: $(1)/%.o $(MODEL_TEST:%=$(1)/%) $(1)/lib.a
	$$(link_$(2))
$(1)/bin/%: $(1)/%.o $(1)/lib.a
	$$(link_$(2))
$(1)/test/%: $(1)/dev/test/%.o $(1)/dev/test/test.o $(1)/lib.a
	$$(link_$(2))
$(1)/bench/%: $(1)/dev/bench/%.o $(1)/lib.a
	$$(link_$(2))
-include $$(wildcard $(1)/*.d $(1)/dev/*/*.d)
endef
$(eval $(call variant,$(FLOAT),FLOAT))
$(eval $(call variant,$(DOUBLE),DOUBLE))

# ---- CUDA: by nvcc, and emulated on the CPU for tests -----------------------------------------------------------------
define cuda_variant # $(1) directory, $(2) how a .cu file is compiled, $(3) libraries
$(1)/%.o: %.cu Makefile
	@mkdir -p $$(@D)
	@echo '  CUDA  $$@'
	$$(Q)$(2) $$(INCLUDES_CUDA) -c $$< -o $$@
$(1)/bin/%cu: $(1)/%.o $(FLOAT)/lib.a
	@mkdir -p $$(@D); echo '  LINK  $$@'
	$$(Q)$$(CXX) $(if $(USE_OPENMP),-fopenmp) $$(SANITIZERS) $$(filter-out %.a,$$^) $(FLOAT)/lib.a -o $$@ $$(LIBS_FLOAT) $(3) $$(LDLIBS_ALL)
$(CUDA_TESTS:%=$(1)/bin/%): $(MODEL_TEST:%=$(FLOAT)/%)
$(1)/bin/train_fastformercu $(1)/bin/test_fastformercu: $(FLOAT)/host/train_fastformer.o
$(1)/bin/train_gpt2cu $(1)/bin/test_gpt2cu: $(FLOAT)/host/train_gpt2.o
-include $$(wildcard $(1)/*.d)
endef
$(eval $(call cuda_variant,$(FLOAT)/cuda,$(CUDA)/bin/nvcc $(NVCC_FLAGS),-L$(CUDA)/lib64 -Wl$(,)-rpath$(,)$(CUDA)/lib64 -lcublasLt -lcudart_static -lpthread -ldl -lrt))
$(eval $(call cuda_variant,$(FLOAT)/emulated,$(CXX) $(EMULATE)))

# A CPU model without its main.
$(FLOAT)/host/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC    $@'
	$(Q)$(CC) $(CPPFLAGS) -DTESTING $(FLAGS_FLOAT) $(CFLAGS_ALL) -c $< -o $@
-include $(wildcard $(FLOAT)/host/*.d)

ifeq ($(CUDA),)
$(CUDA_TRAINERS) $(CUDA_TESTS):
	@echo "$@ needs CUDA: install the CUDA toolkit 12.8 or newer with cuBLAS (nvcc was not found; say CUDA=DIR where it is)" >&2; exit 1
else
$(CUDA_TRAINERS) $(CUDA_TESTS): %: $(FLOAT)/cuda/bin/% | detected
	@cmp -s $< $@ || cp -f $< $@
endif

# The embedded default corpus: the project's own source and documentation.
build/corpus.txt: $(CORPUS)
	@mkdir -p $(@D)
	@cat $(CORPUS) > $@

detected:
	@echo "compiler $(CC), $(if $(USE_OPENMP),OpenMP,no OpenMP: one thread), $(if $(USE_ONEDNN),oneDNN,no oneDNN: built-in float32 GEMM (install libdnnl-dev for bf16))$(if $(CUDA),$(,) CUDA in $(CUDA),$(,) no CUDA)$(if $(USE_CPLUSPLUS),,$(,) no C++ compiler: tests of the CUDA sources are skipped)"

# Programs at the top are copies of the build that was asked for last, so they are looked at every time.
$(PROGRAMS): %: $(FLOAT)/bin/% | detected
	@cmp -s $< $@ || cp -f $< $@

# The double build; it runs the float one for -p float and -p bf16.
$(TRAINER_TESTS): %: $(DOUBLE)/bin/% $(FLOAT)/bin/%
	@cmp -s $< $@ || cp -f $< $@

TEST_PROGRAMS := $(TESTS:%=$(FLOAT)/test/%) $(DOUBLE_TESTS:%=$(DOUBLE)/test/%) \
                 $(foreach test,$(TRAINER_TESTS),$(FLOAT)/bin/$(test) $(DOUBLE)/bin/$(test)) \
                 $(if $(USE_CPLUSPLUS),$(CUDA_TESTS:%=$(FLOAT)/emulated/bin/%))
test: detected $(TEST_PROGRAMS) $(PROGRAMS:%=$(FLOAT)/bin/%)
	@TRAINER=$(FLOAT)/bin/train_fastformer TOKENIZE=$(FLOAT)/bin/tokenize dev/test/run.sh $(TEST_PROGRAMS) dev/test/test_trainer.sh dev/test/test_runs.sh

# Less than a minute of training on the project's own source, and what the model makes of it.
run: train_fastformer
	./train_fastformer -o runs/first -y -L 4 -C 128 -H 4 -b 8 -t 256 -x 700 -l 3e-3 -u 50 -k cosine -v 100
	./train_fastformer -e runs/first/best.safetensors --prompt "static void " -g 400 --temperature 0.7

data/wikitext2 data/tinyshakespeare: data/%: tokenize
	sh data/$*.sh

bench: $(BENCHES:%=$(FLOAT)/bench/%)

lint:
	clang-format --dry-run -Werror $(filter %.c %.h %.cu %.cuh,$(CORPUS))
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr --suppressions-list=.cppcheck -j 2 -D_GNU_SOURCE -DVERSION='""' -DFLOAT_BUILD='""' -I. -Idev/trainer -Idev/text -Idev/tasks -Idev/cpu -Idev/fastformer -Idev/gpt2 -Idev/test $(filter %.c,$(CORPUS))
	printf '%s\n' $(filter %.c,$(CORPUS)) | xargs -P 4 -I FILE clang-tidy --quiet FILE -- $(CPPFLAGS) $(FLAGS_FLOAT) -std=c17

format:
	clang-format -i $(filter %.c %.h %.cu %.cuh,$(CORPUS))

clean:
	rm -rf build $(PROGRAMS) $(TRAINER_TESTS) $(CUDA_TRAINERS) $(CUDA_TESTS)
