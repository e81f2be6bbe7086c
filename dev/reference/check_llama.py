#!/usr/bin/env python3
"""Llama and Qwen 3 by Hugging Face's classes, all of it in float64.

  python3 dev/reference/check_llama.py            checks llama_*.safetensors and qwen3.safetensors, which make test holds train_llama against
  python3 dev/reference/check_llama.py --write    makes them

The classes compute their norms, the angles of positions and the loss in float32 whatever the type of their weights: these three are
replaced by the same formulas in float64. The files are as README.md describes those of the other models.
"""
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from check_additive import read, write

V, T = 61, 24
SIZES = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=T)


def norm(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def rotary(self, x, position_ids):
    size = self.config.hidden_size // self.config.num_attention_heads
    base = self.config.rope_parameters["rope_theta"]
    angles = position_ids[..., None].double() * base ** (-torch.arange(0, size, 2).double() / size)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


for module, name in (modeling_llama, "Llama"), (modeling_qwen3, "Qwen3"):
    getattr(module, f"{name}RMSNorm").forward = norm
    getattr(module, f"{name}RotaryEmbedding").forward = rotary


def create(make, config, seed):
    torch.manual_seed(seed)
    config._attn_implementation = "sdpa"
    model = make(config).eval()
    for parameter in model.parameters():  # far from the initial values, and held exactly by float32
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.double()


def mean_loss(model, ids, mask, labels):
    logits = model(ids, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1), ignore_index=-100)
    return logits, loss


def train(model, tensors, metadata):
    """Trains 20 steps, as in the other files."""
    steps, rate, decay = 20, 5e-3, 0.01
    ids = torch.randint(V, (steps, 2, T))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8)
    losses, norms = [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        loss = mean_loss(model, ids[step], None, ids[step])[1]
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    tensors["train.input_ids"] = ids.int()
    tensors["train.losses"], tensors["train.grad_norms"] = torch.tensor(losses).double(), torch.tensor(norms).double()
    tensors.update({f"final.{name}": p.detach().clone() for name, p in model.named_parameters()})
    metadata.update(train_steps=str(steps), train_lr=str(rate), train_weight_decay=str(decay))


def outputs(make, config, seed, lengths, trained):
    model = create(make, config, seed)
    tensors = {name: p.detach().float() for name, p in model.named_parameters()}
    ids, mask = torch.randint(1, V, (len(lengths), T)), torch.zeros(len(lengths), T, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    ids = ids * mask
    labels = torch.where(mask == 1, ids, -100)
    logits, loss = mean_loss(model, ids, mask, labels)
    loss.backward()
    tensors.update({f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()})
    tensors.update(input_ids=ids.int(), attention_mask=mask.int(), labels=labels.int(), logits=logits.detach(), loss=loss.detach()[None])
    metadata = {
        "model": "llama", "n_positions": str(T), "vocab_size": str(V), "hidden_size": "32", "intermediate_size": "48",
        "num_hidden_layers": "2", "num_attention_heads": "4", "num_key_value_heads": str(config.num_key_value_heads),
        "rms_norm_eps": str(config.rms_norm_eps), "rope_theta": str(config.rope_parameters["rope_theta"]),
        "untied": "false" if config.tie_word_embeddings else "true", "scores": "qknorm" if make is Qwen3ForCausalLM else "plain",
    }
    if trained:
        train(model, tensors, metadata)
    return tensors, metadata


def everything():
    def rope(theta):
        return {"rope_type": "default", "rope_theta": theta}

    grouped = LlamaConfig(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=rope(1e4))
    tied = LlamaConfig(**SIZES, num_key_value_heads=4, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=rope(5e5))
    qwen3 = Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=rope(1e6))
    return {
        "llama_grouped": outputs(LlamaForCausalLM, grouped, 1, (24, 17, 5), False),
        "llama_tied": outputs(LlamaForCausalLM, tied, 2, (24, 24), True),
        "qwen3": outputs(Qwen3ForCausalLM, qwen3, 3, (20, 24), False),
    }


def main():
    passed = True
    for name, (tensors, metadata) in everything().items():
        file = f"{name}.safetensors"
        if sys.argv[1:] == ["--write"]:
            write(file, metadata, tensors)
        _, stored = read(file)
        # Training amplifies differences of rounding.
        error = max((stored[key].double() - value.double()).abs().max().item() for key, value in tensors.items())
        passed = passed and stored.keys() == tensors.keys() and error < 1e-6
        print(f"PyTorch {torch.__version__}: {name}: {len(tensors)} tensors, largest difference {error:.1e}")
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
