#!/usr/bin/env python3
"""Trains the published class in PyTorch, float32, with its own windowed sums or with exact ones: for exactness.sh.

    python3 dev/bench/published_training.py -i DIR -o DIR [--sums published|doubling] [--rescale S] [-x N] [-l R] [-S SEED] ...

Options are train_fastformer's, and so is what it writes, DIR/log.jsonl: loss and norm of the gradients, before clipping, of each step,
and at the end the loss of the first -m batches of the validation. The rate is constant. The two kinds of sums have the same weights,
batches and dropout.
"""

import argparse
import json
import math
import os
import sys
import time

import torch

from pytorch_models import Config, create_model, create_optimizer, loss_function, replace_dropout, training_step
from step import processor, read_shard

SUMS = {"published": "published", "doubling": "ours"}  # variants of pytorch_models.py


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", "--input", required=True)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("-y", "--resume", action="store_true", help="accepted; a run always begins again")
    parser.add_argument("--sums", choices=SUMS, default="published")
    parser.add_argument("--rescale", type=float, default=10)
    parser.add_argument("-l", "--lr", type=float, default=5e-4)
    parser.add_argument("-x", "--steps", type=int, default=400)
    parser.add_argument("-S", "--seed", type=int, default=1)
    parser.add_argument("-b", "--batch", type=int, default=2)
    parser.add_argument("-t", "--seq-len", type=int, default=2048)
    parser.add_argument("-m", "--val-batches", type=int, default=20)
    return parser.parse_args()


def sequences(directory, split, length):
    """Returns the split's tokens as sequences (N, T)."""
    tokens = torch.tensor(read_shard(os.path.join(directory, f"{split}_000000.bin")), dtype=torch.long)
    count = len(tokens) // length
    return tokens[: count * length].view(count, length)


def batches(rows, size, seed):
    """Yields batches of rows endlessly, in a new random order in each pass."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator)
        for start in range(0, len(order) - size + 1, size):
            yield rows[order[start : start + size]]


def validate(module, rows, size, count):
    """Returns the mean loss of the first `count` batches of `size` rows. Not compiled: that would
    take longer."""
    module.eval()
    loss_of = loss_function("ours", module, compiled=False, precision=torch.float32)
    with torch.no_grad():
        losses = [loss_of(part, part, None).item() for part in rows[: size * count].split(size)]
    return sum(losses) / len(losses)


def main():
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    train, val = (sequences(arguments.input, split, arguments.seq_len) for split in ("train", "val"))
    with open(os.path.join(arguments.input, "meta.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    config = Config(vocabulary, arguments.seq_len, 128, 4, 6, rescale=arguments.rescale)
    module = create_model("fastformer", SUMS[arguments.sums], config, compiled=False)
    replace_dropout(module)
    # Our classifier and compiled layers for both: only the sums differ, and both are fast.
    loss_of = loss_function("ours", module, compiled=True, precision=torch.float32)
    optimizer = create_optimizer(module, arguments.lr)
    parameters = list(module.parameters())

    os.makedirs(arguments.output, exist_ok=True)
    begin = time.monotonic()
    with open(os.path.join(arguments.output, "log.jsonl"), "w", buffering=1) as log:

        def write(**values):
            log.write(json.dumps(values | {"seconds": round(time.monotonic() - begin, 3)}, separators=(",", ":")) + "\n")

        command = " ".join(sys.argv)
        products = f"PyTorch {torch.__version__}, fp32"
        write(event="start", model="fastformer", command=command, processor=processor(), products=products)
        for step, tokens in zip(range(1, arguments.steps + 1), batches(train, arguments.batch, arguments.seed)):
            start = time.monotonic()
            loss, norm = training_step(loss_of, parameters, optimizer, tokens, tokens)
            if not math.isfinite(loss + norm):
                sys.exit(f"step {step}: loss {loss}, gradient norm {norm}: not finite")
            write(step=step, loss=loss, lr=arguments.lr, grad_norm=norm, ms=round(1000 * (time.monotonic() - start), 3))
            if step % 10 == 1:
                print(f"step {step}/{arguments.steps}  loss {loss:.4f}  |g| {norm:.3g}", flush=True)
        start = time.monotonic()
        loss = validate(module, val, arguments.batch, arguments.val_batches)
        write(step=arguments.steps, val_loss=loss, val_ms=1000 * (time.monotonic() - start))


if __name__ == "__main__":
    main()
