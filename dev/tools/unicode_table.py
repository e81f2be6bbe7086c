#!/usr/bin/env python3
"""Writes dev/text/unicode_table.h: the kinds of characters that the patterns of byte-level BPE ask for.

    pip install unicodedata2==16.0.0
    python3 dev/tools/unicode_table.py > dev/text/unicode_table.h

Unicode 16.0, as in the regular expressions of the tokenizers library (0.23), where \\s is the property White_Space.
"""
import unicodedata2

WHITE_SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


# Other_Alphabetic other than marks, and Join_Control.
OTHER_WORDLY = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A),
                0x200C, 0x200D}


def kind(code):
    category = unicodedata2.category(chr(code))
    if code in WHITE_SPACE:
        return "S"
    if category in ("No", "Pc") or code in OTHER_WORDLY:
        return "F" if category == "No" else "W"
    return {"L": "L", "N": "N", "M": "W"}.get(category[0])


ranges = []
for code in range(0x80, 0x110000):
    if kind(code) is None:
        continue
    if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == kind(code):
        ranges[-1][1] = code
    else:
        ranges.append([code, code, kind(code)])

print(f"""// Made by dev/tools/unicode_table.py: do not edit.
//
// Letters (L), numbers that \\w has (N) and others (F), white space (S), and what else \\w has (W),
// of Unicode {unicodedata2.unidata_version} beyond ASCII: first and last code point, ascending.
// clang-format off""")
items = [f"{{0x{first:x}, 0x{last:x}, {name}}}," for first, last, name in ranges]
line = ""
for item in items:
    if len(line) + 1 + len(item) > 98:
        print(line)
        line = item
    else:
        line = f"{line} {item}".strip()
print(line)
