# fastformer.c
#
#   make                     build all programs: trainers, tokenize
#   make run                 train a small model on the embedded corpus and print a sample
#   make test                build and run all tests
#   make train_fastformer    build the trainer; also train_gpt2, train_llama, train_bert, ...
#   make train_fastformercu  build the CUDA trainer; also train_gpt2cu, ...
#   make tokenize            build the tokenizer, which converts text to tokens
#   make data/wikitext2      make a data set; also data/wikitext2-bert, data/wikitext2-words,
#                            data/tinyshakespeare, data/multi30k, data/multi30k-de, data/linux
#   make wasm                build the decoder of a run's page (dev/page)
#   make bench               build the benchmarks (dev/bench)
#   make lint format         clang-format, clang-tidy, cppcheck
#   make install uninstall   programs in PREFIX/bin (PREFIX=/usr/local; DESTDIR= is put before it),
#                            with manual pages and completions
#   make deb wheel static dist   packages in build/dist: Debian, Python, one static file, sources
#   make clean               remove what was built
#
# Optional libraries are detected. ONEDNN=0, OPENMP=0, MPI=0, NCCL=0 and WASM=0 build without one.
# ONEDNN_ROOT=DIR, NCCL_ROOT=DIR and CUDA=DIR are their directories; MPICC is the MPI compiler.
#
#   CC, CXX, CPPFLAGS, CFLAGS, LDFLAGS, LDLIBS   as usual
#   ARCH=NAME       for -march (native); portable: programs to copy to other machines, which
#                   choose the processor's fastest instructions when they start
#   CUDA_ARCHS=...  GPU architectures ("80 90 100")
#   BUILD=DIR       directory for objects (build)
#   SANITIZE=1      build with AddressSanitizer and UBSan
#   QUICK=1         test the float build only, lint less thoroughly; CUDA programs compile
#                   faster and run slower
#   WERROR=1        treat warnings as errors
#   V=1             show the commands
#   -j N            number of jobs (all cores)
#
# Objects that were built with other flags are rebuilt. make -f DIR/Makefile builds the sources in
# DIR into the current directory.

SOURCE := $(dir $(lastword $(MAKEFILE_LIST)))
BUILD ?= build
ifneq ($(SOURCE),./)
# Called from another directory: runs make in the source directory, with its output here.
.PHONY: here
here: ; @+$(MAKE) --no-print-directory -C $(SOURCE) HERE='$(CURDIR)' $(MAKECMDGOALS) \
    BUILD='$(if $(filter /%,$(firstword $(BUILD))),,$(CURDIR)/)$(BUILD)'
$(MAKECMDGOALS): here ; @:
else
HERE ?= .
ifneq ($(words $(BUILD)),1) # no name of a file may have blanks in make: a link without any is used
LINK := build.link.$(firstword $(shell printf %s '$(BUILD)' | cksum))
_ := $(shell mkdir -p '$(BUILD)' && ln -sfn '$(BUILD)' $(LINK))
override BUILD := $(LINK)
endif

# ---- sources: a new directory or model is one word in these lists --------------------------------
LIBRARY := base text data model cpu trainer tasks# lowest first: every program is linked with them
MODELS := fastformer gpt2 llama bert translate# train_NAME, test_NAME, .c and .cu; one is at the top
VERSION := $(shell sed -n 's/^version: //p' CITATION.cff)

INCLUDES := -I. $(foreach room,ranks $(LIBRARY) $(MODELS) emulator test,-Idev/$(room))
vpath %.c dev/tools $(MODELS:%=dev/%)
vpath %.cu dev/cuda $(MODELS:%=dev/%)
names = $(basename $(notdir $(wildcard $(1))))
TRAINERS := $(call names,train_*.c $(MODELS:%=dev/%/train_*.c))
TRAINER_TESTS := $(call names,test_*.c $(MODELS:%=dev/%/test_*.c))
PROGRAMS := $(TRAINERS) $(call names,dev/tools/*.c)
BENCHES := $(call names,dev/bench/*.c)
MODEL_PARTS := $(foreach model,$(MODELS),$(filter-out \
                 dev/$(model)/plain.c dev/$(model)/train_% dev/$(model)/test_%, \
                 $(wildcard dev/$(model)/*.c)))
LIBRARY_SOURCES := dev/ranks/ranks.c dev/ranks/single.c $(wildcard $(LIBRARY:%=dev/%/*.c)) \
                   $(MODEL_PARTS)
# The embedded default corpus: the project's source and documentation, without number tables.
CORPUS := $(sort $(filter-out dev/text/unicode_table.h dev/text/nfc_table.h, \
            $(wildcard Makefile *.md *.c *.cu \
            data/*.md data/*.sh scripts/*.sh dev/*.md \
            $(foreach kind,md c h cu cuh mk,dev/*/*.$(kind)))))

