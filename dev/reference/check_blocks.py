#!/usr/bin/env python3
"""Parts of today's models, and attention made of any similarity and activation, in float64 by PyTorch's autograd.

  python3 dev/reference/check_blocks.py            checks blocks.safetensors, which make test holds against dev/cpu
  python3 dev/reference/check_blocks.py --write    makes it

Rotary positions, grouped heads, the norms of queries and keys, RMSNorm and SwiGLU are those of Hugging Face's Llama and Qwen 3
(transformers' own functions and classes); rescaled scores and `pairwise` are written out here by their definitions. The tensors of
a case are its inputs (CASE.x, CASE.dy, ...), which float32 holds, and what these must give (CASE.y, CASE.dx, ...) in float64.
"""
import math
import sys

import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb, repeat_kv
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from check_additive import read, write

FILE = "blocks.safetensors"
B, T, H, G, D = 2, 7, 6, 2, 4  # sequences, positions, heads, key-value heads, channels per head
RESCALE, BASE, EPSILON = 3.0, 10000.0, 1e-5
tensors = {}


def keep(case, **values):
    for name, value in values.items():
        tensors[f"{case}.{name}"] = value.detach()


def draw(*shape, deviation=1.0):
    """Draws float64 values that float32 holds exactly."""
    return (torch.randn(*shape) * deviation).double().float().double().requires_grad_()


# ---- RMSNorm and SwiGLU ----------------------------------------------------------------------------------------------


def norm_and_ffn():
    x, dy, gain = draw(B * T, H * D), draw(B * T, H * D), draw(H * D)
    norm = LlamaRMSNorm(H * D, EPSILON).double()
    norm.weight.data = gain.detach().clone()
    # The class computes in float32 even for float64 input: this is its formula in float64.
    y = gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
    assert torch.allclose(y, norm(x), atol=1e-5)
    dx, dgain = torch.autograd.grad(y, (x, gain), dy)
    keep("rmsnorm", x=x, gain=gain, dy=dy, y=y, dx=dx, dgain=dgain)

    # The gates are the first half of the input and `up` is the second; the result is the first half
    # of the output.
    mlp = LlamaMLP(LlamaConfig(hidden_size=10, intermediate_size=5, num_attention_heads=5, hidden_act="silu")).double()
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = torch.eye(10).double().split(5)
    mlp.down_proj.weight.data = torch.eye(10, 5).double()
    x, dy = draw(3, 10), draw(3, 5)
    y = mlp(x)[:, :5]
    keep("swiglu", x=x, dy=dy, y=y, dx=torch.autograd.grad(y, x, dy)[0])


# ---- queries and keys ------------------------------------------------------------------------------------------------


def normal(u):
    return (u - u.mean(-1, keepdim=True)) / (u.std(-1, keepdim=True) + 1e-5)


def rotary():
    angles = torch.outer(torch.arange(T).double(), BASE ** (-torch.arange(0, D, 2).double() / D))
    return torch.cat((angles, angles), -1).cos()[None], torch.cat((angles, angles), -1).sin()[None]


def query_key(case, scores, rotated, groups):
    columns = (H + 2 * groups) * D
    x, bias, gains, dy = draw(B * T, columns), draw(columns), draw(2, D), draw(B * T, 3 * H * D)
    q, k, v = (x + bias).view(B, T, H + 2 * groups, D).transpose(1, 2).split((H, groups, groups), 1)
    if scores == "rescaled":
        q, k = normal(q) * RESCALE / math.sqrt(D), normal(k)
    if scores == "qknorm":
        q, k = (gain * h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON) for gain, h in zip(gains, (q, k)))
        norm = Qwen3RMSNorm(D, EPSILON).double()
        norm.weight.data = gains[0].detach().clone()
        theirs = norm((x + bias).view(B, T, -1, D).transpose(1, 2)[:, :H])
        assert torch.allclose(q, theirs, atol=1e-5)
    if rotated:
        q, k = apply_rotary_pos_emb(q, k, *rotary())
    k, v = repeat_kv(k, H // groups), repeat_kv(v, H // groups)
    y = torch.cat([part.transpose(1, 2).reshape(B * T, H * D) for part in (q, k, v)], 1)
    wanted = (x, bias, gains) if scores == "qknorm" else (x, bias)
    gradients = torch.autograd.grad(y, wanted, dy)
    keep(case, x=x, bias=bias, gains=gains, dy=dy, y=y)
    keep(case, **dict(zip(("dx", "dbias", "dgains"), gradients)))


# ---- attention by any similarity and activation ----------------------------------------------------------------------


class SoftRelu(torch.autograd.Function):
    @staticmethod
    def forward(context, a):
        context.save_for_backward(a)
        return a.clamp(min=0)

    @staticmethod
    def backward(context, g):
        return torch.where(context.saved_tensors[0] > 0, g, 0.1 * g)


def similarity(kind, q, k, r):
    difference = q[..., :, None, :] - k[..., None, :, :]
    cosine = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).transpose(-1, -2)
    power = 1 + r.exp()[:, None, None]
    return {
        "dot": lambda: q @ k.transpose(-1, -2) / math.sqrt(D),
        "cosine": lambda: cosine,
        "angle": lambda: 1 - cosine.acos() / math.pi,
        "euclidean": lambda: -difference.norm(dim=-1) / math.sqrt(D),
        "manhattan": lambda: -difference.abs().mean(-1),
        "chebyshev": lambda: -difference.abs().amax(-1),
        "minkowski": lambda: -difference.abs().pow(power[..., None]).mean(-1).pow(1 / power),
    }[kind]()


