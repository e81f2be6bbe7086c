# fastformer.c
#
#   make run                 build, train a small model on the embedded corpus, print a sample
#   make test                build and run every test
#   make train_fastformer    the trainer
#   make train_gpt2          GPT-2, on the same loop
#   make tokenize            text -> tokens
#   make train_fastformercu  the trainers on the GPU, with CUDA; also train_gpt2cu, train_bertcu and train_translatecu
#   make kurtosis            moments of the tensors of a checkpoint
#   make data/wikitext2      a data set (also data/tinyshakespeare, data/multi30k)
#   make lint format         clang-format, clang-tidy, cppcheck
#   make install uninstall   the programs in PREFIX/bin (PREFIX=/usr/local, DESTDIR= before it)
#   make clean
#
# What is optional is detected; say ONEDNN=0, OPENMP=0, MPI=0 or NCCL=0 to build without it, ONEDNN_ROOT=DIR for a
# oneDNN that is not where the compiler looks, NCCL_ROOT=DIR for NCCL that is not beside the CUDA toolkit, CUDA=DIR
# for CUDA in another place, CUDA_ARCHS="80 90" for other GPUs, SANITIZE=1 for AddressSanitizer and UBSan, QUICK=1 for fewer of the
# tests with whole models, lint that follows fewer paths, and slower CUDA programs that are built sooner, WERROR=1 to
# make warnings errors, V=1 to see the commands. CC, CXX, CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the user's, ARCH is
# -march's, or ARCH=portable for programs to copy to other machines, which choose what a processor is fast at when they
# start; BUILD the directory for objects; -j is all cores where it is not said. What was built with other flags is
# built again. make -f DIR/Makefile builds here what is there.

SOURCE := $(dir $(lastword $(MAKEFILE_LIST)))
BUILD ?= build
ifneq ($(SOURCE),./)
# From another directory: make at the source, for here.
.PHONY: here
here: ; @+$(MAKE) --no-print-directory -C $(SOURCE) HERE=$(CURDIR) BUILD=$(abspath $(BUILD)) $(MAKECMDGOALS)
$(MAKECMDGOALS): here ; @:
else

# ---- the rooms; another one, or another model, is a word here --------------------------------------------------------
LIBRARY := base text data model cpu trainer tasks# layers, lowest first: what every program is linked with
MODELS := fastformer gpt2 bert translate#train_NAME and test_NAME, .c and .cu (the Fastformer's are at the top)
VERSION := 0.2.0

INCLUDES := -I. $(foreach room,ranks $(LIBRARY) $(MODELS) emulator test,-Idev/$(room))
# Where the source of a program lies: train_gpt2 in dev/gpt2/train_gpt2.c, train_gpt2cu in dev/gpt2/train_gpt2.cu.
vpath %.c dev/tools $(MODELS:%=dev/%)
vpath %.cu dev/cuda $(MODELS:%=dev/%)
names = $(basename $(notdir $(wildcard $(1))))
TRAINERS := $(call names,train_*.c $(MODELS:%=dev/%/train_*.c))
TRAINER_TESTS := $(call names,test_*.c $(MODELS:%=dev/%/test_*.c))
PROGRAMS := $(TRAINERS) $(call names,dev/tools/*.c)
TESTS := $(call names,dev/test/test_*.c)
# Those that put others in the place of our programs need no second run.
TEST_SCRIPTS := $(filter-out $(if $(filter 1,$(SANITIZE) $(QUICK)),%/test_gpu_check.sh %/test_scripts.sh),                 $(wildcard dev/test/test_*.sh))
# Tests that check derivatives and exact algebra run in double as well.
DOUBLE_TESTS := test_layers test_blocks test_gemm test_decode test_classifier test_attention test_additive_global \
                test_muon test_tile
# Tests of what multiplies by AMX, which dev/emulator/amx_in_c.h stands in for.
AMX_TESTS := test_tile test_classifier test_attention test_gemm
AMX_PARTS := amx classifier_amx softmax_attention_amx
FUZZ_TARGETS := $(patsubst fuzz_%,%,$(call names,dev/fuzz/fuzz_*.c))
BENCHES := $(call names,dev/bench/*.c)
# Programs on the GPU, X.cu as Xcu. They link the CPU's models.
CUDA_TRAINERS := $(addsuffix cu,$(call names,train_*.cu dev/*/train_*.cu))
CUDA_TESTS := $(addsuffix cu,$(call names,dev/*/test_*.cu))
# The project's source and documentation: the embedded default corpus, without the table of numbers in it.
CORPUS := $(sort $(filter-out dev/text/unicode_table.h,$(wildcard Makefile *.md *.c *.cu data/*.md data/*.sh \
            scripts/*.sh dev/*.md $(foreach kind,md c h cu cuh,dev/*/*.$(kind)))))

