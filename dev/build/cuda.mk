# GPU programs: X.cu becomes Xcu, compiled by nvcc, or by a C++ compiler for the emulator, which
# runs them on the CPU for tests. They link the CPU models.
CUDA_TRAINERS := $(addsuffix cu,$(call names,train_*.cu dev/*/train_*.cu))
CUDA_TESTS := $(addsuffix cu,$(call names,dev/*/test_*.cu))
.PHONY: $(CUDA_TRAINERS) $(CUDA_TESTS)

CUDA_ARCHS ?= 80 90 100
CUDA_FLAGS := -std=c++17 -D_GNU_SOURCE -Drestrict=__restrict__ $(INCLUDES) -Idev/cuda
# Code for each architecture, and PTX of the last one for later GPUs. Code for sm_90 uses
# instructions that no other architecture has, so it has no such PTX.
gencode = -gencode arch=compute_$(1)$(,)code=$(2)_$(1)
GENCODE := $(foreach arch,$(CUDA_ARCHS:90=90a),$(call gencode,$(arch),sm)) \
           $(foreach arch,$(filter-out 90,$(lastword $(CUDA_ARCHS))), \
             $(call gencode,$(arch),compute)) \
           $(if $(filter 90,$(CUDA_ARCHS)),-DCUDA_WARPGROUPS)
COMPILE_NVCC := $(CUDA)/bin/nvcc $(CUDA_FLAGS) $(if $(filter 1,$(QUICK)),$(NVCC_QUICK),-O3) \
                --threads 0 -Xcompiler -Wall$(,)-Wextra $(WERROR_FLAG:%=% all-warnings) $(GENCODE)
COMPILE_EMULATED := $(CXX) -x c++ $(CUDA_FLAGS) -DCUDA_ON_CPU -g1 -O2 $(WARNINGS) \
                    -Wno-unknown-pragmas $(PARALLEL) $(SANITIZERS)
LIBS_EMULATED := $(LIBS_FLOAT)
LIBS_NVCC := $(LIBS_FLOAT) $(if $(USE_NCCL),$(NCCL_LIBS)) -L$(CUDA)/lib64 \
             -Wl$(,)-rpath$(,)$(CUDA)/lib64 -lcublasLt -lcudart_static -lpthread -ldl -lrt
# The source that sums gradients over ranks on a GPU (dev/cuda/device_ranks.cuh).
REDUCTION_NVCC := $(if $(USE_NCCL),nccl,by_host)
REDUCTION_EMULATED := $(if $(and $(USE_MPI),$(NCCL_EMULATED)),nccl,by_host)

define cuda_programs # $(1) directory, $(2) NVCC or EMULATED
$(call objects,$(1),cu,$(2))
$(call remember,$(1)/linked,LIBS_$(2))
$(1)/bin/%cu: $(1)/%.o $(FLOAT)/lib.a $(1)/linked
	$$(call link,$$(CXX) $$(PARALLEL) $$(SANITIZERS),$$(LIBS_$(2)))
$(CUDA_TESTS:%=$(1)/bin/%): $(MODEL_TEST:%=$(FLOAT)/dev/test/%.o)
$(call remember,$(1)/reduction,REDUCTION_$(2))
$(CUDA_TESTS:%=$(1)/bin/%) $(TRAINERS:%=$(1)/bin/%cu): $(1)/reduction \
    $(1)/dev/cuda/$(REDUCTION_$(2)).o
$(1)/dev/cuda/nccl.o: ONLY_HERE = $(if $(filter NVCC,$(2)),$(NCCL_FLAGS),$$(MPI_FLAGS))
$(TRAINERS:%=$(1)/bin/%cu) $(TRAINERS:train_%=$(1)/bin/test_%cu): $(1)/dev/cuda/attention.o \
    $(1)/dev/cuda/transformer.o
# A GPU program links the CPU model. A model's test links the GPU program.
$(TRAINERS:%=$(1)/bin/%cu): $(1)/bin/%cu: $(FLOAT)/host/%.o \
    $(if $(USE_MPI),$(FLOAT)/dev/ranks/mpi.o)
$(TRAINERS:train_%=$(1)/bin/test_%cu): $(1)/bin/test_%cu: $(1)/train_%.o $(FLOAT)/host/train_%.o
endef
$(eval $(call cuda_programs,$(FLOAT)/emulated,EMULATED))
ifneq ($(CUDA),)
$(eval $(call cuda_programs,$(FLOAT)/cuda,NVCC))
endif

$(CUDA_TRAINERS) $(CUDA_TESTS): %: $(if $(CUDA),$(FLOAT)/cuda/bin/%) | detected
	$(if $(CUDA),$(copy),@echo "$@ needs CUDA: install the CUDA toolkit 12.8 or newer with cuBLAS \
	(nvcc was not found; say CUDA=DIR where it is)" >&2; exit 1)
