#!/usr/bin/env python3
"""Writes dev/text/nfc_table.h: what Unicode's normalization form C needs.

    pip install unicodedata2==16.0.0 tokenizers
    python3 dev/tools/nfc_table.py > dev/text/nfc_table.h

Of Unicode 10, as the normalizer of the tokenizers library (0.23) has it: later marks and pairs are none there.
"""
import unicodedata2
from tokenizers.normalizers import NFC

library = NFC()
composed, decomposed, marks = [], [], []
for code in range(0x80, 0x110000):
    c = chr(code)
    parts = unicodedata2.decomposition(c).split()
    if parts and parts[0][0] != "<":
        both = [int(part, 16) for part in parts]
        stays = unicodedata2.normalize("NFC", c) == c
        if not stays or library.normalize_str("".join(map(chr, both))) == c:
            (composed if stays else decomposed).append("{%d,%d,%d}," % (code, *(both + [0])[:2]))
    combining = unicodedata2.combining(c)
    if not combining:
        continue
    # A mark that the library knows moves before one of a larger class, or after one of a smaller.
    known = any(library.normalize_str(text) != text for text in ("q\u0345" + c, "q" + c + "\u0334"))
    if known or combining in (1, 240):
        if marks and marks[-1][1] == code - 1 and marks[-1][2] == combining:
            marks[-1][1] = code
        else:
            marks.append([code, code, combining])

print("// Made by dev/tools/nfc_table.py: do not edit.\n// clang-format off")
for comment, name, rows in [
        ("Characters and the two that they are composed of.", "Composition composed", composed),
        ("Those that are never composed; second 0: one character replaces another.", "Composition decomposed", decomposed),
        ("Marks: first and last code point, combining class.", "Marks marks", ["{%d,%d,%d}," % tuple(m) for m in marks])]:
    print(f"// {comment}\nstatic const {name}[] = {{")
    line = ""
    for row in rows:
        if len(line) + len(row) > 98:
            print(line)
            line = ""
        line += row
    print(line + "\n};")