# ---- what is there ---------------------------------------------------------------------------------------------------
, := ,
H := \#
ARCH ?= native
# Levels of instructions, the best first: ARCH=portable compiles a program for each of them and for any processor. Other
# machines than x86-64 have what any has.
march_avx512_bf16 := x86-64-v4 -mavx512bf16
march_avx512 := x86-64-v4
march_avx2 := x86-64-v3
PORTABLE := $(filter portable,$(ARCH))
LEVELS := $(if $(PORTABLE),$(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),avx512_bf16 avx512 avx2))
MARCH := $(if $(PORTABLE),,-march=$(ARCH))
CUDA_ARCHS ?= 80 90 100
ifeq ($(origin CXX),default) # the same OpenMP as CC's
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(CXX))
endif
compiles = $(shell printf '%s\n' $(2) | $(1) - -o /dev/null $(3) >/dev/null 2>&1 && echo 1)

ONEDNN_FLAGS := $(if $(ONEDNN_ROOT),-I$(ONEDNN_ROOT)/include)
ONEDNN_LIBS := $(if $(ONEDNN_ROOT),-L$(ONEDNN_ROOT)/lib -Wl$(,)-rpath$(,)$(ONEDNN_ROOT)/lib) -ldnnl
ONEDNN_PROBE := '$(H)include <dnnl.h>' 'int main(void) { return !dnnl_version(); }'
OPENMP_PROBE := '$(H)include <omp.h>' 'int main(void) { return !omp_get_max_threads(); }'
CPLUSPLUS_PROBE := '$(H)include <tuple>' 'int main() { return 0; }'
BF16_PROBE := '$(H)ifndef __AVX512BF16__' '$(H)error' '$(H)endif' 'int main(void) { return 0; }'
ONEDNN ?= $(call compiles,$(CC) $(ONEDNN_FLAGS) -x c,$(ONEDNN_PROBE),$(ONEDNN_LIBS))
OPENMP ?= $(call compiles,$(CC) -fopenmp -x c,$(OPENMP_PROBE))
# What mpicc adds to a compiler's command line: Open MPI's or MPICH's.
MPICC ?= mpicc#   another implementation's
mpicc_says = $(shell $(MPICC) $(1) 2>/dev/null || $(MPICC) $(2) 2>/dev/null | cut -d' ' -f2-)
MPI_FLAGS := $(filter -I%,$(call mpicc_says,--showme:compile,-compile_info)) -pthread
MPI_LIBS := $(filter -L% -l% -Wl%,$(call mpicc_says,--showme:link,-link_info)) -pthread
MPI_PROBE := '$(H)include <mpi.h>' 'int main(void) { return MPI_Finalize(); }'
MPI ?= $(call compiles,$(CC) $(MPI_FLAGS) -x c,$(MPI_PROBE),$(MPI_LIBS))
# A C++ compiler runs the CUDA sources on the CPU, for tests.
CPLUSPLUS ?= $(call compiles,$(CXX) -std=c++17 -x c++,$(CPLUSPLUS_PROBE))
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc))
CUDA ?= $(NVCC:%/bin/nvcc=%)
# NCCL for GPUs; in the emulator MPI plays it.
NCCL_ROOT ?= $(CUDA)
NCCL_FLAGS := -I$(NCCL_ROOT)/include
NCCL_LIBS := -L$(NCCL_ROOT)/lib -Wl$(,)-rpath$(,)$(NCCL_ROOT)/lib -lnccl
NCCL_PROBE := '$(H)include <nccl.h>' 'int main() { return ncclGroupStart(); }'
NCCL ?= $(if $(CUDA),$(call compiles,$(CXX) -I$(CUDA)/include $(NCCL_FLAGS) -x c++,$(NCCL_PROBE),$(NCCL_LIBS)))
USE_AMX := $(call compiles,$(CC) $(MARCH) $(CFLAGS) -x c,$(BF16_PROBE))
USE_ONEDNN := $(filter 1,$(ONEDNN))
USE_OPENMP := $(filter 1,$(OPENMP))
USE_CPLUSPLUS := $(filter 1,$(CPLUSPLUS))
USE_MPI := $(filter 1,$(MPI))
USE_NCCL := $(filter 1,$(NCCL))
USE_SANITIZERS := $(filter 1,$(SANITIZE) $(FUZZ))
USE_FUZZER := $(filter 1,$(FUZZ))#   dev/fuzz/run.sh says so
USE_WERROR := $(filter 1,$(WERROR))

