# make test: the programs and scripts that it runs.
TESTS := $(call names,dev/test/test_*.c)
# QUICK=1 and SANITIZE=1 follow a plain make test and skip what would be the same there: scripts
# that use none of our programs, build their own or count threads, which ThreadSanitizer watches,
# and, with QUICK=1, the double build.
ONLY_PLAIN := test_build test_gpu_check test_plain test_scripts test_threads
TEST_SCRIPTS := $(filter-out \
                  $(if $(filter 1,$(SANITIZE) $(QUICK)),$(ONLY_PLAIN:%=dev/test/%.sh)) \
                  $(if $(filter 1,$(QUICK)),dev/test/test_ranks.sh),$(wildcard dev/test/test_*.sh))
# Tests that check derivatives and exact algebra run in double as well.
DOUBLE_TESTS := test_layers test_blocks test_gemm test_decode test_classifier test_attention \
                test_additive_global test_muon test_parts test_tile
# Tests of code that uses AMX instructions, which dev/emulator/amx_in_c.h computes in C: objects
# compiled that way replace the library's.
AMX_TESTS := test_tile test_classifier test_attention test_gemm
AMX_PARTS := amx classifier_amx softmax_attention_amx
COMPILE_AMX = $(COMPILE_FLOAT) -DAMX_IN_C
$(eval $(call objects,$(FLOAT)/amx,c,AMX))
$(FLOAT)/amx/test/%: $(FLOAT)/dev/test/%.o $(FLOAT)/dev/test/test.o \
                     $(AMX_PARTS:%=$(FLOAT)/amx/dev/cpu/%.o) $(FLOAT)/lib.a $(FLOAT)/linked
	$(call link,$(CC) $(C_FLAGS),$(LIBS_FLOAT))

# Under sanitizers, the double build is tested only where its code differs: vectors and built-in
# products. These tests link the float build's library, as the rest is the same source.
DOUBLE_PARTS := arena gemm gemm_builtin
$(DOUBLE)/parts/test/%: $(DOUBLE)/dev/test/%.o $(FLOAT)/dev/test/test.o \
                        $(DOUBLE_PARTS:%=$(DOUBLE)/dev/cpu/%.o) $(FLOAT)/lib.a $(FLOAT)/linked
	$(call link,$(CC) $(C_FLAGS),$(LIBS_FLOAT))
IN_DOUBLE := $(if $(USE_SANITIZERS),$(addprefix $(DOUBLE)/parts/test/,test_gemm test_tile), \
               $(if $(filter 1,$(QUICK)),, \
                 $(TRAINER_TESTS:%=$(DOUBLE)/bin/%) $(DOUBLE_TESTS:%=$(DOUBLE)/test/%)))

# The longest first. Under sanitizers, only the model with most parts runs on the emulated GPU.
EMULATED_TESTS := $(if $(USE_SANITIZERS),test_layerscu test_attentioncu test_translatecu, \
                    $(CUDA_TESTS))
TEST_PROGRAMS := $(if $(USE_CPLUSPLUS),$(EMULATED_TESTS:%=$(FLOAT)/emulated/bin/%)) $(IN_DOUBLE) \
                 $(TRAINER_TESTS:%=$(FLOAT)/bin/%) $(TESTS:%=$(FLOAT)/test/%) \
                 $(if $(USE_AMX),$(AMX_TESTS:%=$(FLOAT)/amx/test/%)) \
                 $(FUZZ_TARGETS:%=$(FLOAT)/fuzz/%)
# For test_ranks.sh: the trainers (double, except under sanitizers), and an emulated GPU trainer.
RANKS_TRAINERS := $(if $(USE_SANITIZERS),$(FLOAT),$(DOUBLE))/bin
ON_EMULATOR := $(if $(and $(USE_CPLUSPLUS),$(USE_MPI)),$(FLOAT)/emulated/bin/train_gpt2cu)
.PHONY: test
test: $(PROGRAMS:%=$(FLOAT)/bin/%) \
      $(if $(filter %/test_ranks.sh,$(if $(USE_MPI),$(TEST_SCRIPTS))), \
        $(TRAINERS:%=$(RANKS_TRAINERS)/%)) \
      $(ON_EMULATOR) $(TEST_PROGRAMS) | detected
	@TRAINER=$(FLOAT)/bin/train_fastformer GPT2=$(FLOAT)/bin/train_gpt2 \
	BERT=$(FLOAT)/bin/train_bert TRANSLATE=$(FLOAT)/bin/train_translate \
	TOKENIZE=$(FLOAT)/bin/tokenize TRAINERS=$(RANKS_TRAINERS) ON_EMULATOR=$(ON_EMULATOR) \
	QUICK=$(filter 1,$(SANITIZE) $(QUICK)) TOOK=$(FLOAT)/test.seconds \
	JOBS=$(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))) \
	dev/test/run.sh $(TEST_SCRIPTS) $(TEST_PROGRAMS)
