"""The encoder-decoder of train_translate in PyTorch, for peers.py: Hugging Face's Marian, and nn.Transformer."""

import math

import torch
from torch import nn
from torch.nn import functional as F

PADDING, END = 0, 1
SMOOTHING = 0.1


def sinusoids(length, channels):
    half = (channels + 1) // 2
    place = torch.arange(length).unsqueeze(1)
    rate = torch.pow(10000, -2 * torch.arange(half) / channels)
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], dim=1)[:, :channels]


class TorchTranslator(nn.Module):
    """nn.Transformer, with one embedding for source, target and output."""

    def __init__(self, vocabulary, length, channels, heads, layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)
        nn.init.normal_(self.embedding.weight, std=channels**-0.5)
        self.register_buffer("positions", sinusoids(length, channels))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length))
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(channels, heads, layers, layers, 2 * channels, dropout, batch_first=True)

    def embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.shape[1]])

    def forward(self, source, inputs):
        mask = self.causal[: inputs.shape[1], : inputs.shape[1]]
        x = self.transformer(self.embed(source), self.embed(inputs), tgt_mask=mask, tgt_is_causal=True)
        return x @ self.embedding.weight.t()


class MarianTranslator(nn.Module):
    def __init__(self, vocabulary, length, channels, heads, layers, dropout):
        super().__init__()
        # Imported only if needed, because it takes seconds.
        from transformers import MarianConfig, MarianMTModel

        self.marian = MarianMTModel(
            MarianConfig(
                vocab_size=vocabulary,
                d_model=channels,
                encoder_layers=layers,
                decoder_layers=layers,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                encoder_ffn_dim=2 * channels,
                decoder_ffn_dim=2 * channels,
                max_position_embeddings=length,
                activation_function="relu",
                scale_embedding=True,
                dropout=dropout,
                attention_dropout=dropout,
                use_cache=False,
                pad_token_id=PADDING,
                eos_token_id=END,
                decoder_start_token_id=PADDING,
                forced_eos_token_id=None,
                bos_token_id=None,
            )
        )

    def forward(self, source, inputs):
        return self.marian(input_ids=source, decoder_input_ids=inputs).logits


def create_model(variant, *sizes):
    return {"huggingface": MarianTranslator, "torch": TorchTranslator}[variant](*sizes).train()


def loss_function(module):
    """Returns a loss function of source (B, S), target (B, T) and a mask, which is ignored: there
    is no padding."""

    def loss(source, target, _):
        inputs = F.pad(target[:, :-1], (1, 0), value=PADDING)
        logits = module(source, inputs)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=SMOOTHING)

    return loss