# As many jobs as cores; -j on the command line wins. `make clean all` is done in order.
JOBS := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 1)
ifeq ($(filter clean,$(MAKECMDGOALS))$(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS)
endif

# ---- flags -----------------------------------------------------------------------------------------------------------
WARNINGS := -Wall -Wextra $(if $(USE_WERROR),-Werror)
C_WARNINGS := -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# Kernels may fuse multiply and add and ignore floating-point traps and errno; they may not reorder sums, so results
# are those of the source.
OPTIMISE := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
PARALLEL := $(if $(USE_OPENMP),-fopenmp)
SANITIZERS := $(if $(USE_SANITIZERS),-fsanitize=address$(,)undefined -fno-sanitize-recover=all \
                -fno-omit-frame-pointer $(if $(USE_FUZZER),-O2,-O1) -Wno-pass-failed) \
              $(if $(USE_FUZZER),-fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp)# half as fast with it
DEFINES := -D_GNU_SOURCE -DVERSION='"$(VERSION)"'
C_FLAGS = -std=c17 -g $(OPTIMISE) $(MARCH) $(WARNINGS) $(C_WARNINGS) \
          $(or $(PARALLEL),-fopenmp-simd -Wno-unknown-pragmas) $(SANITIZERS) $(CFLAGS)
CUDA_FLAGS := -std=c++17 -D_GNU_SOURCE -Drestrict=__restrict__ $(INCLUDES) -Idev/cuda
# The source that sums gradients over ranks on a GPU (dev/cuda/device_ranks.cuh).
REDUCTION_NVCC := $(if $(USE_NCCL),nccl,by_host)
REDUCTION_EMULATED := $(if $(and $(USE_MPI),$(filter-out 0,$(or $(NCCL),1))),nccl,by_host)
# Code for each architecture, and PTX of the last one for later GPUs. Code for sm_90 has instructions that it alone has,
# so that there is no such PTX of it.
gencode = -gencode arch=compute_$(1)$(,)code=$(2)_$(1)
GENCODE := $(foreach arch,$(CUDA_ARCHS:90=90a),$(call gencode,$(arch),sm)) \
           $(foreach arch,$(filter-out 90,$(lastword $(CUDA_ARCHS))),$(call gencode,$(arch),compute)) \
           $(if $(filter 90,$(CUDA_ARCHS)),-DCUDA_WARPGROUPS)

# Two builds of everything: `real` is float in one (with oneDNN), double in the other (for gradient checks).
SUFFIX := $(if $(USE_FUZZER),-fuzz,$(if $(USE_SANITIZERS),-sanitize))$(if $(USE_OPENMP),,-serial)
FLOAT := $(BUILD)/float$(SUFFIX)$(if $(USE_ONEDNN),-onednn)
DOUBLE := $(BUILD)/double$(SUFFIX)
# How an object of each kind is compiled, and with which libraries its programs are linked.
COMPILE_DOUBLE = $(CC) $(DEFINES) $(INCLUDES) $(CPPFLAGS) $(C_FLAGS) -DREAL_IS_DOUBLE
COMPILE_FLOAT = $(CC) $(DEFINES) $(INCLUDES) $(CPPFLAGS) $(C_FLAGS) $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS))
COMPILE_HOST = $(COMPILE_FLOAT) -DTESTING
COMPILE_AMX = $(COMPILE_FLOAT) -DAMX_IN_C
NVCC_HELP = $(if $(CUDA),$(shell $(CUDA)/bin/nvcc --help))# older toolkits have no -Ofc
NVCC_OPTIMISE := $(if $(filter 1,$(QUICK)),-O1 $(if $(findstring Ofast-compile,$(NVCC_HELP)),-Ofc mid),-O3)
COMPILE_NVCC = $(CUDA)/bin/nvcc $(CUDA_FLAGS) $(NVCC_OPTIMISE) --threads 0 -Xcompiler -Wall$(,)-Wextra \
               $(if $(USE_WERROR),-Werror all-warnings) $(GENCODE)
