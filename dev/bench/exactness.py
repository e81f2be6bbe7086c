#!/usr/bin/env python3
"""What float32 does to the windowed sums: the published code, and this project's trainer, against float64.

    make test_fastformer
    python3 dev/bench/exactness.py [--data DIR] [FILE|RUN...]    default: dev/reference/fastformer_*.safetensors, data/wikitext2

Prints dev/results/exactness/errors.md: for each reference file, and for the weights that each directory of a run ended with, the errors of
logits and gradients of the published way, cumsum(i) - cumsum(i-k), in float32 (in PyTorch, pytorch_models.py), and of
./test_fastformer -p float; and the norm that the gradient has, and has the published way. Errors are those of
dev/reference/README.md, relative, per tensor, the worst; and the largest absolute one of the logits. Of a run the reference
is made of the first T tokens of the validation, in float64, with sums that nothing cancels in.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import torch

from pytorch_models import (
    DTYPES,
    check_gradients,
    create_model,
    load_parameters,
    loss_function,
    read_safetensors,
    reference_config,
    relative_error,
)
from step import processor, read_shard

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def gradients_of(variant, meta, tensors, dtype):
    """Returns the module after a backward pass, its logits and its loss."""
    module = create_model("fastformer", variant, reference_config(meta), compiled=False).to(dtype)
    load_parameters(module, tensors)
    tokens, mask, labels = (tensors[n].long() for n in ("input_ids", "attention_mask", "labels"))
    with torch.no_grad():
        logits = module.logits(tokens, mask).double()
    loss = loss_function(variant, module, compiled=False, precision=dtype)(tokens, labels, mask)
    loss.backward()
    return module, logits, loss.detach().double().reshape(1)


def norm(tensors):
    return torch.cat([t.double().reshape(-1) for t in tensors]).norm().item()


def published(meta, tensors):
    """Returns the logits' relative and largest absolute errors, and the gradients' relative error
    and norm."""
    module, logits, _ = gradients_of("published", meta, tensors, torch.float32)
    largest = (logits - tensors["logits"]).abs().max().item()
    gradients = check_gradients(module, tensors), norm(p.grad for p in module.parameters())
    return relative_error(logits, tensors["logits"]), largest, *gradients


def ours(path):
    """Returns the relative errors of the logits and of the gradients."""
    command = [os.path.join(ROOT, "test_fastformer"), "-r", path, "-p", "float"]
    line = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"logits (\S+) .*?grad\w* ([-+.0-9e]+)", line)
    return map(float, found.groups()) if found else sys.exit(f"{' '.join(command)}: printed {line!r}, expected the errors")


# ---- a reference file from a run -------------------------------------------------------------------------------------


def reference_of(run, data):
    """Returns metadata and tensors as dev/reference/README.md describes them."""
    meta, tensors = read_safetensors(os.path.join(run, "model.safetensors"), "cpu")
    length = int(meta["n_positions"])
    tokens = torch.tensor(read_shard(os.path.join(data, "val_000000.bin"))[:length], dtype=torch.int32).view(1, -1)
    tensors |= {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}
    module, tensors["logits"], tensors["loss"] = gradients_of("ours", meta, tensors, torch.float64)
    tensors |= {f"grad.{name}": parameter.grad for name, parameter in module.named_parameters()}
    return meta, tensors


def write_safetensors(path, meta, tensors):
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, place = {"__metadata__": meta}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().data)


# ---- the table -------------------------------------------------------------------------------------------------------


HEAD = """# Windowed sums in float32

Reference files, and weights that runs ended with: the norm of the gradient, exact and as the published differences of
cumulative sums give it in float32 (PyTorch {version}); relative errors of logits and gradients, theirs and ours, the
worst of all tensors, and the largest absolute one of their logits. {processor}.

| weights | norm | published: norm | logits | largest | gradients | fastformer.c: logits | gradients |
|---|---|---|---|---|---|---|---|"""


def row(name, path, meta, tensors):
    exact = norm(t for key, t in tensors.items() if key.startswith("grad."))
    logits, largest, gradients, their_norm = published(meta, tensors)
    our_logits, our_gradients = ours(path)
    print(
        f"| {name} | {exact:.3g} | {their_norm:.3g} | {logits:.1e} | {largest:.2g} | {gradients:.1e} |"
        f" {our_logits:.1e} | {our_gradients:.1e} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.path.join(ROOT, "data", "wikitext2"))
    parser.add_argument("paths", nargs="*")
    arguments = parser.parse_args()
    paths = arguments.paths or sorted(glob.glob(os.path.join(ROOT, "dev", "reference", "fastformer_*.safetensors")))
    print(HEAD.format(version=torch.__version__, processor=processor()))
    for path in paths:
        name = os.path.basename(path.rstrip("/")).removesuffix(".safetensors")
        if os.path.isdir(path):
            with tempfile.TemporaryDirectory() as directory:
                file = os.path.join(directory, "reference.safetensors")
                meta, tensors = reference_of(path, arguments.data)
                write_safetensors(file, meta, tensors)
                row(name, file, meta, tensors)
        else:
            row(name, path, *read_safetensors(path, "cpu"))


if __name__ == "__main__":
    main()
