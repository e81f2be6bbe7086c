#!/usr/bin/env python3
"""Byte-level BPE compared with Hugging Face's tokenizers library (pip install tokenizers unicodedata2).

    dev/test/check_bpe.py --write                  makes dev/test/bpe, which test_bpe checks without Python
    dev/test/check_bpe.py --write-forms            makes dev/test/bpe/forms.json from the present results
    dev/test/check_bpe.py TOKENIZE TEXT...         compares training and encoding of each text by TOKENIZE
                                                   (./tokenize), and of random Unicode; says how fast both are
"""
import array
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import unicodedata2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bpe")
SPACES = "    \n\n\t\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u202f\u3000"
CONTRACTIONS = ["'s", "'d", "'m", "'t", "'ll", "'ve", "'re", "'S", "'", "''", "l've", " 's", "it's"]


def character(source):
    kind = source.random()
    if kind < 0.4:
        return chr(source.randrange(0x21, 0x7F))
    if kind < 0.6:
        return source.choice(SPACES)
    while True:
        code = source.randrange(1, source.choice([0x250, 0x3000, 0x10000, 0x20000, 0x110000]))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def random_unicode(seed, length):
    source = random.Random(seed)
    pieces = []
    while length > 0:
        word = source.choice(CONTRACTIONS) if source.random() < 0.1 else character(source) * source.choice([1, 1, 1, 2, 5])
        pieces.append(word)
        length -= len(word)
    return "".join(pieces)


# Forms of tokenizer.json, as replacements in dev/test/bpe/tokenizer.json. Each is also a row of
# forms.json with the library's tokens of a text, which test_bpe checks.
FLAGS = '"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}'
BYTE_LEVEL = '{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}'
PLAIN = BYTE_LEVEL.replace('"use_regex":true', '"use_regex":false')
SPLIT = '{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":%s},"behavior":"%s","invert":%s},' + PLAIN + "]}"
GPT4 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
QWEN2 = GPT4.replace("{1,3}", "")
PRE = '"pre_tokenizer":' + BYTE_LEVEL
TEMPLATE = ('{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>","type_id":0}},{"Sequence":'
            '{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],'
            '"special_tokens":{"<|endoftext|>":{"id":"<|endoftext|>","ids":[0],"tokens":["<|endoftext|>"]}}}')


def added(*tokens):
    """Returns the replacement that adds tokens 600, 601, ...; each is (content, flags that are
    true)."""
    text = FLAGS
    for i, (content, *flags) in enumerate(tokens):
        row = f',{{"id":{600 + i},"content":{json.dumps(content)},' + FLAGS.replace("true", "false")
        for flag in flags:
            row = row.replace(f'"{flag}":false', f'"{flag}":true')
        text += row
    return [FLAGS, text]


def digits(individual):
    step = '{"type":"Digits","individual_digits":%s}' % json.dumps(individual)
    return [PRE, '"pre_tokenizer":{"type":"Sequence","pretokenizers":[' + step + "," + BYTE_LEVEL + "]}"]


def split(pattern, behavior="Isolated", invert="false"):
    return [PRE, '"pre_tokenizer":' + SPLIT % (json.dumps(pattern), behavior, invert)]