COMPILE_EMULATED = $(CXX) -x c++ $(CUDA_FLAGS) -DCUDA_ON_CPU -g1 -O2 $(WARNINGS) -Wno-unknown-pragmas $(PARALLEL) \
                   $(SANITIZERS)
# Only the trainers ask for MPI.
LINK_MPI = $(if $(USE_MPI),-Wl$(,)--as-needed $(MPI_LIBS) -Wl$(,)--no-as-needed)
LIBS_DOUBLE = $(LDFLAGS) $(LINK_MPI) $(LDLIBS) -lm
LIBS_FLOAT = $(LDFLAGS) $(LINK_MPI) $(if $(USE_ONEDNN),$(ONEDNN_LIBS)) $(LDLIBS) -lm
LIBS_EMULATED = $(LIBS_FLOAT)
LIBS_NVCC = $(LIBS_FLOAT) $(if $(USE_NCCL),$(NCCL_LIBS)) \
            -L$(CUDA)/lib64 -Wl$(,)-rpath$(,)$(CUDA)/lib64 -lcublasLt -lcudart_static -lpthread -ldl -lrt

# ---- rules -----------------------------------------------------------------------------------------------------------
.PHONY: all run test bench lint format install uninstall clean detected changed
.PHONY: $(PROGRAMS) $(TRAINER_TESTS) $(CUDA_TRAINERS) $(CUDA_TESTS) data/wikitext2 data/tinyshakespeare data/multi30k
.SECONDARY:
all: $(PROGRAMS)

Q := $(if $(V),,@)
say = @mkdir -p $(@D); echo '  $(1)  $@'
define link # $(1) the compiler, $(2) libraries
$(call say,LINK)
$(Q)$(1) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(2)
endef

# A file that holds the value of a variable: what depends on it is made again when that changes.
define remember # $(1) file, $(2) variable
$(1): export REMEMBERED = $$($(2))
$(1): changed
	@mkdir -p $$(@D); printf '%s\n' "$$$$REMEMBERED" | cmp -s - $$@ || printf '%s\n' "$$$$REMEMBERED" >$$@
endef

define objects # $(1) directory, $(2) the sources' suffix, $(3) FLOAT, DOUBLE, HOST, NVCC or EMULATED
$(1)/%.o: %.$(2) $(1)/compiled
	$$(call say,$(if $(filter c,$(2)),CC  ,CUDA))
	$$(Q)$$(COMPILE_$(3)) $$(ONLY_HERE) -MMD -MP -c $$< -o $$@
