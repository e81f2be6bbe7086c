#!/usr/bin/env python3
"""Exchange of BERT with Hugging Face transformers, both ways, on small random models.

    python3 dev/bert/check_huggingface.py [TRAINER]      default: ./train_bert

Needs PyTorch, transformers and safetensors; not part of `make test`. In both programs the masks of a text must have the
same five best tokens with the same probabilities. Both compute in float32.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging

logging.disable_progress_bar()

WORDS = 60
LENGTH = 32  # T, and positions of the models
MASK = WORDS + 1
VOCABULARY = WORDS + 2  # <eos> is token 0
TOLERANCE = 2e-6  # of a probability, which is printed with six digits

TRAINER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "train_bert")
results = []


def report(name, passed, detail):
    results.append(passed)
    print(f"{'ok  ' if passed else 'FAIL'}  {name:50} {detail}", flush=True)


def run(*arguments):
    command = [TRAINER, *arguments, "-p", "fp32"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()


def write_shard(path, tokens):
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))


def write_data(directory):
    """Writes random words w1, w2, ..., and a mask token."""
    os.makedirs(directory)
    random = torch.Generator().manual_seed(1)
    for split, count in ("train", 20000), ("val", 1000):
        tokens = (torch.rand(count, generator=random) ** 3 * WORDS).long() + 1
        write_shard(f"{directory}/{split}_000000.bin", tokens.tolist())
    with open(f"{directory}/tokenizer.vocab", "w") as file:
        file.write("\n".join(["<eos>", *[f"w{i}" for i in range(1, WORDS + 1)], "[hidden]"]) + "\n")
    with open(f"{directory}/meta.json", "w") as file:
        meta = {"tokenizer": "word", "vocab_size": VOCABULARY, "pad": -1, "end": 0, "mask": MASK, "splits": {}}
        json.dump(meta, file)


TOKENS = [3, 17, MASK, 8, 1, 1, MASK, 40, 22, MASK]
TEXT = " ".join("[MASK]" if token == MASK else f"w{token}" for token in TOKENS)


def ours(weights, data):
    """Returns the five best tokens of each mask with their probabilities."""
    best = []
    for line in run("-e", weights, "-i", data, "--fill", TEXT, "-t", str(LENGTH), "-b", "1").splitlines():
        if line.startswith("[MASK]"):
            best.append([])
        else:
            probability, word = line.split()
            best[-1].append((json.loads(word), float(probability)))
    return best


def theirs(model):
    with torch.no_grad():
        probabilities = model(torch.tensor([TOKENS])).logits[0].float().softmax(-1)
    names = ["<eos>", *[f"w{i}" for i in range(1, WORDS + 1)], "[hidden]"]
    best = []
    for i, token in enumerate(TOKENS):
        if token == MASK:
            values, indices = probabilities[i].topk(5)
            best.append([(names[j], value) for j, value in zip(indices.tolist(), values.tolist())])
    return best


def compare(name, a, b):
    same = len(a) == len(b) and all(x[0] == y[0] for p, q in zip(a, b) for x, y in zip(p, q))
    error = max(abs(x[1] - y[1]) for p, q in zip(a, b) for x, y in zip(p, q))
    report(name, same and error <= TOLERANCE, f"{len(a)} masks, largest difference {error:.1e}")


def from_there(directory, data):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=LENGTH,
        initializer_range=0.3,
        pad_token_id=0,
    )
    torch.manual_seed(2)
    model = BertForMaskedLM(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    for dtype in torch.float32, torch.float16, torch.bfloat16:
        rounded = BertForMaskedLM(config).eval()
        rounded.load_state_dict({k: v.to(dtype).float() for k, v in model.state_dict().items()})
        expected = theirs(rounded)
        for names in "as saved", "old names":
            path = f"{directory}/{dtype}-{names.replace(' ', '-')}"
            rounded.to(dtype).save_pretrained(path)
            rounded.float()
            if names == "old names":  # no prefix, gamma and beta, and a tensor of another class
                tensors = {}
                for name, tensor in load_file(f"{path}/model.safetensors").items():
                    name = name.removeprefix("bert.")
                    if "LayerNorm" in name:
                        name = name.replace("weight", "gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                    tensors[name] = tensor
                tensors["pooler.dense.bias"] = torch.zeros(32)
                save_file(tensors, f"{path}/model.safetensors")
            compare(f"from there, {dtype}, {names}", ours(f"{path}/model.safetensors", data), expected)


def to_there(directory, data):
    path = f"{directory}/run"
    sizes = ["-L", "2", "-C", "32", "-H", "4", "-t", str(LENGTH), "-b", "8"]
    run("-i", data, "-o", path, *sizes, "-x", "30", "-l", "0.003")
    model = BertForMaskedLM.from_pretrained(path).eval()
    compare("to there, a trained model", ours(f"{path}/best.safetensors", data), theirs(model))


with tempfile.TemporaryDirectory() as temporary:
    write_data(f"{temporary}/data")
    from_there(temporary, f"{temporary}/data")
    to_there(temporary, f"{temporary}/data")
sys.exit(0 if all(results) else 1)
