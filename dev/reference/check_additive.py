#!/usr/bin/env python3
"""bert_additive.safetensors: BERT with the Fastformer's additive attention over the whole sequence, in float64.

  python3 dev/reference/check_additive.py            checks it
  python3 dev/reference/check_additive.py --write    makes it

Weights, tokens and padding are those of bert_padded.safetensors; w_q and w_k (`pooling`) are drawn here. The BERT below has to
give what bert_padded holds, which is Hugging Face's, when its attention is softmax.
"""
import json
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
KINDS = {"F32": torch.float32, "F64": torch.float64, "I32": torch.int32}


def read(name):
    raw = (HERE / name).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + size]), bytearray(raw[8 + size :])
    meta = header.pop("__metadata__")
    tensors = {
        name: torch.frombuffer(data[t["data_offsets"][0] : t["data_offsets"][1]], dtype=KINDS[t["dtype"]]).reshape(t["shape"])
        for name, t in header.items()
    }
    return meta, tensors


def write(name, meta, tensors):
    names = {dtype: kind for kind, dtype in KINDS.items()}
    header, data = {"__metadata__": meta}, b""
    for key, tensor in tensors.items():
        values = tensor.detach().contiguous().numpy().tobytes()
        header[key] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (HERE / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def softmax(q, k, v, token, _):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~token[:, None, None, :], -torch.inf).softmax(-1) @ v


def pool(x, w, token):
    """Returns the mean of x (B, H, T, D) with weights exp(w . x / sqrt(D)), over tokens that are
    not padding."""
    scores = (x * w[:, None, :]).sum(-1) / x.shape[-1] ** 0.5
    return (scores.masked_fill(~token[:, None, :], -torch.inf).softmax(-1)[..., None] * x).sum(2, keepdim=True)


def additive(q, k, v, token, pooling):
    w_q, w_k = pooling.view(2, q.shape[1], q.shape[3])
    return pool(pool(q, w_q, token) * k, w_k, token) * v


def loss_and_logits(p, meta, batch, attention):
    """Computes BertForMaskedLM's loss and logits, without dropout."""
    heads, epsilon = int(meta["num_attention_heads"]), float(meta["layer_norm_eps"])
    token = batch["attention_mask"].bool()
    B, T = token.shape

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], epsilon)

    embeddings = "bert.embeddings."
    words = F.embedding(batch["input_ids"].long(), p[embeddings + "word_embeddings.weight"], padding_idx=0)
    x = words + p[embeddings + "position_embeddings.weight"][:T] + p[embeddings + "token_type_embeddings.weight"][0]
    x = norm(x, embeddings + "LayerNorm")
    for layer in range(int(meta["num_hidden_layers"])):
        name = f"bert.encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{name}attention.self.{part}").view(B, T, heads, -1).transpose(1, 2) for part in ("query", "key", "value")
        )
        y = attention(q, k, v, token, p.get(name + "attention.self.pooling"))
        y = y.transpose(1, 2).reshape(B, T, -1)
        x = norm(x + linear(y, name + "attention.output.dense"), name + "attention.output.LayerNorm")
        y = linear(F.gelu(linear(x, name + "intermediate.dense")), name + "output.dense")
        x = norm(x + y, name + "output.LayerNorm")
    head = "cls.predictions."
    x = norm(F.gelu(linear(x, head + "transform.dense")), head + "transform.LayerNorm")
    logits = x @ p[embeddings + "word_embeddings.weight"].t() + p[head + "bias"]
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].long().flatten(), ignore_index=-100), logits


def outputs(parameters, meta, batch, attention):
    p = {name: tensor.double().requires_grad_() for name, tensor in parameters.items()}
    loss, logits = loss_and_logits(p, meta, batch, attention)
    loss.backward()
    gradients = {"grad." + name: t.grad if t.grad is not None else torch.zeros_like(t) for name, t in p.items()}
    return {"logits": logits.detach(), "loss": loss.detach().reshape(1), **gradients}


def largest_error(ours, stored):
    floor = 1e-3 * torch.cat([t.flatten() for name, t in stored.items() if name.startswith("grad.")]).norm()
    return max(((ours[name] - t.double()).norm() / (t.double().norm() + floor)).item() for name, t in stored.items())


def main():
    meta, tensors = read("bert_padded.safetensors")
    batch = {name: tensors.pop(name) for name in ("input_ids", "attention_mask", "labels")}
    expected = {name: tensors.pop(name) for name in list(tensors) if name.startswith("grad.") or name in ("logits", "loss")}
    known = largest_error(outputs(tensors, meta, batch, softmax), {n: t for n, t in expected.items() if n != "loss"})

    random = torch.Generator().manual_seed(11)
    for layer in range(int(meta["num_hidden_layers"])):
        tensors[f"bert.encoder.layer.{layer}.attention.self.pooling"] = torch.randn(2, int(meta["hidden_size"]), generator=random)
    results = outputs(tensors, meta, batch, additive)
    everything = {**results, **tensors, **batch}
    if sys.argv[1:] == ["--write"]:
        write("bert_additive.safetensors", meta | {"attention": "additive"}, everything)
    _, stored = read("bert_additive.safetensors")
    same = stored.keys() == everything.keys() and all(torch.equal(stored[n], t) for n, t in {**tensors, **batch}.items())
    error = largest_error(results, {name: stored[name] for name in results})
    print(f"softmax: off Hugging Face's by {known:.1e}; additive: inputs {'the same' if same else 'DIFFER'}, off by {error:.1e}")
    passed = same and error < 1e-12 and known < 1e-9
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
