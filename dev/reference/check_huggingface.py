#!/usr/bin/env python3
"""Exchange with Hugging Face transformers, both ways, on small random models: GPT-2 with their class, the Fastformer with
the one that a run's directory holds.

    python3 dev/reference/check_huggingface.py [DIR]      where train_gpt2 and train_fastformer are; default: .

Needs PyTorch, transformers, tokenizers and safetensors; not part of `make test`. In both programs a model must have the same mean
loss and continue a prompt by the same tokens, the most probable ones. Both compute in float32.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.disable_progress_bar()

LENGTH = 64  # T, and positions of the models
END = 10  # precedes a text: a newline
PROMPT = b"int main(void"
TOLERANCE = 2e-6  # of a loss, relative

PROGRAMS = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
results = []


def report(name, passed, detail):
    results.append(passed)
    print(f"{'ok  ' if passed else 'FAIL'}  {name:50} {detail}", flush=True)


def run(*arguments, trainer="train_gpt2"):
    command = [f"{PROGRAMS}/{trainer}", *arguments, "-p", "fp32"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


# ---- data ------------------------------------------------------------------------------------------------------------


def write_shard(path, tokens):
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))


def write_data(directory, vocabulary, meta):
    """Writes random tokens, high ones less often, so that there is something to learn. Returns
    those of the val split."""
    os.makedirs(directory)
    splits = {}
    for split, count in ("train", 20000), ("val", 1000):
        uniform = torch.rand(count, generator=torch.Generator().manual_seed(count))
        splits[split] = (uniform**3 * vocabulary).long().tolist()
        write_shard(f"{directory}/{split}_000000.bin", splits[split])
    if meta:
        with open(f"{directory}/meta.json", "w") as file:
            json.dump({"tokenizer": "byte", "vocab_size": vocabulary, "pad": -1, "end": END}, file)
    return splits["val"]


# ---- results of transformers -----------------------------------------------------------------------------------------


def random_model(vocabulary=256):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=vocabulary, n_positions=LENGTH, n_embd=48, n_layer=3, n_head=4)
    config.bos_token_id = config.eos_token_id = None
    model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():  # far from the initial values, biases too
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def their_loss(model, tokens, end, length=LENGTH):
    """Returns the mean loss over all tokens, in blocks of `length`; each token is predicted from
    those before it in its block."""
    inputs, total = [end] + tokens[:-1], 0.0
    for start in range(0, len(tokens), length):
        logits = model(torch.tensor([inputs[start : start + length]])).logits[0]
        targets = torch.tensor(tokens[start : start + length])
        total += torch.nn.functional.cross_entropy(logits.double(), targets, reduction="sum").item()
    return total / len(tokens)


@torch.no_grad()
def their_text(model):
    tokens = [END, *PROMPT]
    while len(tokens) < LENGTH:
        tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    return bytes(tokens[1:])


# ---- results of the trainer ------------------------------------------------------------------------------------------


def our_loss(output):
    with open(f"{output}/log.jsonl") as file:
        return [line["val_loss"] for line in map(json.loads, file) if "val_loss" in line]


def our_text(weights, data, trainer="train_gpt2"):
    arguments = ("--prompt", PROMPT.decode(), "-g", str(LENGTH - 1 - len(PROMPT)), "--temperature", "0")
    return run("-e", weights, "-i", data, *arguments, trainer=trainer).removesuffix(b"\n")


def is_text(ours, theirs):
    """Returns whether both are the same text; ours may omit an incomplete character at the end."""
    return theirs.startswith(ours) and len(theirs) - len(ours) <= 3


def compare(name, model, tokens, loss, text):
    expected = their_loss(model, tokens, END)
    same = abs(loss - expected) <= TOLERANCE * expected
    report(f"{name}: loss", same, f"ours {loss:.8f}, theirs {expected:.8f}")
    report(f"{name}: greedy text", is_text(text, their_text(model)), f"{len(text)} bytes")


def load(directory):
    model, info = GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
    wrong = {kind: list(names) for kind, names in info.items() if names}
    report("every tensor is taken, none is missing", not wrong, str(wrong) if wrong else "")
    return model.eval()


# ---- from transformers -----------------------------------------------------------------------------------------------


def variants(model):
    """Returns [(name, tensors in a form that files may have, their type)]."""
    plain = {name: value.clone() for name, value in model.transformer.state_dict().items()}
    full = {f"transformer.{name}": value for name, value in plain.items()}
    masks = {}
    for layer in range(model.config.n_layer):
        masks[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool))
        masks[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    head = {"lm_head.weight": plain["wte.weight"].clone()}
    return [
        ("prefix", full, torch.float32),
        ("no prefix", plain, torch.float32),
        ("no prefix, masks", {**plain, **masks}, torch.float32),
        ("prefix, tied weight twice", {**full, **head}, torch.float32),
        ("prefix, float16", full, torch.float16),
        ("no prefix, tied weight twice, bfloat16", {**plain, **head}, torch.bfloat16),
    ]


def check_import(root, data, tokens):
    model = random_model()
    for number, (name, tensors, kind) in enumerate(variants(model)):
        directory = f"{root}/theirs{number}"
        model.config.save_pretrained(directory)
        rounded = {key: value.to(kind) if value.is_floating_point() else value for key, value in tensors.items()}
        save_file(rounded, f"{directory}/model.safetensors", metadata={"format": "pt"})
        reference = random_model()
        reference.load_state_dict({key: value.to(kind).float() for key, value in model.state_dict().items()})
        weights, output = f"{directory}/model.safetensors", f"{root}/from{number}"
        # A step at rate 0 does not change the weights, and log.jsonl has all digits of the loss.
        run("-e", weights, "-i", data, "-o", output, "-x", "1", "-l", "0", "--dropout", "0")
        compare(name, reference, tokens, our_loss(output)[-1], our_text(weights, data))
        if number == 0:
            again = load(output).state_dict()
            same = all(torch.equal(value, again[key]) for key, value in model.state_dict().items())
            report("there and back: the same weights", same, "")


def check_saved_by_transformers(root, data, tokens):
    model = random_model()
    for name, part in ("saved whole", model), ("saved without the head", model.transformer):
        directory = f"{root}/{name.replace(' ', '_')}"
        part.save_pretrained(directory)
        weights = f"{directory}/model.safetensors"
        run("-e", weights, "-i", data, "-o", f"{directory}/run", "-x", "1", "-l", "0")
        compare(name, model, tokens, our_loss(f"{directory}/run")[-1], our_text(weights, data))


def check_llmc_shards(root):
    """Shards without meta.json: GPT-2's vocabulary, text cannot be decoded."""
    tokens = write_data(f"{root}/llmc", 50257, meta=False)
    model = random_model(50257)
    model.save_pretrained(f"{root}/large")
    line = run("-e", f"{root}/large/model.safetensors", "-i", f"{root}/llmc", "--eval", "val").decode()
    expected = their_loss(model, tokens, 50256)
    report("llm.c's shards: loss", f"val loss {expected:.4f} " in line, f"{line.strip()}, theirs {expected:.4f}")