FORMS = {
    "GPT-2": [],
    "Sequence of ByteLevel": [[PRE, '"pre_tokenizer":{"type":"Sequence","pretokenizers":[' + BYTE_LEVEL + "]}"]],
    "empty normalizer": [['"normalizer":null', '"normalizer":{"type":"Sequence","normalizers":[]}']],
    "GPT-4": [split(GPT4, "Removed", "true")],
    "Llama 3": [split(GPT4), ['"ignore_merges":false', '"ignore_merges":true'], ['"post_processor":null',
                '"post_processor":{"type":"Sequence","processors":[' + BYTE_LEVEL + "," + TEMPLATE + "]}"]],
    "Qwen 2": [split(QWEN2), ['"normalizer":null', '"normalizer":{"type":"NFC"}']],
    "digits": [digits(True)],
    "numbers": [digits(False)],
    "prefix": [['"add_prefix_space":false', '"add_prefix_space":true'], added(["<a>"])],
    "added": [added(["    "], ["<nl>"], ["<m>", "lstrip"], ["<r>", "rstrip"], ["<w>", "single_word"],
                    ["word", "single_word", "normalized"], ["<both>", "lstrip", "rstrip", "special"], ["<nl><nl>"],
                    ["d<nl", "normalized"], [" the", "normalized"], ["\u00e9t", "lstrip", "single_word"])],
    "around": [['"post_processor":null', '"post_processor":{"type":"RobertaProcessing","sep":["!",1],"cls":["<|endoftext|>",0],'
                '"trim_offsets":true,"add_prefix_space":false}']],
}
PIECES = ["'S", "'Re", "'\u017f", "'lL", "it'S", "1234567", " 12", "  3", "\u0663\u00bd\u2167", ".\n\n", " \n \n a", "\t\tb", "!\r\n",
          "\u00a0x", "    ", "     y", "<nl>", "<nl><nl>", " <m> ", "\n\t<m>", "<r>  \n z", "<w>", "a<w>", " <w>.", "word", " word ",
          "words", "  <both>  ", "<both><both>", "d<nl>", " the", " there", "\u00e9t", " \u00e9t ", "\u00e9t\u0301", "<a>", "<a> a",
          "<r> <m> <r>", "\u24b6word", "_word", "\u0301word\u0301", "x\u2167<w>", "x\u00bd<w>", "e\u0301", "q\u0323\u0307", "q\u0307\u0323",
          "\u1100\u1161\u11a8", "\uac00\u11a8", "\u212b", "\u0958", "\u0344", "\U0001d15e", "\u0bc6\u0bbe", ">\u0338"]


def forms_text(seed, length):
    source = random.Random(seed)
    pieces = []
    for _ in range(length):
        kind = source.random()
        pieces.append(source.choice(PIECES) if kind < 0.5 else
                      source.choice(CONTRACTIONS) if kind < 0.55 else character(source) * source.choice([1, 1, 1, 2, 5]))
    return "".join(c for c in "".join(pieces) if unicodedata2.category(c) != "Cn")


def every_character(first, end):
    """Returns every character of a range in several contexts; only those of Unicode 16, as parts of
    the library use different versions."""
    return "".join(f"'{c}'{c}e {c}a 1{c}{c}\n{c}. \n <w>{c} <m>{c}word{c}\n"
                   for c in map(chr, range(first, end)) if unicodedata2.category(c) not in ("Cn", "Cs"))


def form(base, replacements):
    for old, new in replacements:
        assert base.count(old) >= 1, old
        base = base.replace(old, new, 1)
    return base


def write_forms():
    base, rows = read(os.path.join(HERE, "tokenizer.json")), []
    for seed, (name, replacements) in enumerate(FORMS.items()):
        text = forms_text(seed, 300)
        ids = Tokenizer.from_str(form(base, replacements)).encode(text).ids
        rows.append({"name": name, "replace": replacements, "text": text, "ids": ids})
    with open(os.path.join(HERE, "forms.json"), "w", encoding="utf8", newline="") as file:
        file.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]\n")


def compare_forms(program, directory):
    """Compares random text and every character in each form, and the tokenizer.json that ./tokenize
    writes."""
    base = read(os.path.join(HERE, "tokenizer.json"))
    path, output, model = (os.path.join(directory, name) for name in ("forms", "output", "tokenizer.json"))
    for name, replacements in FORMS.items():
        with open(model, "w", encoding="utf8") as file:
            file.write(form(base, replacements))
        library = Tokenizer.from_file(model)
        ranges = [(1, 0x3000), (0x3000, 0xA000), (0xA000, 0x18000), (0x18000, 0x34000), (0xE0000, 0xE0200), (0x10FF00, 0x110000)]
        for text in [every_character(*part) for part in ranges] + [forms_text(name, 100000)]:
            with open(path, "w", encoding="utf8", newline="") as file:
                file.write(text)
            subprocess.run([program, "-o", output, "--model", model, "--train", path], check=True, stdout=subprocess.DEVNULL)
            ours, theirs = shard(os.path.join(output, "train_000000.bin")), library.encode(text).ids
            place = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            assert ours == theirs, (name, place, library.decode(theirs[place - 5:place + 5], skip_special_tokens=False),
                                    ours[place - 5:place + 5], theirs[place - 5:place + 5])
            again = Tokenizer.from_file(os.path.join(output, "tokenizer.json"))
            kept, written = json.loads(library.to_str()), json.loads(again.to_str())
            assert kept == written, {key: (kept[key], written[key]) for key in kept if kept[key] != written[key]}
        print(f"{name}: equal")


