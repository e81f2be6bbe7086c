#include "embed.h"
#include "page_model.h"

EMBED(decoder_wasm, WASM_FILE); // built by make

Text page_wasm(void) {
    return EMBEDDED(decoder_wasm);
}
