# ARCH=portable: kernels are compiled for several instruction levels, the best first, and for the
# baseline. Machines other than x86-64 have only the baseline.
march_avx512_bf16 := x86-64-v4 -mavx512bf16
march_avx512 := x86-64-v4
march_avx2 := x86-64-v3
LEVELS := $(if $(filter x86_64%,$(MACHINE)),avx512_bf16 avx512 avx2)

# The parts of a program that are built per level (dev/cpu, the models and its main) are one object,
# in which all names but two are local.
define compiled_for # $(1) its name
COMPILE_$(1) = $$(COMPILE_FLOAT) -march=$$(march_$(1))
LIBS_$(1) := $$(LIBS_FLOAT)
$(call programs,$(FLOAT)/$(1),$(1))
$(FLOAT)/$(1)/whole/%.o: $(FLOAT)/$(1)/%.o $(FLOAT)/$(1)/dev/cpu/processor.o $(FLOAT)/$(1)/lib.a
	$$(call link,$$(CC) -r -nostdlib)
	$$(Q)$$(OBJCOPY) $$(foreach name,main processor_lacks,--redefine-sym $$(name)=$$(name)_$(1) \
	    --keep-global-symbol=$$(name)_$(1)) $$@
endef
ifneq ($(LEVELS),)
$(foreach level,$(LEVELS),$(eval $(call compiled_for,$(level))))
$(PROGRAMS:%=$(FLOAT)/bin/%) $(FLOAT)/bin/fastformer: $(FLOAT)/bin/%: \
    $(foreach level,$(LEVELS),$(FLOAT)/$(level)/whole/%.o) $(FLOAT)/dev/start/choose.o
$(FLOAT)/dev/start/choose.o: ONLY_HERE = -DLEVELS='${LEVELS:%=LEVEL(%)}'
$(FLOAT)/dev/start/choose.o: $(FLOAT)/levels
$(eval $(call remember,$(FLOAT)/levels,LEVELS))
endif