$(call remember,$(1)/compiled,COMPILE_$(3))
-include $(wildcard $(1)/*.d $(1)/dev/*/*.d)
endef

MODEL_PARTS := $(foreach model,$(MODELS),$(filter-out dev/$(model)/train_% dev/$(model)/test_%, \
                 $(wildcard dev/$(model)/*.c)))
LIBRARY_SOURCES := dev/ranks/ranks.c dev/ranks/single.c \
                   $(wildcard $(LIBRARY:%=dev/%/*.c)) $(MODEL_PARTS)
MODEL_TEST := model_test model_reference test
define programs # $(1) directory, $(2) FLOAT, DOUBLE or a level
$(call objects,$(1),c,$(2))
$(call remember,$(1)/linked,LIBS_$(2))
$(call remember,$(1)/library,LIBRARY_SOURCES)
$(1)/lib.a: $(LIBRARY_SOURCES:%.c=$(1)/%.o) $(1)/library
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$(filter %.o,$$^)
$(1)/bin/%: $(1)/%.o $(1)/dev/start/refuse.o $(1)/lib.a $(1)/linked
	$$(call link,$$(CC) $$(C_FLAGS) $$(if $$(filter %/choose.o,$$^),-Wl$$(,)--wrap=main),$$(LIBS_$(2)))
$(1)/test/%: $(1)/dev/test/%.o $(1)/dev/test/test.o $(1)/lib.a $(1)/linked
	$$(call link,$$(CC) $$(C_FLAGS),$$(LIBS_$(2)))
$(1)/bench/%: $(1)/dev/bench/%.o $(1)/lib.a $(1)/linked
	$$(call link,$$(CC) $$(C_FLAGS),$$(LIBS_$(2)))
$(TRAINER_TESTS:%=$(1)/bin/%): $(MODEL_TEST:%=$(1)/dev/test/%.o)
# In the place of the library's dev/ranks/single.c.
$(if $(USE_MPI),$(TRAINERS:%=$(1)/bin/%): $(1)/dev/ranks/mpi.o)
$(1)/dev/ranks/mpi.o: ONLY_HERE = $$(MPI_FLAGS)
# What one source alone is told: the file to embed, and where the double build of a test finds the float one.
$(filter %/corpus.o,$(LIBRARY_SOURCES:%.c=$(1)/%.o)): ONLY_HERE = -DCORPUS_FILE='"$(BUILD)/corpus.txt"'
$(filter %/corpus.o,$(LIBRARY_SOURCES:%.c=$(1)/%.o)): $(BUILD)/corpus.txt
$(1)/dev/fastformer/exchange.o: dev/fastformer/modeling_fastformer.py
$(1)/dev/test/model_test.o: ONLY_HERE = $$(FLOAT_BUILD)
$(1)/dev/test/model_test.o: $(1)/float_build
$(call remember,$(1)/float_build,FLOAT_BUILD)
endef
FLOAT_BUILD := -DFLOAT_BUILD='"$(abspath $(FLOAT))"'
$(eval $(call programs,$(FLOAT),FLOAT))
$(eval $(call programs,$(DOUBLE),DOUBLE))

# A program compiled for a level is one object, in which all names are its own but two.
OBJCOPY ?= objcopy
define compiled_for # $(1) its name
COMPILE_$(1) = $$(COMPILE_FLOAT) -march=$$(march_$(1))
LIBS_$(1) = $$(LIBS_FLOAT)
$(call programs,$(FLOAT)/$(1),$(1))
$(FLOAT)/$(1)/whole/%.o: $(FLOAT)/$(1)/%.o $(FLOAT)/$(1)/dev/cpu/processor.o $(FLOAT)/$(1)/lib.a
	$$(call link,$$(CC) -r -nostdlib)
	$$(Q)$$(OBJCOPY) $$(foreach name,main processor_lacks,--redefine-sym $$(name)=$$(name)_$(1) \
	    --keep-global-symbol=$$(name)_$(1)) $$@
$(if $(USE_MPI),$(TRAINERS:%=$(FLOAT)/$(1)/whole/%.o): $(FLOAT)/$(1)/dev/ranks/mpi.o)
endef
ifneq ($(LEVELS),)
$(foreach level,$(LEVELS),$(eval $(call compiled_for,$(level))))
$(PROGRAMS:%=$(FLOAT)/bin/%): $(FLOAT)/bin/%: $(foreach level,$(LEVELS),$(FLOAT)/$(level)/whole/%.o) \
                                              $(FLOAT)/dev/start/choose.o
$(FLOAT)/dev/start/choose.o: ONLY_HERE = -DLEVELS='${LEVELS:%=LEVEL(%)}'
$(FLOAT)/dev/start/choose.o: $(FLOAT)/levels
$(eval $(call remember,$(FLOAT)/levels,LEVELS))
endif

# In the place of the library's objects with AMX's instructions: these in C.
$(eval $(call objects,$(FLOAT)/amx,c,AMX))
$(FLOAT)/amx/test/%: $(FLOAT)/dev/test/%.o $(FLOAT)/dev/test/test.o $(AMX_PARTS:%=$(FLOAT)/amx/dev/cpu/%.o) \
                     $(FLOAT)/lib.a $(FLOAT)/linked
	$(call link,$(CC) $(C_FLAGS),$(LIBS_FLOAT))

# Fuzz targets: with libFuzzer, or replaying a corpus. Their harness stands in the place of the C library's memory and
# files.
WRAPPED := malloc calloc realloc reallocarray aligned_alloc free vasprintf mmap munmap exit \
           open close pipe2 stat lstat fstat pread write scandir fsync unlink rename
FUZZ_HARNESS := harness memory_blocks memory_files
$(FLOAT)/fuzz/%: $(FLOAT)/dev/fuzz/fuzz_%.o $(FUZZ_HARNESS:%=$(FLOAT)/dev/fuzz/%.o) $(FLOAT)/lib.a $(FLOAT)/linked
	$(call link,$(CC) $(C_FLAGS) $(if $(USE_FUZZER),-fsanitize=fuzzer) $(WRAPPED:%=-Wl$(,)--wrap=%),$(LIBS_FLOAT))
$(FUZZ_TARGETS:%=$(FLOAT)/fuzz/%): $(if $(USE_FUZZER),,$(FLOAT)/dev/fuzz/replay.o)
ifneq ($(USE_FUZZER),) # clang takes minutes for this one with sanitizers, and it reads no input
$(FLOAT)/dev/cpu/additive_attention.o: ONLY_HERE = -fno-sanitize=all
# The harness is not what is tried, and an execution spends much of its time there.
$(FUZZ_HARNESS:%=$(FLOAT)/dev/fuzz/%.o): ONLY_HERE = -fno-sanitize=undefined,fuzzer-no-link
endif
$(FLOAT)/fuzz/checkpoint $(FLOAT)/fuzz/config $(FLOAT)/fuzz/options: $(FLOAT)/host/train_fastformer.o

# A bench of several processes.
$(if $(USE_MPI),$(FLOAT)/bench/reduction: $(FLOAT)/dev/ranks/mpi.o)

# A bench of more models than one.
$(FLOAT)/bench/beyond: $(FLOAT)/host/train_fastformer.o $(FLOAT)/host/dev/gpt2/train_gpt2.o

ATTENTION_MODELS := gpt2 bert translate# those with dev/cuda/attention.cuh
define cuda_programs # $(1) directory, $(2) NVCC or EMULATED
$(call objects,$(1),cu,$(2))
$(call remember,$(1)/linked,LIBS_$(2))
$(1)/bin/%cu: $(1)/%.o $(FLOAT)/lib.a $(1)/linked
	$$(call link,$$(CXX) $$(PARALLEL) $$(SANITIZERS),$$(LIBS_$(2)))
$(CUDA_TESTS:%=$(1)/bin/%): $(MODEL_TEST:%=$(FLOAT)/dev/test/%.o)
$(call remember,$(1)/reduction,REDUCTION_$(2))
$(CUDA_TESTS:%=$(1)/bin/%) $(TRAINERS:%=$(1)/bin/%cu): $(1)/dev/cuda/$(REDUCTION_$(2)).o $(1)/reduction
$(1)/dev/cuda/nccl.o: ONLY_HERE = $(if $(filter NVCC,$(2)),$(NCCL_FLAGS),$$(MPI_FLAGS))
$(foreach kind,train test,$(ATTENTION_MODELS:%=$(1)/bin/$(kind)_%cu)): $(1)/dev/cuda/attention.o
# Beside a model on the GPU stands the CPU's, without its main. A model's test is linked with its program.
$(TRAINERS:%=$(1)/bin/%cu): $(1)/bin/%cu: $(FLOAT)/host/%.o $(if $(USE_MPI),$(FLOAT)/dev/ranks/mpi.o)
$(TRAINERS:train_%=$(1)/bin/test_%cu): $(1)/bin/test_%cu: $(1)/train_%.o $(FLOAT)/host/train_%.o
endef
$(eval $(call objects,$(FLOAT)/host,c,HOST))
$(eval $(call cuda_programs,$(FLOAT)/emulated,EMULATED))
ifneq ($(CUDA),)
$(eval $(call cuda_programs,$(FLOAT)/cuda,NVCC))
endif

$(BUILD)/corpus.txt: changed
	@mkdir -p $(@D); cat $(CORPUS) | cmp -s - $@ || cat $(CORPUS) >$@

detected:
	@echo "compiler $(CC), $(if $(USE_OPENMP),OpenMP,no OpenMP: one thread), $(if $(USE_ONEDNN),oneDNN,no oneDNN: built-in\
	float32 GEMM (install libdnnl-dev for bf16)), $(if $(USE_MPI),MPI,no MPI: one process), \
	$(if $(CUDA),CUDA in $(CUDA)$(if $(USE_NCCL), with NCCL),no CUDA)\
	$(if $(USE_CPLUSPLUS),,$(,) no C++ compiler: tests of the CUDA sources are skipped)"

# Programs are copied here from the build that was asked for last, so they are looked at every time. A trainer's test is
# the double build's; it runs the float one for -p float and -p bf16.
HERE ?= .
AT_HERE := $(if $(filter-out .,$(HERE)),cd $(HERE) && )
copy = @cmp -s $< $(HERE)/$@ || cp -f $< $(HERE)/$@
$(PROGRAMS): %: $(FLOAT)/bin/% | detected
	$(copy)
$(TRAINER_TESTS): %: $(DOUBLE)/bin/% $(FLOAT)/bin/%
	$(copy)
$(CUDA_TRAINERS) $(CUDA_TESTS): %: $(if $(CUDA),$(FLOAT)/cuda/bin/%) | detected
	$(if $(CUDA),$(copy),@echo "$@ needs CUDA: install the CUDA toolkit 12.8 or newer with cuBLAS (nvcc was not found; \
	say CUDA=DIR where it is)" >&2; exit 1)

# The longest first. Under sanitizers only what is written for double runs in double, vectors and built-in products: the
# rest is the same source. Of models on the emulated GPU the one with most parts runs there.
EMULATED_TESTS := $(if $(USE_SANITIZERS),test_layerscu test_attentioncu test_translatecu,$(CUDA_TESTS))
TEST_PROGRAMS := $(if $(USE_CPLUSPLUS),$(EMULATED_TESTS:%=$(FLOAT)/emulated/bin/%)) \
                 $(if $(USE_SANITIZERS),,$(TRAINER_TESTS:%=$(DOUBLE)/bin/%)) $(TRAINER_TESTS:%=$(FLOAT)/bin/%) \
                 $(TESTS:%=$(FLOAT)/test/%) $(if $(USE_AMX),$(AMX_TESTS:%=$(FLOAT)/amx/test/%)) \
                 $(patsubst %,$(DOUBLE)/test/%,$(if $(USE_SANITIZERS),test_gemm test_tile,$(DOUBLE_TESTS))) \
                 $(FUZZ_TARGETS:%=$(FLOAT)/fuzz/%)
# A trainer for a GPU, emulated, for test_ranks.sh.
ON_EMULATOR := $(if $(USE_CPLUSPLUS),$(if $(USE_MPI),$(FLOAT)/emulated/bin/train_gpt2cu))
RANKS_TRAINERS := $(if $(USE_SANITIZERS),$(FLOAT),$(DOUBLE))/bin
test: $(PROGRAMS:%=$(FLOAT)/bin/%) $(if $(USE_MPI),$(TRAINERS:%=$(RANKS_TRAINERS)/%)) $(ON_EMULATOR) $(TEST_PROGRAMS) \
      | detected
	@TRAINER=$(FLOAT)/bin/train_fastformer GPT2=$(FLOAT)/bin/train_gpt2 BERT=$(FLOAT)/bin/train_bert \
	TRANSLATE=$(FLOAT)/bin/train_translate TRAINERS=$(RANKS_TRAINERS) ON_EMULATOR=$(ON_EMULATOR) \
	TOKENIZE=$(FLOAT)/bin/tokenize QUICK=$(filter 1,$(SANITIZE) $(QUICK)) \
	JOBS=$(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))) dev/test/run.sh $(TEST_SCRIPTS) $(TEST_PROGRAMS)

# Less than a minute of training on the project's own source, and what the model makes of it.
run: train_fastformer
	$(AT_HERE)./train_fastformer -o runs/first $(if $(wildcard $(HERE)/runs/first/log.jsonl),-y) -L 4 -C 128 -H 4 -b 8 -t 256 \
	    --minutes 0.75 --optimizer muon -l 1e-2 -u 20 -k cosine -v 100
	$(AT_HERE)./train_fastformer -e runs/first/best.safetensors --prompt "static void " -g 400 --temperature 0.7

data/wikitext2 data/tinyshakespeare data/multi30k: data/%: tokenize
	sh data/$*.sh

bench: $(BENCHES:%=$(FLOAT)/bench/%)

C_FILES := $(filter-out $(if $(USE_MPI),,dev/ranks/mpi.c dev/test/poison.c),$(filter %.c,$(CORPUS)))
SOURCES := $(filter %.c %.h %.cu %.cuh,$(CORPUS))
LINT_FLAGS := $(DEFINES) -DFLOAT_BUILD='""' -DCORPUS_FILE='""' -DLEVELS='LEVEL(avx2)' $(INCLUDES) \
              $(filter -I%,$(MPI_FLAGS))
lint:
	clang-format --dry-run -Werror $(SOURCES)
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr --suppressions-list=.cppcheck -j $(JOBS) $(LINT_FLAGS) \
	    $(C_FILES)
	printf '%s\n' $(C_FILES) | xargs -P $(JOBS) -I {} clang-tidy --quiet {} -- $(LINT_FLAGS) \
	    $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS)) -std=c17 \
	    $(if $(filter 1,$(QUICK)),-Xclang -analyzer-config -Xclang max-nodes=50000)

format:
	clang-format -i $(SOURCES)

PREFIX ?= /usr/local
INSTALLED = $(DESTDIR)$(PREFIX)/bin
install: $(PROGRAMS:%=$(FLOAT)/bin/%)
	install -d "$(INSTALLED)"
	install -m 755 $^ "$(INSTALLED)"

uninstall:
	rm -f $(PROGRAMS:%="$(INSTALLED)/%")

clean:
	rm -rf $(or $(filter build,$(BUILD)),$(addprefix $(BUILD)/,float float-* double double-* corpus.txt))
	$(AT_HERE)rm -f $(PROGRAMS) $(TRAINER_TESTS) $(CUDA_TRAINERS) $(CUDA_TESTS)
endif