def check_directory(root):
    """Checks that a directory of transformers, with its tokenizer.json, is sufficient to write
    text."""
    directory, text = f"{root}/whole", open(__file__, encoding="utf-8").read()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    model = random_model(tokenizer.get_vocab_size())
    model.save_pretrained(directory)
    tokenizer.save(f"{directory}/tokenizer.json")
    start = torch.tensor([tokenizer.encode(PROMPT.decode()).ids])
    tokens = model.generate(start, do_sample=False, max_new_tokens=40, pad_token_id=0)[0].tolist()
    theirs = tokenizer.decode(tokens, skip_special_tokens=False).encode()
    arguments = ("--prompt", PROMPT.decode(), "-g", "40", "--temperature", "0", "--json")
    for name in directory, f"{directory}/model.safetensors":
        line = json.loads(run("-e", name, *arguments))
        ours = (line["prompt"] + line["text"]).encode()
        report(f"-e {os.path.basename(name)}: greedy text", is_text(ours.rstrip(b"\xef\xbf\xbd"), theirs.rstrip(b"\xef\xbf\xbd")), f"{len(ours)} bytes")


# ---- to transformers -------------------------------------------------------------------------------------------------


def check_export(root, data, tokens):
    output = f"{root}/ours"
    shape = ("-L", "3", "-C", "48", "-H", "4", "-t", str(LENGTH), "-b", "8")
    run("-i", data, "-o", output, *shape, "-x", "60", "-l", "1e-2", "-v", "20")
    compare("trained here", load(output), tokens, min(our_loss(output)), our_text(f"{output}/best.safetensors", data))
    for kind in "softmax1", "cosine":
        run("-i", data, "-o", f"{root}/{kind}", *shape, "-x", "1", "--attention", kind)
        names = os.listdir(f"{root}/{kind}")
        report(f"{kind}: is not exported", "config.json" not in names and "model.safetensors" not in names, "")


