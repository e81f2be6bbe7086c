#!/usr/bin/env python3
"""Exchange of the encoder-decoder with Hugging Face transformers, both ways, on small random models.

    python3 dev/translate/check_huggingface.py [TRAINER]      default: ./train_translate

Needs PyTorch, transformers and safetensors; not part of `make test`. In both programs the validation loss of pairs and the
greedy translation of sentences must be the same. Both compute in float32.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import torch
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()

PADDING, END, WORDS = 0, 1, 60  # words are w2, w3, ...
VOCABULARY = WORDS + 2
LENGTH = 24  # maximum tokens of a sentence
TOLERANCE = 2e-6  # relative, of the loss

TRAINER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "train_translate")
results = []


def report(name, passed, detail):
    results.append(passed)
    print(f"{'ok  ' if passed else 'FAIL'}  {name:40} {detail}", flush=True)


def run(*arguments, text=""):
    command = [TRAINER, *arguments, "-p", "fp32"]
    return subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()


def write_data(directory, pairs):
    """Writes pairs of sentences: each source is followed by its target, and each of the two by
    END."""
    os.makedirs(directory)
    tokens = [token for pair in pairs for sentence in pair for token in [*sentence, END]]
    for split in "train", "val":
        with open(f"{directory}/{split}_000000.bin", "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    with open(f"{directory}/tokenizer.vocab", "w") as file:
        file.write("\n".join(["[PAD]", "<eos>", *[f"w{i}" for i in range(2, VOCABULARY)]]) + "\n")
    with open(f"{directory}/meta.json", "w") as file:
        meta = {"tokenizer": "word", "vocab_size": VOCABULARY, "pad": PADDING, "end": END, "paired": True}
        json.dump(meta, file)


def make_pairs(count):
    random = torch.Generator().manual_seed(1)
    pairs = []
    for i in range(count):
        source = (2 + torch.rand(1 + i % 9, generator=random) ** 2 * WORDS).long().tolist()
        pairs.append((source, [2 + (token * 7) % WORDS for token in reversed(source)]))
    return pairs


def theirs(model, pairs):
    """Returns the mean loss of all pairs, and greedy translations of their sources."""
    loss = count = 0
    texts = []
    with torch.no_grad():
        for source, target in pairs:
            ids, labels = torch.tensor([[*source, END]]), torch.tensor([[*target, END]])
            loss += model(input_ids=ids, labels=labels).loss.item() * labels.numel()
            count += labels.numel()
            tokens = model.generate(ids, num_beams=1, do_sample=False, max_new_tokens=LENGTH)[0].tolist()[1:]
            words = tokens[: tokens.index(END)] if END in tokens else tokens
            texts.append(" ".join(f"w{t}" if t > END else "[PAD]" for t in words))
    return loss / count, texts


def ours(weights, data, pairs):
    result = json.loads(run("-e", weights, "-i", data, "--eval", "val", "--json", "-t", str(LENGTH)).splitlines()[-1])
    text = "".join(" ".join(f"w{t}" for t in source) + "\n" for source, _ in pairs)
    options = "--translate", "-t", str(LENGTH), "--longest", str(LENGTH)
    return result["val_loss"], run("-e", weights, "-i", data, *options, text=text).splitlines()


def compare(name, a, b):
    error = abs(a[0] - b[0]) / abs(b[0])
    same = sum(x == y for x, y in zip(a[1], b[1]))
    report(name, error <= TOLERANCE and same == len(a[1]) == len(b[1]),
           f"loss differs by {error:.1e}, {same} of {len(b[1])} translations are the same")


def from_there(directory, data, pairs, activation):
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=LENGTH,
        activation_function=activation,
        scale_embedding=True,
        init_std=0.2,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=PADDING,
        forced_eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(2)
    model = MarianMTModel(config).eval()
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:  # positions are sinusoids
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.final_logits_bias += 0.3 * torch.randn_like(model.final_logits_bias)
    path = f"{directory}/theirs-{activation}"
    model.save_pretrained(path)
    compare(f"from there, {activation}", ours(f"{path}/model.safetensors", data, pairs), theirs(model, pairs))


def to_there(directory, data, pairs):
    path = f"{directory}/run"
    sizes = ["-L", "2", "-D", "3", "-C", "32", "-H", "4", "--ffn", "48", "-t", str(LENGTH)]
    run("-i", data, "-o", path, *sizes, "-x", "60", "-l", "0.005", "-u", "20", "--dropout", "0")
    model = MarianMTModel.from_pretrained(path).eval()
    compare("to there, a trained model", ours(f"{path}/best.safetensors", data, pairs), theirs(model, pairs))


with tempfile.TemporaryDirectory() as temporary:
    sentences = make_pairs(30)
    write_data(f"{temporary}/data", sentences)
    for name in "relu", "swish", "gelu":
        from_there(temporary, f"{temporary}/data", sentences, name)
    to_there(temporary, f"{temporary}/data", sentences)
sys.exit(0 if all(results) else 1)
