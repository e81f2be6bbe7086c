// Unicode's normalization form C (Unicode Standard Annex 15): characters decomposed canonically,
// marks in canonical order, then composed.
#ifndef TEXT_NFC_H
#define TEXT_NFC_H

#include "text.h"

// A text in normal form, fresh memory; NULL: it is so already. Bytes that are not UTF-8 stay.
char *nfc_normalise(Text text, size_t *size);

#endif
