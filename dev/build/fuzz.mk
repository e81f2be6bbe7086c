# Fuzz targets, with libFuzzer (FUZZ=1, set by dev/fuzz/run.sh) or replaying a corpus. Their harness
# replaces the C library's memory and file functions.
FUZZ_TARGETS := $(patsubst fuzz_%,%,$(call names,dev/fuzz/fuzz_*.c))
WRAPPED := malloc calloc realloc reallocarray aligned_alloc free vasprintf mmap munmap exit open \
           close pipe2 stat lstat fstat pread write scandir fsync unlink rename
FUZZ_HARNESS := harness memory_blocks memory_files
$(FLOAT)/fuzz/%: $(FLOAT)/dev/fuzz/fuzz_%.o $(FUZZ_HARNESS:%=$(FLOAT)/dev/fuzz/%.o) $(FLOAT)/lib.a \
                 $(FLOAT)/linked
	$(call link,$(CC) $(C_FLAGS) $(if $(USE_FUZZER),-fsanitize=fuzzer) \
	    $(WRAPPED:%=-Wl$(,)--wrap=%),$(LIBS_FLOAT))
$(FUZZ_TARGETS:%=$(FLOAT)/fuzz/%): $(if $(USE_FUZZER),,$(FLOAT)/dev/fuzz/replay.o)
ifneq ($(USE_FUZZER),) # clang takes minutes for this one with sanitizers, and it reads no input
$(FLOAT)/dev/cpu/additive_attention.o: ONLY_HERE = -fno-sanitize=all
# The harness is not under test, and takes much of the time of an execution.
$(FUZZ_HARNESS:%=$(FLOAT)/dev/fuzz/%.o): ONLY_HERE = -fno-sanitize=undefined,fuzzer-no-link
endif
$(addprefix $(FLOAT)/fuzz/,checkpoint config options): $(FLOAT)/host/train_fastformer.o
