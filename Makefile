# fastformer.c
#
#   make run                 build, train a small model on the embedded corpus, print a sample
#   make test                build and run every test
#   make train_fastformer    the trainer
#   make tokenize            text -> tokens
#   make data/wikitext2      a data set (also data/tinyshakespeare)
#   make lint format         clang-format, clang-tidy, cppcheck
#   make clean
#
# What is optional is detected; say ONEDNN=0 or OPENMP=0 to build without it, ONEDNN_ROOT=DIR for a oneDNN that is
# not where the compiler looks, SANITIZE=1 for AddressSanitizer and UBSan, WERROR=1 to make warnings errors.

CC ?= cc
ARCH ?= native
VERSION := 0.1.0

# ---- what is there -------------------------------------------------------------------------------------------------
H := \#
compiles = $(shell printf '%s\n' $(1) | $(CC) -x c - $(2) -o /dev/null >/dev/null 2>&1 && echo 1)

ONEDNN_FLAGS := $(if $(ONEDNN_ROOT),-I$(ONEDNN_ROOT)/include)
ONEDNN_LIBS := $(if $(ONEDNN_ROOT),-L$(ONEDNN_ROOT)/lib -Wl$(,)-rpath$(,)$(ONEDNN_ROOT)/lib) -ldnnl
, := ,
ONEDNN ?= $(call compiles,'$(H)include <dnnl.h>' 'int main(void) { return !dnnl_version(); }',$(ONEDNN_FLAGS) $(ONEDNN_LIBS))
OPENMP ?= $(call compiles,'$(H)include <omp.h>' 'int main(void) { return !omp_get_max_threads(); }',-fopenmp)

USE_ONEDNN := $(filter 1,$(ONEDNN))
USE_OPENMP := $(filter 1,$(OPENMP))

# ---- flags ---------------------------------------------------------------------------------------------------------
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
# Kernels may fuse multiply and add and ignore floating-point traps and errno; they may not reorder sums, so results
# are those of the source.
OPTIMISE := -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
SANITIZERS := $(if $(filter 1,$(SANITIZE)),-fsanitize=address$(,)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1)
CPPFLAGS += -D_GNU_SOURCE -DFLOAT_BUILD='"$(FLOAT)"' -DVERSION='"$(VERSION)"' -I. -Idev/trainer -Idev/cpu -MMD -MP
CFLAGS_ALL := -std=c17 -g $(OPTIMISE) -march=$(ARCH) $(WARNINGS) $(if $(USE_OPENMP),-fopenmp,-Wno-unknown-pragmas) $(SANITIZERS) $(CFLAGS)
LDLIBS_ALL := $(LDLIBS) -lm

SUFFIX := $(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(USE_OPENMP),,-serial)
# Two builds of everything: `real` is float in one (with oneDNN), double in the other (for gradient checks).
FLOAT := build/float$(SUFFIX)$(if $(USE_ONEDNN),-onednn)
DOUBLE := build/double$(SUFFIX)
FLAGS_FLOAT := $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS))
FLAGS_DOUBLE := -DREAL_IS_DOUBLE
LIBS_FLOAT := $(if $(USE_ONEDNN),$(ONEDNN_LIBS))

# ---- files ---------------------------------------------------------------------------------------------------------
SHARED := $(wildcard dev/trainer/*.c dev/cpu/*.c)
MODEL_TEST := dev/test/model_test.o dev/test/model_reference.o dev/test/test.o
TESTS := $(patsubst dev/test/%.c,%,$(wildcard dev/test/test_*.c))
BENCHES := $(patsubst dev/bench/%.c,%,$(wildcard dev/bench/*.c))
CORPUS := $(sort $(wildcard Makefile *.md *.c *.cu dev/*.md dev/*/*.md dev/*/*.[ch] dev/*/*.cu dev/*/*.cuh data/*.sh scripts/*.sh))
# Tests that check derivatives and exact algebra run in double as well.
DOUBLE_TESTS := test_layers test_gemm test_classifier

PROGRAMS := train_fastformer tokenize
.PHONY: all run test lint format clean detected bench
.SECONDARY:
all: $(PROGRAMS)

link_FLOAT = @mkdir -p $(@D) && $(CC) $(CFLAGS_ALL) $^ -o $@ $(LIBS_FLOAT) $(LDLIBS_ALL)
link_DOUBLE = @mkdir -p $(@D) && $(CC) $(CFLAGS_ALL) $^ -o $@ $(LDLIBS_ALL)

define variant # $(1) directory, $(2) FLOAT or DOUBLE
$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(FLAGS_$(2)) $$(CFLAGS_ALL) -c $$< -o $$@
$(1)/dev/trainer/corpus.o: build/corpus.txt
$(1)/lib.a: $(SHARED:%.c=$(1)/%.o)
	@rm -f $$@
	$$(AR) rcs $$@ $$^
$(1)/bin/test_%: $(1)/test_%.o $(MODEL_TEST:%=$(1)/%) $(1)/lib.a
	$$(link_$(2))
$(1)/bin/%: $(1)/%.o $(1)/lib.a
	$$(link_$(2))
$(1)/bin/%: $(1)/dev/tools/%.o $(1)/lib.a
	$$(link_$(2))
$(1)/test/%: $(1)/dev/test/%.o $(1)/dev/test/test.o $(1)/lib.a
	$$(link_$(2))
$(1)/bench/%: $(1)/dev/bench/%.o $(1)/lib.a
	$$(link_$(2))
-include $$(wildcard $(1)/*.d $(1)/dev/*/*.d)
endef
$(eval $(call variant,$(FLOAT),FLOAT))
$(eval $(call variant,$(DOUBLE),DOUBLE))

# The embedded default corpus: the project's own source and documentation.
build/corpus.txt: $(CORPUS)
	@mkdir -p $(@D)
	cat $(CORPUS) > $@

detected:
	@echo "compiler $(CC), $(if $(USE_OPENMP),OpenMP,no OpenMP: one thread), $(if $(USE_ONEDNN),oneDNN,no oneDNN: built-in float32 GEMM (install libdnnl-dev for bf16))"

train_fastformer tokenize: %: $(FLOAT)/bin/% | detected
	@cp -f $< $@

# The double build; it runs the float one for -p float and -p bf16.
test_fastformer: %: $(DOUBLE)/bin/% $(FLOAT)/bin/%
	@cp -f $< $@

bench: $(BENCHES:%=$(FLOAT)/bench/%)

format:
	clang-format -i $(filter %.c %.h %.cu %.cuh,$(CORPUS))

clean:
	rm -rf build $(PROGRAMS) test_fastformer
