#!/usr/bin/env python3
"""Writes the seeds that programs make, into dev/fuzz/corpus: needed again when a format changes. The others are written
by hand, or were found by the fuzzer. Needs ./train_fastformer, ./tokenize and SentencePiece's spm_train.
"""

import argparse
import os
import shutil
import subprocess
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
CORPUS = os.path.join(ROOT, "dev/fuzz/corpus")
TEXT = os.path.join(ROOT, "dev/test/texts/shakespeare.txt")


def run(*command):
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def seed(name, content):
    with open(os.path.join(CORPUS, name), "wb") as file:
        file.write(content)


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def checkpoints(directory):
    """Writes checkpoints with a vocabulary of four words, as in fuzz_checkpoint.c."""
    text = write(f"{directory}/text", b"one\none two\none\ntwo\ntwo one one\none two one\ntwo two one two one\n")
    data = f"{directory}/data"
    run("./tokenize", "-o", data, "--tokenizer", "word", "--train", text, "--val", text, "--test", text)
    write(f"{data}/tokenizer.vocab", b"<eos>\n<unk>\none\ntwo\n")
    for name, options in (
        ("one_layer", "-L 1 -C 4 -H 1"),
        ("two_layers", "-L 2 -C 4 -H 2 --windows 4,global --pool raw --sink 1"),
    ):
        output = f"{directory}/{name}"
        run("./train_fastformer", "-i", data, "-o", output, *"-b 1 -t 8 -x 1 -p fp32".split(), *options.split())
        shutil.copy(f"{output}/step_00000001.safetensors", f"{CORPUS}/checkpoint/valid_{name}")
    seed("log/valid_run", read(directory, "one_layer/log.jsonl"))
    seed("safetensors/valid_weights", read(CORPUS, "checkpoint/valid_one_layer"))
    seed("shard/valid_uint16", read(data, "train_000000.bin"))


def sentencepiece(directory):
    """Writes a model with a small vocabulary, without the table of its normaliser."""
    text = write(f"{directory}/text", read(TEXT)[:3000])
    options = "vocab_size=400 model_type=bpe byte_fallback=true character_coverage=1.0 pad_id=0 eos_id=1 unk_id=2 "
    options += "bos_id=-1 hard_vocab_limit=false normalization_rule_name=identity minloglevel=2"
    run("spm_train", f"--input={text}", f"--model_prefix={directory}/spm", *(f"--{o}" for o in options.split()))
    seed("sentencepiece/valid_bpe", read(directory, "spm.model"))


LEVEL = '{"type":"ByteLevel","add_prefix_space":false}'
SPLIT = (
    r"""{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"""
    r""" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false}"""
)
TEMPLATE = (
    '{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<e>"}},{"Sequence":{"id":"A"}}],'
    '"special_tokens":{"<e>":{"ids":[0]}}}'
)
VOCABULARY = (
    '{"<e>":0,"a":1,"b":2,"Ġ":3,"1":4,"ab":5,"Ġab":7,"Ã":8,"©":9,"e":10,"Ì":11,"ģ":12},"merges":["a b",["Ġ","ab"]]'
)


def small_bpe(name, pre_tokenizer, post_processor, normalizer, added, text):
    """Writes a tokenizer of a few tokens and a text."""
    tokenizer = (
        f'{{"added_tokens":[{{"id":0,"content":"<e>","special":true}}{added}],"normalizer":{normalizer},'
        f'"pre_tokenizer":{pre_tokenizer},"post_processor":{post_processor},"decoder":{{"type":"ByteLevel"}},'
        f'"model":{{"type":"BPE","ignore_merges":true,"vocab":{VOCABULARY}}}}}'
    )
    seed(f"bpe/{name}", tokenizer.encode() + b"\0" + text)


def byte_level_bpe(directory):
    """Writes a trained tokenizer with a text that is not all UTF-8; Llama 3's form with added
    tokens of all flags, a hole and a template; Digits; a prefix; missing bytes."""
    text = write(f"{directory}/text", read(TEXT)[:3000])
    run("./tokenize", "-o", f"{directory}/bpe", "--tokenizer", "bpe", "--vocab-size", "280", text)
    example = b"\0Two commands <|endoftext|> on any\377\303 line  it's 12\n"
    seed("bpe/valid_bpe", read(directory, "bpe/tokenizer.json") + example)
    small_bpe(
        "valid_llama3",
        '{"type":"Sequence","pretokenizers":[' + SPLIT + ',{"type":"ByteLevel","use_regex":false}]}',
        '{"type":"Sequence","processors":[' + LEVEL + "," + TEMPLATE + "]}",
        '{"type":"NFC"}',
        ',{"id":20,"content":"<l>","lstrip":true,"rstrip":true}'
        ',{"id":21,"content":"ba","single_word":true,"normalized":true}',
        "a <l> ab111ab<e>ba e\u0301".encode(),
    )
    digits = '{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},' + LEVEL + "]}"
    small_bpe("valid_digits", digits, "null", "null", "", b"a11 ab 1")
    small_bpe(
        "valid_prefix",
        '{"type":"ByteLevel","add_prefix_space":true}',
        '{"type":"RobertaProcessing","cls":["<e>",0],"sep":["a",1]}',
        '{"type":"Sequence","normalizers":[]}',
        "",
        b"ab<e>ab",
    )


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as directory:
        checkpoints(directory)
        sentencepiece(directory)
        byte_level_bpe(directory)


if __name__ == "__main__":
    main()
