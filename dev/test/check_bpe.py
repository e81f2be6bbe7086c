#!/usr/bin/env python3
"""Byte-level BPE beside Hugging Face's tokenizers library (pip install tokenizers).

    dev/test/check_bpe.py --write                  makes dev/test/bpe, which test_bpe checks without Python
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
    """A small text with everything in it, the library's tokenizer of it, and its tokens."""
    # Without the special token, which the library would learn from as from any text.
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
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        unicode = os.path.join(directory, "random Unicode")
        with open(unicode, "w", encoding="utf8", newline="") as file:
            file.write(random_unicode(3, 1000000))
        for path in [unicode] + sys.argv[2:]:
            compare(os.path.abspath(sys.argv[1]), path, directory)
    print("equal")


if __name__ == "__main__":
    main()
