// Unicode's normalization form C (Unicode Standard Annex 15): decomposes characters canonically,
// puts marks in canonical order, and composes.
#ifndef TEXT_NFC_H
#define TEXT_NFC_H

#include "text.h"

// Returns a text in normal form in new memory, or NULL if it already is. Bytes that are not UTF-8
// stay.
char *nfc_normalise(Text text, size_t *size);

#endif
