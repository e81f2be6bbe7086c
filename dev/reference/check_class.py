#!/usr/bin/env python3
"""The class that a run of train_fastformer holds (modeling_fastformer.py) in the hands of transformers.

    python3 dev/reference/check_class.py RUN      RUN: 200 positions or more, trained enough that beams differ, as by
                                                  ./train_fastformer -o RUN -L 2 -C 64 -t 256 -x 300 -b 8 -l 5e-3 --no-test

Needs PyTorch, transformers and accelerate; not part of `make test`. Each line is what must be equal, and the two values.
"""

import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, __version__
from transformers.utils import logging

logging.disable_progress_bar()
results = []


def report(name, value, expected, tolerance=0.0):
    largest = max(map(abs, expected))
    same = all(abs(a - b) <= tolerance * largest for a, b in zip(value, expected)) and len(value) == len(expected)
    results.append(same)
    short = [[round(x, 5) for x in numbers[:8]] for numbers in (value, expected)]
    print(f"{'ok  ' if same else 'FAIL'}  {name:44} {short[0]}, expected {short[1]}", flush=True)


def load(**options):
    return AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, **options).eval()


def trained(batch, accumulated, data):
    """Returns the loss and the gradient's norm of one step on the same eight sequences."""
    model = load(dtype=torch.float32)
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    model.config.dropout = 0.0
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulated, max_steps=1,
            learning_rate=0.0, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, max_grad_norm=1e9,
            seed=1, data_seed=1, disable_tqdm=True)
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.train()
    return [trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"]]


def check_accumulation():
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 200, (16, 32))]
    report("Trainer: 2 x 4 sequences as 8 x 1", trained(2, 4, data), trained(8, 1, data), 1e-5)


def check_padding(model):
    prompt, pad = torch.tensor([[10, 20, 30]]), torch.tensor([[0, 0, 0, 0, 10, 20, 30]])
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "repetition_penalty": 1.5}
    alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, 3:]
    padded = model.generate(pad, attention_mask=mask, **options)[0, 7:]
    report("left padding: the same text", padded.tolist(), alone.tolist())
    positions = torch.tensor([[4, 5, 6]])
    shifted = model(pad, position_ids=torch.arange(7)[None], attention_mask=mask).logits[0, -1]
    report("position_ids are used", model(prompt, position_ids=positions).logits[0, -1].tolist(), shifted.tolist(), 1e-4)


def check_half(model):
    tokens = torch.randint(0, 200, (1, 200))
    expected = [model(tokens, labels=tokens).loss.item()]
    for kind in torch.float16, torch.bfloat16:
        half = load(dtype=kind)
        report(f"weights in {kind}: loss", [half(tokens, labels=tokens).loss.item()], expected, 2e-3)
        with torch.autocast("cpu", kind):
            report(f"autocast to {kind}: loss", [model(tokens, labels=tokens).loss.item()], expected, 2e-3)


def check_beams(model):
    """Beam search is the same with and without a cache: log p of the text, and the text."""
    prompt = torch.tensor([[10, 20, 30]])
    for beams in 1, 3, 5:
        found = []
        for remembers in True, False:
            text = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, num_beams=beams,
                                  do_sample=False, use_cache=remembers, pad_token_id=0)
            p = model(text).logits.log_softmax(-1)[0, :-1].gather(1, text[0, 1:, None])
            found.append([p[2:].sum().item(), *text[0].tolist()])
        report(f"{beams} beams, with a memory and without", found[0], found[1])


def check_saving(model):
    """Checks a resized vocabulary and a checkpoint of several files."""
    count = model.config.vocab_size
    model.resize_token_embeddings(count + 10)
    tokens = torch.tensor([[count + 9, 1, 2]])
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory, max_shard_size="100KB")
        again = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).eval()
        report("resized, saved in parts, loaded", again(tokens).logits[0, -1].tolist(), model(tokens).logits[0, -1].tolist())


def check_tokenizer():
    text, tokenizer = "To be,\n or  not", AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
    report("AutoTokenizer", list(tokenizer.decode(tokenizer(text)["input_ids"]).encode()), list(text.encode()))


def main():
    torch.manual_seed(0)
    print(f"transformers {__version__}, PyTorch {torch.__version__}")
    check_accumulation()
    model = load(dtype=torch.float32)
    with torch.no_grad():
        check_padding(model)
        check_half(model)
        check_beams(model)
        check_saving(model)
    check_tokenizer()
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
