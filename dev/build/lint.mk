# make lint: format check and static analysis. make format: formats the sources.
C_FILES := $(filter-out $(if $(USE_MPI),,dev/ranks/mpi.c dev/test/poison.c) \
             dev/page/wasm.c,$(filter %.c,$(CORPUS)))
SOURCES := $(filter %.c %.h %.cu %.cuh,$(CORPUS))
LINT_FLAGS := $(DEFINES) -DFLOAT_BUILD='""' -DCORPUS_FILE='""' -DWASM_FILE='""' \
              -DLEVELS='LEVEL(avx2)' -DPROGRAM_LIST='PROGRAM(train_gpt2)' $(INCLUDES) \
              $(filter -I%,$(MPI_FLAGS))
.PHONY: lint format
lint:
	clang-format --dry-run -Werror $(SOURCES)
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr --suppressions-list=.cppcheck \
	    -j $(JOBS) $(LINT_FLAGS) $(C_FILES)
	printf '%s\n' $(C_FILES) | xargs -P $(JOBS) -I {} clang-tidy --quiet {} -- $(LINT_FLAGS) \
	    $(if $(USE_ONEDNN),-DUSE_ONEDNN $(ONEDNN_FLAGS)) -std=c17 \
	    $(if $(filter 1,$(QUICK)),-Xclang -analyzer-config -Xclang max-nodes=10000)

format:
	clang-format -i $(SOURCES)
