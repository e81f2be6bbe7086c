#!/usr/bin/env python3
"""How far Hugging Face's MarianMTModel is off in bf16 autocast, on the reference vectors of the post-norm model.

    python3 dev/translate/autocast.py       the measure of `./test_translate -r FILE -p bf16`, compared with float32

Needs PyTorch, transformers and safetensors; not part of `make test`. The embedding is left out: PyTorch gives the padding
token no gradient, though the decoder begins with it.
"""

import os

import torch
from safetensors import safe_open
from transformers import MarianConfig, MarianMTModel

FILE = os.path.join(os.path.dirname(__file__), "../reference/translate_postnorm.safetensors")


def read():
    with safe_open(FILE, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


def create_model(tensors, sizes):
    model = MarianMTModel(
        MarianConfig(
            vocab_size=int(sizes["vocab_size"]),
            d_model=int(sizes["d_model"]),
            encoder_layers=int(sizes["encoder_layers"]),
            decoder_layers=int(sizes["decoder_layers"]),
            encoder_attention_heads=int(sizes["heads"]),
            decoder_attention_heads=int(sizes["heads"]),
            encoder_ffn_dim=int(sizes["ffn_dim"]),
            decoder_ffn_dim=int(sizes["ffn_dim"]),
            max_position_embeddings=int(sizes["max_positions"]),
            activation_function="relu",
            scale_embedding=True,
            dropout=0,
            attention_dropout=0,
            use_cache=False,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            bos_token_id=None,
        )
    )
    model.load_state_dict(tensors, strict=False)
    return model.train()


def gradients(model, tensors, smoothing, autocast):
    """Yields (error, name) of each parameter's gradient: its distance to the reference over the
    reference's norm, as the test measures it."""
    ids = {key: tensors[key].long() for key in ("input_ids", "attention_mask", "decoder_input_ids")}
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(**ids).logits
    logits = logits.float().flatten(0, 1)
    labels = tensors["labels"].long().flatten()
    torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=smoothing).backward()
    expected = {key[5:]: value for key, value in tensors.items() if key.startswith("grad.")}
    total = sum(value.norm() ** 2 for value in expected.values()) ** 0.5
    for name, parameter in model.named_parameters():
        if name in expected and name != "model.shared.weight":
            error = (parameter.grad.double() - expected[name]).norm()
            yield float(error / (expected[name].norm() + 1e-3 * total)), name


reference, metadata = read()
marian = create_model(reference, metadata)
for mode in False, True:
    worst = sorted(gradients(marian, reference, float(metadata["label_smoothing"]), mode), reverse=True)
    print("bf16 autocast" if mode else "float32", ", ".join(f"{error:.1e} {name}" for error, name in worst[:4]))