# ---- detected libraries --------------------------------------------------------------------------
, := ,
ARCH ?= native
MARCH := $(if $(filter portable,$(ARCH)),,-march=$(ARCH))
MPICC ?= mpicc
ifeq ($(origin CXX),default) # the same OpenMP as CC's
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(CXX))
endif
# dev/build/configure.sh runs once, and again when one of these settings changes or one of these
# files appears or disappears: the name of its output contains their checksum.
SETTINGS := $(foreach name,CC CXX MARCH CFLAGS MPICC ONEDNN OPENMP MPI CPLUSPLUS NCCL WASM \
              ONEDNN_ROOT CUDA NCCL_ROOT CPATH LIBRARY_PATH, \
              $(if $(filter-out undefined,$(origin $(name))), \
              $(name)='$(subst ','\'',$($(name)))'))
LOOKED_AT := $(foreach dir,$(subst :, ,$(PATH)) /usr/local/cuda/bin /opt/cuda/bin,$(addprefix \
               $(dir)/,nvcc $(MPICC) $(CC) $(CXX))) $(foreach dir,/usr/include \
               /usr/local/include /usr/local/cuda/include $(addsuffix /include,$(ONEDNN_ROOT) \
               $(NCCL_ROOT) $(CUDA)) $(subst :, ,$(CPATH)),$(dir)/dnnl.h $(dir)/nccl.h) \
               /usr/lib/llvm-*/lib/clang/*/include/omp.h \
               /usr/include/wasm32-wasi/stdio.h /usr/bin/clang /usr/bin/wasm-ld \
               /usr/lib/llvm-*/lib/clang/*/lib/wasi
SUM := $(shell { printf '%s\n' $(SETTINGS) '$(wildcard $(LOOKED_AT))'; uname -n; \
         cat dev/build/configure.sh; } | cksum; env -u OMP_NUM_THREADS nproc || echo 1)
CONFIG := $(BUILD)/config-$(firstword $(SUM)).mk
ifeq ($(shell test -e $(CONFIG) && echo 1),)
_ := $(shell mkdir -p $(BUILD) && $(SETTINGS) dev/build/configure.sh >$(CONFIG).$$$$ && \
       mv $(CONFIG).$$$$ $(CONFIG))
endif
include $(CONFIG)

# One job per core by default; -j on the command line wins. `make clean all` runs in order.
JOBS := $(lastword $(SUM))
ifeq ($(filter clean,$(MAKECMDGOALS))$(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS)
endif

# ---- flags ---------------------------------------------------------------------------------------
USE_SANITIZERS := $(filter 1,$(SANITIZE) $(FUZZ))
USE_FUZZER := $(filter 1,$(FUZZ))# set by dev/fuzz/run.sh
WERROR_FLAG := $(if $(filter 1,$(WERROR)),-Werror)
WARNINGS := -Wall -Wextra $(WERROR_FLAG)
C_WARNINGS := -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# The compiler may fuse multiply and add, and ignore floating-point traps and errno. It may not
# reorder sums, so they are computed in the order of the source.
# -O3 for kernels only, and debug information without variables (CFLAGS=-g adds them): a build takes
# a fifth less time.
OPTIMISE = $(if $(findstring dev/cpu/,$@),-O3,-O2) -g1 -ffp-contract=fast -fno-math-errno \
           -fno-trapping-math
PARALLEL := $(if $(USE_OPENMP),-fopenmp)
SANITIZERS := $(if $(USE_SANITIZERS),-fsanitize=address$(,)undefined -fno-sanitize-recover=all \
                -fno-omit-frame-pointer $(if $(USE_FUZZER),-O2,-O1) -Wno-pass-failed) \
              $(if $(USE_FUZZER),-fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp)
DEFINES := -D_GNU_SOURCE -DVERSION='"$(VERSION)"'
C_FLAGS = -std=c17 $(OPTIMISE) $(MARCH) $(WARNINGS) $(C_WARNINGS) \
          $(or $(PARALLEL),-fopenmp-simd -Wno-unknown-pragmas) $(SANITIZERS) $(CFLAGS)

# Everything is built twice: `real` is float (with oneDNN) or double (for gradient checks).
SUFFIX := $(if $(USE_FUZZER),-fuzz,$(if $(USE_SANITIZERS),-sanitize))$(if $(USE_OPENMP),,-serial)
FLOAT := $(BUILD)/float$(SUFFIX)$(if $(USE_ONEDNN),-onednn)
DOUBLE := $(BUILD)/double$(SUFFIX)
# The compile commands of each build, and the libraries that its programs are linked with.
COMPILE = $(CC) $(DEFINES) $(INCLUDES) $(CPPFLAGS) $(C_FLAGS)
COMPILE_DOUBLE = $(COMPILE) -DREAL_IS_DOUBLE
COMPILE_FLOAT = $(COMPILE) $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS))
# Only the trainers need MPI.
LINK_MPI := $(if $(USE_MPI),-Wl$(,)--as-needed $(MPI_LIBS) -Wl$(,)--no-as-needed)
LIBS_DOUBLE := $(LDFLAGS) $(LINK_MPI) $(LDLIBS) -lm
LIBS_FLOAT := $(LDFLAGS) $(LINK_MPI) $(if $(USE_ONEDNN),$(ONEDNN_LIBS)) $(LDLIBS) -lm

# ---- rules ---------------------------------------------------------------------------------------
.PHONY: all run bench clean help detected always
DATA_SETS := data/wikitext2 data/wikitext2-bert data/wikitext2-words data/tinyshakespeare \
             data/multi30k data/multi30k-de data/linux
.PHONY: $(PROGRAMS) $(TRAINER_TESTS) $(DATA_SETS)
.SECONDARY:
all: $(PROGRAMS)

include $(addprefix dev/build/,rules.mk wasm.mk cuda.mk $(if $(MARCH),,portable.mk) package.mk \
          fuzz.mk test.mk lint.mk)

# Tests of the double build contain the path of the float build (dev/build/rules.mk).
FLOAT_BUILD := -DFLOAT_BUILD='"$(abspath $(FLOAT))"'
$(eval $(call programs,$(FLOAT),FLOAT))
$(eval $(call programs,$(DOUBLE),DOUBLE))
$(eval $(call remember,$(BUILD)/corpus.list,CORPUS))
$(BUILD)/corpus.txt: $(CORPUS) $(BUILD)/corpus.list
	@mkdir -p $(@D); cat $(CORPUS) >$@

detected:
	@echo '$(subst ','\'',$(DETECTED))' | fold -s

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# Programs are copied here from the last build, so each make compares them. A trainer's test comes
# from the double build; it runs the float build for -p float and -p bf16.
copy = @cmp -s $< "$(HERE)/$@" || cp -f $< "$(HERE)/$@"
$(PROGRAMS): %: $(FLOAT)/bin/% | detected
	$(copy)
$(TRAINER_TESTS): %: $(DOUBLE)/bin/% $(FLOAT)/bin/%
	$(copy)

# Trains for less than a minute on the project's own source, then prints a sample.
shown = echo '$(1)' && $(1)
FIRST := ./train_fastformer -o runs/first --preset hybrid --dropout 0 --minutes 0.75 -v 100
run: train_fastformer
	@cd "$(HERE)" && if [ -e runs/first/log.jsonl ]; then $(call shown,$(FIRST) -y); \
	else $(call shown,$(FIRST)); fi && \
	$(call shown,./train_fastformer -e runs/first --prompt "static void " -g 400 --temperature 0.7)

$(DATA_SETS): data/%: tokenize
	sh data/$*.sh

bench: $(BENCHES:%=$(FLOAT)/bench/%)

BUILT := $(PROGRAMS) $(TRAINER_TESTS) $(CUDA_TRAINERS) $(CUDA_TESTS)
clean:
	rm -rf $(or $(filter build,$(BUILD)),$(addprefix $(BUILD)/,float float-* double double-* \
	    config-*.mk corpus.* package static share dist) $(LINK))
	cd "$(HERE)" && rm -f $(BUILT)
endif
