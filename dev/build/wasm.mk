# The decoder in a run's page (dev/page) as compressed WebAssembly: the part of the library that the
# page's exports reach. Without the tools for it the file is empty, and pages have no model.

WASM_SOURCES := dev/page/wasm.c $(filter-out dev/base/file.c dev/base/process.c dev/base/stop.c \
                  dev/base/threads.c dev/data/corpus.c dev/trainer/page_model.c \
                  dev/trainer/page_wasm.c dev/trainer/presets.c dev/trainer/run_page.c \
                  dev/trainer/settings.c dev/trainer/verify.c dev/ranks/ranks.c dev/fastformer/exchange.c, \
                  $(LIBRARY_SOURCES)) \
                $(foreach model,$(MODELS),$(wildcard train_$(model).c dev/$(model)/train_$(model).c))
WASM_FLAGS := --target=wasm32-wasi -msimd128 -include dev/page/wasi.h -D_WASI_EMULATED_SIGNAL \
              -D_WASI_EMULATED_MMAN -D_WASI_EMULATED_GETPID -D_WASI_EMULATED_PROCESS_CLOCKS
COMPILE_WASM := clang $(WASM_FLAGS) $(DEFINES) -DTESTING $(INCLUDES) -std=c17 $(OPTIMISE) \
                $(WARNINGS) $(C_WARNINGS) -Wno-unused-parameter -Wno-unknown-pragmas -Wno-pass-failed \
                -fopenmp-simd
$(eval $(call objects,$(BUILD)/wasm,c,WASM))

.PHONY: wasm
wasm: $(BUILD)/decoder.wasm.gz
	@[ -s $< ] || { echo 'wasm: needs clang, lld, wasi-libc and libclang-rt-dev-wasm32' >&2; exit 1; }

ifneq ($(USE_WASM),)
$(BUILD)/decoder.wasm.gz: $(WASM_SOURCES:%.c=$(BUILD)/wasm/%.o) dev/page/absent.txt
	$(call say,WASM)
	$(Q)clang $(WASM_FLAGS) -mexec-model=reactor -Wl,--strip-all -Wl,-z,stack-size=1048576 \
	    -Wl,--allow-undefined-file=dev/page/absent.txt $(filter %.o,$^) -lwasi-emulated-signal \
	    -lwasi-emulated-mman -o $(@:.gz=) && gzip -9nf $(@:.gz=)
else
$(BUILD)/decoder.wasm.gz: $(CONFIG)
	@mkdir -p $(@D); : >$@
endif
