#!/usr/bin/env python3
"""Muon compared with torch.optim.Muon (PyTorch 2.9 or newer), whose Newton-Schulz iteration is done in float64 instead of bf16.

  python3 dev/reference/check_muon.py            checks muon.safetensors, which make test holds against dev/cpu/muon.c
  python3 dev/reference/check_muon.py --write    makes it

The file has matrices of each orientation: `NAME` before the first step, its gradients `NAME.grad` (steps, rows,
columns), and `NAME.final` after the last one; lr, weight_decay and clipping are in the metadata and in `scale` (steps).
"""
import sys

import torch
import torch.optim._muon as muon

from check_additive import read, write

FILE = "muon.safetensors"
SHAPES = {"wide": (6, 20), "tall": (24, 6), "square": (17, 17), "row": (1, 9), "low_rank": (8, 12)}
STEPS, LR, DECAY, SCALES = 4, 0.02, 0.1, [1.0, 0.25, 1.0, 0.5]


def newton_schulz(grad, coefficients, steps, eps):
    """As torch's _zeropower_via_newtonschulz, but in the type of its input."""
    a, b, c = coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def draw():
    """Draws values and gradients that float32 holds exactly."""
    random = torch.Generator().manual_seed(7)
    tensors = {}
    for name, (rows, columns) in SHAPES.items():
        tensors[name] = torch.randn(rows, columns, generator=random) * 0.1
        gradients = torch.randn(STEPS, rows, columns, generator=random)
        if name == "low_rank":  # singular values from 1 down to 0
            gradients = gradients[:, :, :3] @ torch.randn(3, columns, generator=random) * torch.logspace(0, -6, columns)
        tensors[name + ".grad"] = gradients
    return tensors


def train(tensors, dtype):
    final = {}
    for name in SHAPES:
        p = torch.nn.Parameter(tensors[name].to(dtype).clone())
        optimizer = torch.optim.Muon([p], lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        for gradient, scale in zip(tensors[name + ".grad"], SCALES):
            p.grad = gradient.to(dtype) * scale
            optimizer.step()
        final[name + ".final"] = p.detach()
    return final


def largest_error(a, b):
    return max(((a[n].double() - b[n].double()).norm() / b[n].double().norm()).item() for n in b)


def main():
    tensors = draw()
    plain = train(tensors, torch.float32)  # unmodified torch, with its iteration in bf16
    muon._zeropower_via_newtonschulz = newton_schulz
    exact = train(tensors, torch.float64)
    everything = {**tensors, "scale": torch.tensor(SCALES), **exact}
    if sys.argv[1:] == ["--write"]:
        write(FILE, {"lr": str(LR), "weight_decay": str(DECAY), "steps": str(STEPS)}, everything)
    _, stored = read(FILE)
    drawn = {n: t for n, t in everything.items() if n not in exact}
    same = all(torch.equal(stored[n], t) for n, t in drawn.items())
    error = largest_error({n: stored[n] for n in exact}, exact)
    print(f"PyTorch {torch.__version__}: inputs {'the same' if same else 'DIFFER'}, results differ by {error:.1e}; "
          f"torch's own iteration in bf16 by {largest_error(plain, exact):.1e}")
    passed = same and error < 1e-12
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