def activate(kind, a, seen, factor, threshold):
    if kind in ("softmax", "softmax1"):
        e = torch.where(seen, a, -torch.inf).exp()
        total = e.sum(-1, keepdim=True) + (kind == "softmax1")
        return torch.where(total > 0, e / total.clamp(min=1e-300), 0)
    return seen * {
        "relu": lambda: a.clamp(min=0),
        "soft-relu": lambda: SoftRelu.apply(a),
        "learned-relu": lambda: factor[:, None, None] * (a - threshold[:, None, None]).clamp(min=0),
        "sigmoid": lambda: a.sigmoid(),
        "none": lambda: a,
    }[kind]()


def pairwise(kind, activation, causal, window):
    qkv, bias, dy = draw(B, T, 3 * H * D), draw(3 * H * D, deviation=0.3), draw(B, T, H * D)
    m, r, factor, threshold = draw(H), draw(H, deviation=0.3), draw(H), draw(H, deviation=0.2)
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, T - 2 :] = False
    mask[0, 2] = False
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    seen = (mask[:, None, None, :] & ((j <= i) & (j > i - window) if causal else torch.ones(T, T, dtype=torch.bool)))
    q, k, v = (qkv + bias).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
    weights = activate(activation, similarity(kind, q, k, r), seen, factor, threshold)
    if activation not in ("softmax", "softmax1"):
        count = seen.sum(-1, keepdim=True).double().clamp(min=1)
        weights = weights * (-m.sigmoid()[:, None, None] * count.log()).exp()
    y = (weights @ v).transpose(1, 2).reshape(B, T, H * D)
    learned = {"m": m, "r": r, "factor": factor, "threshold": threshold}
    gradients = torch.autograd.grad(y, (qkv, bias, *learned.values()), dy, allow_unused=True)
    case = f"{kind}.{activation}"
    keep(case, qkv=qkv, bias=bias, dy=dy, mask=mask.to(torch.int32), y=y, **learned)
    keep(case, dqkv=gradients[0], dbias=gradients[1])
    for name, value, gradient in zip(learned, learned.values(), gradients[2:]):
        keep(case, **{f"d{name}": torch.zeros_like(value) if gradient is None else gradient})


def everything():
    torch.manual_seed(3)
    norm_and_ffn()
    query_key("plain", "plain", True, G)
    query_key("rescaled", "rescaled", False, G)
    query_key("qknorm", "qknorm", True, H)
    cases = [
        ("dot", "softmax", True, T), ("dot", "learned-relu", False, T), ("cosine", "relu", True, 3), ("cosine", "none", False, T),
        ("angle", "sigmoid", True, T), ("euclidean", "softmax1", False, T), ("manhattan", "learned-relu", True, 4),
        ("chebyshev", "softmax", False, T), ("minkowski", "softmax", True, T), ("minkowski", "sigmoid", False, T),
        ("dot", "soft-relu", True, T),
    ]
    for case in cases:
        pairwise(*case)
        tensors[f"{case[0]}.{case[1]}.causal"] = torch.tensor([int(case[2]), case[3]], dtype=torch.int32)


INPUTS = {"x", "bias", "gain", "gains", "dy", "qkv", "m", "r", "factor", "threshold"}


def main():
    everything()
    if sys.argv[1:] == ["--write"]:
        sizes = {"batch": B, "length": T, "heads": H, "groups": G, "size": D, "rescale": RESCALE, "base": BASE, "epsilon": EPSILON}
        write(FILE, {name: str(value) for name, value in sizes.items()},
              {name: x.float() if name.rsplit(".", 1)[1] in INPUTS else x for name, x in tensors.items()})
    _, stored = read(FILE)
    error = max((stored[name].double() - value.double()).abs().max().item() for name, value in tensors.items())
    print(f"PyTorch {torch.__version__}: {len(tensors)} tensors, largest difference {error:.1e}")
    passed = stored.keys() == tensors.keys() and error < 1e-11
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
