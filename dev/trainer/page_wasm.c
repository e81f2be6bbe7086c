#include "embed.h"
#include "page_model.h"

EMBED(decoder_wasm, WASM_FILE); // which make has built

Text page_wasm(void) {
    return EMBEDDED(decoder_wasm);
}
