# Rules for objects and programs: one directory for each way of compiling them.

Q := $(if $(V),,@)
# say: prints "[12/98] CC  FILE": the number of this step, and of all steps that were due when the
# first one started. A second make counts them without running them.
ifdef COUNTING
say = @echo counted
else
count = $(shell MAKEFLAGS= $(MAKE) -n --no-print-directory COUNTING=1 $(MAKEOVERRIDES) \
          $(MAKECMDGOALS) | grep -c '^echo counted')
step = $(eval STEPS += x)$(if $(TOTAL),,$(eval TOTAL := $(count)))[$(words $(STEPS))/$(TOTAL)]
say = @mkdir -p $(@D); echo '$(if $(findstring n,$(firstword -$(MAKEFLAGS))),,$(step)) $(1)  $@'
endif

define link # $(1) the compiler, $(2) libraries
$(call say,LINK)
$(Q)$(1) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(2)
endef

# A file that holds the value of a variable: its dependents are rebuilt when the value changes.
define remember # $(1) file, $(2) variable
ifneq ($$(strip $$(file <$(1))),$$(strip $$($(2))))
$(1): always
endif
$(1): export REMEMBERED = $$($(2))
$(1): ; @mkdir -p $$(@D); printf '%s\n' "$$$$REMEMBERED" >$$@

endef

define objects # $(1) directory, $(2) the sources' suffix, $(3) COMPILE_NAME compiles them
$(1)/%.o: %.$(2) $(1)/compiled
	$$(call say,$(if $(filter c,$(2)),CC,CUDA))
	$$(Q)$$(COMPILE_$(3)) $$(ONLY_HERE) -MMD -MP -c $$< -o $$@
$(call remember,$(1)/compiled,COMPILE_$(3))
-include $(wildcard $(1)/*.d $(1)/dev/*/*.d)
endef

# A portable program contains its kernels once per level, and everything else once.
for_level = $(if $(filter-out FLOAT DOUBLE,$(1)),$(2),$(3))
MODEL_TEST := model_test model_reference plain_model test
define programs # $(1) directory, $(2) FLOAT, DOUBLE or a level
$(call objects,$(1),c,$(2))
$(call remember,$(1)/linked,LIBS_$(2))
$(call remember,$(1)/library,LIBRARY_SOURCES)
$(1)/lib.a: $(patsubst %.c,$(1)/%.o,$(filter $(call for_level,$(2),dev/cpu/% $(MODEL_PARTS),%), \
              $(LIBRARY_SOURCES))) $(1)/library
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$(filter %.o,$$^)
$(1)/bin/%: $(1)/%.o $(1)/dev/start/refuse.o $(1)/lib.a $(1)/linked \
            $(call for_level,$(2),$(FLOAT)/lib.a)
	$$(call link,$$(CC) $$(C_FLAGS) $$(if $$(filter %/choose.o,$$^),-Wl$$(,)--wrap=main),$$(LIBS_$(2)))
$(1)/test/%: $(1)/dev/test/%.o $(1)/dev/test/test.o $(1)/lib.a $(1)/linked
	$$(call link,$$(CC) $$(C_FLAGS),$$(LIBS_$(2)))
$(1)/bench/%: $(1)/dev/bench/%.o $(1)/lib.a $(1)/linked
	$$(call link,$$(CC) $$(C_FLAGS),$$(LIBS_$(2)))
$(TRAINER_TESTS:%=$(1)/bin/%): $(MODEL_TEST:%=$(1)/dev/test/%.o)
# Replaces the library's dev/ranks/single.c; also in the benchmark with several processes.
$(if $(USE_MPI),$(TRAINERS:%=$(1)/bin/%) $(1)/bench/reduction: $(1)/dev/ranks/mpi.o)
$(1)/dev/ranks/mpi.o: ONLY_HERE = $$(MPI_FLAGS)
$(1)/dev/data/corpus.o: ONLY_HERE = -DCORPUS_FILE='"$(BUILD)/corpus.txt"'
$(1)/dev/data/corpus.o: $(BUILD)/corpus.txt
$(if $(filter DOUBLE,$(2)),,$(1)/dev/cpu/device.o: ONLY_HERE = \
    $$(if $$(LEVELS),-DINSTRUCTION_LEVELS='"$$(LEVELS)"'))
$(1)/dev/trainer/presets.o: $(wildcard scripts/presets/*.json)
$(1)/dev/trainer/run_page.o: dev/page/page.html dev/page/page.css dev/page/page.js
$(1)/dev/trainer/page_wasm.o: ONLY_HERE = -DWASM_FILE='"$(BUILD)/decoder.wasm.gz"'
$(1)/dev/trainer/page_wasm.o: $(BUILD)/decoder.wasm.gz
$(1)/dev/fastformer/exchange.o: dev/fastformer/modeling_fastformer.py
$(1)/dev/test/model_test.o: ONLY_HERE = $$(FLOAT_BUILD)
$(1)/dev/test/model_test.o: $(1)/float_build
$(call remember,$(1)/float_build,FLOAT_BUILD)
endef

# The CPU models without main, for GPU programs, benchmarks and fuzz targets.
COMPILE_HOST = $(COMPILE_FLOAT) -DTESTING
$(eval $(call objects,$(FLOAT)/host,c,HOST))
$(FLOAT)/bench/beyond: $(FLOAT)/host/train_fastformer.o $(FLOAT)/host/dev/gpt2/train_gpt2.o
