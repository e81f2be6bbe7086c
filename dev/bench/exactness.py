#!/usr/bin/env python3
"""What float32 does to the windowed sums: the published code, and this project's trainer, against float64.

    make test_fastformer
    python3 dev/bench/exactness.py [FILE...]    default: dev/reference/fastformer_*.safetensors

Prints a Markdown table: for each reference file the errors of logits and gradients of the published way, cumsum(i) -
cumsum(i-k), in float32 (in PyTorch, pytorch_models.py), and of ./test_fastformer -p float. Errors are those of
dev/reference/README.md, relative, per tensor, the worst; and the largest absolute one of the logits.
"""

import glob
import os
import re
import subprocess
import sys

import torch

from pytorch_models import (
    check_gradients,
    create_model,
    load_parameters,
    loss_function,
    read_safetensors,
    reference_config,
    relative_error,
)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def published(path):
    """Relative and largest absolute error of the logits, relative error of the gradients."""
    meta, tensors = read_safetensors(path, "cpu")
    module = create_model("fastformer", "published", reference_config(meta), compiled=False)
    load_parameters(module, tensors)
    tokens, mask, labels = (tensors[n].long() for n in ("input_ids", "attention_mask", "labels"))
    with torch.no_grad():
        logits = module.logits(tokens, mask).double()
    loss_function("published", module, compiled=False, precision=torch.float32)(tokens, labels, mask).backward()
    largest = (logits - tensors["logits"]).abs().max().item()
    return relative_error(logits, tensors["logits"]), largest, check_gradients(module, tensors)


def ours(path):
    """Relative error of the logits and of the gradients."""
    command = [os.path.join(ROOT, "test_fastformer"), "-r", path, "-p", "float"]
    line = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"logits (\S+) .*?grad\w* ([-+.0-9e]+)", line)
    return map(float, found.groups()) if found else sys.exit(f"{' '.join(command)}: printed {line!r}, expected the errors")


def main():
    torch.set_num_threads(1)  # the models are tiny
    paths = sys.argv[1:] or sorted(glob.glob(os.path.join(ROOT, "dev", "reference", "fastformer_*.safetensors")))
    print("| file | published, float32: logits | largest | gradients | fastformer.c, float32: logits | gradients |")
    print("|---|---|---|---|---|---|")
    for path in paths:
        logits, largest, gradients = published(path)
        our_logits, our_gradients = ours(path)
        name = os.path.basename(path).removesuffix(".safetensors")
        print(f"| {name} | {logits:.1e} | {largest:.2g} | {gradients:.1e} | {our_logits:.1e} | {our_gradients:.1e} |")


if __name__ == "__main__":
    main()