# ---- runs of decoders: Fastformer's class is next to its weights, Llama's is in transformers -----------------------


def load_run(directory):
    return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()


def check_run(root, data, tokens, name, *options, trainer="train_fastformer"):
    output, saved = f"{root}/{name}", f"{root}/{name}_saved"
    shape = ("-L", "3", "-C", "48", "-H", "4", "-t", str(LENGTH), "-b", "8", *options)
    run("-i", data, "-o", output, *shape, "-x", "60", "-l", "1e-2", "-v", "20", trainer=trainer)
    model = load_run(output)
    text = our_text(f"{output}/best.safetensors", data, trainer)
    compare(f"{name}, trained here", model, tokens, min(our_loss(output)), text)
    start = torch.tensor([[END, *PROMPT]])
    with torch.no_grad():
        whole = model.generate(start, do_sample=False, max_length=LENGTH)[0, 1:]
    report(f"{name}: generate()", is_text(text, bytes(whole.tolist())), f"{len(whole)} bytes")
    model.train()
    model(start, labels=start).loss.backward()
    gradients = [parameter.grad is not None for parameter in model.parameters()]
    report(f"{name}: every parameter has a gradient", all(gradients), f"{len(gradients)} parameters")
    if getattr(model.config, "positions", "learned") != "learned":
        arguments = ("--eval", "val", "-t", str(4 * LENGTH), "--json")
        ours = json.loads(run("-e", output, "-i", data, *arguments, trainer=trainer))["val_loss"]
        theirs = their_loss(model.eval(), tokens, END, 4 * LENGTH)
        report(f"{name}: texts of 4 T", abs(ours - theirs) <= TOLERANCE * theirs, f"ours {ours:.8f}, theirs {theirs:.8f}")
    model.save_pretrained(saved)
    weights = f"{saved}/model.safetensors"
    run("-e", weights, "-i", data, "-o", f"{saved}/run", "-x", "1", "-l", "0", trainer=trainer)
    text = our_text(weights, data, trainer)
    compare(f"{name}, saved by transformers", model.eval(), tokens, our_loss(f"{saved}/run")[-1], text)


def main():
    with tempfile.TemporaryDirectory() as root:
        data = f"{root}/data"
        tokens = write_data(data, 256, meta=True)
        check_import(root, data, tokens)
        check_saved_by_transformers(root, data, tokens)
        check_llmc_shards(root)
        check_directory(root)
        check_export(root, data, tokens)
        growing = ("--windows", "4,7,global")
        check_run(root, data, tokens, "Fastformer, published", *growing)
        raw = ("--pool", "raw", "--positions")
        check_run(root, data, tokens, "Fastformer, raw", *growing, *raw, "none", "--query-gain", "0.7")
        rotary = ("--rotary-base", "100", "--rotary-part", "0.5")
        hybrid = ("--attention", "additive*2+softmax", *raw, "rotary")
        check_run(root, data, tokens, "Fastformer, hybrid", *growing, *hybrid, *rotary)
        shift = ("--attention", "softmax+additive+softmax", *raw, "none", "--token-shift", "0.3")
        check_run(root, data, tokens, "Fastformer, token shift", "--windows", "2,global,global", *shift)
        modern = (*shift, "--norm", "rms", "--norm-eps", "1e-6", "--scores", "qknorm", "--ffn")
        check_run(root, data, tokens, "Fastformer, today's blocks", "--windows", "2,global,global", *modern, "swiglu")
        relu = ("--attention", "softmax", "--scores", "qknorm", "--positions", "rotary", "--ffn", "relu2")
        check_run(root, data, tokens, "Fastformer, softmax", *growing, *relu, "--ffn-size", "80")
        check_run(root, data, tokens, "Llama", *rotary, trainer="train_llama")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
