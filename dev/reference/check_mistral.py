#!/usr/bin/env python3
"""mistral_window.safetensors: attention with a window as Hugging Face's MistralForCausalLM computes it, in float64.

  python3 dev/reference/check_mistral.py            checks it
  python3 dev/reference/check_mistral.py --write    makes it

A small Mistral of one layer reads two sequences, the second padded at the right, and makes the mask of its
`sliding_window` itself. Its attention's queries, keys and values, after the rotation, are rounded to what float32 holds.
"""
import sys

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from check_additive import read, write

FILE = "mistral_window.safetensors"
BATCH, LENGTH, HEADS, SIZE, WINDOW, PADDED = 2, 100, 2, 8, 37, 20


def rows(x):
    """Returns (B, H, T, D) as (B, T, C)."""
    return x.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * SIZE)


def compute():
    torch.manual_seed(3)
    config = transformers.MistralConfig(
        vocab_size=50, hidden_size=HEADS * SIZE, intermediate_size=16, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=LENGTH, sliding_window=WINDOW, initializer_range=0.5,
        attn_implementation="sdpa")  # "eager" rounds to float32
    model = transformers.MistralForCausalLM(config).double().eval()
    attend, seen = ALL_ATTENTION_FUNCTIONS["sdpa"], {}

    def record(module, query, key, value, mask, **options):
        parts = [x.detach().float().double().requires_grad_() for x in (query, key, value)]
        output, _ = attend(module, *parts, mask, **options)
        seen.update(query=parts[0], key=parts[1], value=parts[2], mask=mask, output=output)
        return output, None

    ALL_ATTENTION_FUNCTIONS["sdpa"] = record
    tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    tokens[1, LENGTH - PADDED :] = 0
    model(input_ids=torch.randint(50, (BATCH, LENGTH)), attention_mask=tokens)
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    i = torch.arange(LENGTH)
    counts = seen["mask"][0, 0].sum(-1)
    assert torch.equal(counts, (i + 1).clamp(max=WINDOW)), "a query sees `sliding_window` keys, itself among them"
    doutput = torch.randn(BATCH, LENGTH, HEADS * SIZE)
    output = seen["output"].reshape(BATCH, LENGTH, -1)
    output.backward(doutput.double())
    parts = {name: seen[name] for name in ("query", "key", "value")}
    return {
        **{name: rows(x).float() for name, x in parts.items()},
        "attention_mask": tokens.int(),
        "doutput": doutput,
        "output": output,
        **{"grad." + name: rows(x.grad) for name, x in parts.items()},
    }


def main():
    tensors = compute()
    if sys.argv[1:] == ["--write"]:
        write(FILE, {"heads": str(HEADS), "window": str(WINDOW)}, tensors)
    _, stored = read(FILE)
    # Queries and keys are rounded: another PyTorch may round its products differently.
    errors = {name: ((x - stored[name]).double().norm() / x.double().norm()).item() for name, x in tensors.items()}
    print(f"transformers {transformers.__version__}: {FILE} differs by {max(errors.values()):.1e}")
    passed = max(errors.values()) < 1e-6
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