def read(path):
    with open(path, encoding="utf8", newline="") as file:
        return file.read()


def train(text, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def write():
    """Writes a small text with all kinds of characters, the library's tokenizer trained on it, and
    its tokens."""
    # Without the special token: the library would train on it as on any text.
    text = read(os.path.abspath(__file__)).replace("<|endoftext|>", "") + random_unicode(1, 6000) + "\n"
    os.makedirs(HERE, exist_ok=True)
    tokenizer = train(text, 600)
    tokenizer.save(os.path.join(HERE, "tokenizer.json"), pretty=False)
    marked = text + "a<|endoftext|> b<|endoftext|><|endoftext|>\n<|endoftext| >" + random_unicode(2, 1000) + "end\n"
    with open(os.path.join(HERE, "text.txt"), "w", encoding="utf8", newline="") as file:
        file.write(text)
    with open(os.path.join(HERE, "marked.txt"), "w", encoding="utf8", newline="") as file:
        file.write(marked)
    with open(os.path.join(HERE, "tokens.txt"), "w", encoding="utf8") as file:
        ids = tokenizer.encode(marked).ids
        for start in range(0, len(ids), 24):
            file.write(" ".join(map(str, ids[start:start + 24])) + "\n")
    write_forms()


def merges(path):
    with open(path, encoding="utf8") as file:
        model = json.load(file)["model"]
    return model["vocab"], [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]


def shard(path):
    with open(path, "rb") as file:
        return list(array.array("H", file.read()[1024:]))


def compare(program, path, directory):
    text, output, theirs = read(path), os.path.join(directory, "ours"), os.path.join(directory, "theirs.json")
    start = time.time()
    subprocess.run([program, "-o", output, "--train", path], check=True, stdout=subprocess.DEVNULL)
    print(f"{path}: {len(text.encode())} bytes, trained and encoded in {time.time() - start:.2f} s", end="")
    start = time.time()
    library = train(text, 8192)
    library.save(theirs)
    print(f"; the library trained in {time.time() - start:.2f} s", end="")
    assert merges(theirs) == merges(os.path.join(output, "tokenizer.json")), "training differs"
    tokenizer = Tokenizer.from_file(os.path.join(output, "tokenizer.json"))
    start = time.time()
    ids = tokenizer.encode(text).ids
    print(f" and encoded in {time.time() - start:.2f} s")
    assert ids == shard(os.path.join(output, "train_000000.bin")), "tokens differ"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    # The library's file, with merges as arrays.
    subprocess.run([program, "-o", output, "--model", theirs, "--train", path], check=True, stdout=subprocess.DEVNULL)
    assert ids == shard(os.path.join(output, "train_000000.bin")), "tokens of the library's tokenizer differ"


def main():
    if sys.argv[1:] == ["--write"]:
        return write()
    if sys.argv[1:] == ["--write-forms"]:
        return write_forms()
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        unicode = os.path.join(directory, "random Unicode")
        with open(unicode, "w", encoding="utf8", newline="") as file:
            file.write(random_unicode(3, 1000000))
        for path in [unicode] + sys.argv[2:]:
            compare(os.path.abspath(sys.argv[1]), path, directory)
        compare_forms(os.path.abspath(sys.argv[1]), directory)
    print("equal")


if __name__ == "__main__":
    main()
