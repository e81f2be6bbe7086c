"""The Fastformer of fastformer.c as a class of Hugging Face transformers.

Every run directory of train_fastformer holds this file beside its weights, so that

    AutoModelForCausalLM.from_pretrained(RUN, trust_remote_code=True)

loads them. Windowed sums are exact, as in the C program: nothing is ever subtracted. Training, evaluation and
generation go through the same sums; generation remembers what the windows hold, whatever the position.

B batch, T tokens, C channels, H heads, D = C/H, k window.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

GLOBAL_BLOCK = 64  # rows that a global sum adds before they join the total


class FastformerConfig(PretrainedConfig):
    model_type = "fastformer"
    attribute_map = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_heads",
                     "max_position_embeddings": "n_positions"}

    def __init__(self, vocab_size=32000, hidden_size=128, n_layer=6, n_heads=4, n_positions=2048, window_sizes=None,
                 rescale=10.0, eps_denominator=1e-5, pool="normalised", dropout=0.1, padding_token=-1, **kwargs):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.n_layer = n_layer
        self.n_heads = n_heads
        self.n_positions = n_positions
        self.window_sizes = window_sizes or [n_positions] * n_layer  # n_positions or more: global
        self.rescale = rescale
        self.eps_denominator = eps_denominator  # 0: softmax, 1: softmax1
        self.pool = pool  # "normalised" or "raw": what is pooled
        self.dropout = dropout
        self.padding_token = padding_token  # -1: none
        super().__init__(**kwargs)


class WindowSum:
    """Sums over the last k rows of a sequence that may come in pieces (van Herk 1992; Gil and Werman 1993).

    The sequence is cut into blocks of k rows: the window that ends at row r of a block is the suffix r+1 .. k-1 of
    the block before plus the prefix 0 .. r of its own. A global sum keeps the total of all blocks before instead.
    """

    def __init__(self, window: Optional[int]):
        self.window = window  # None: global
        self.block = window or GLOBAL_BLOCK
        self.before = None  # (B, H, k, N) suffix sums of the block before, or (B, H, 1, N) the total of all before
        self.current = None  # (B, H, < k, N) rows of the current block

    def __call__(self, rows):  # (B, H, n, N) -> the same shape
        B, H, n, N = rows.shape
        k = self.block
        if self.current is None:
            self.current = rows.new_zeros(B, H, 0, N)
            self.before = rows.new_zeros(B, H, k if self.window else 1, N)
        place = self.current.shape[2]
        rows = torch.cat([self.current, rows], 2)
        full = rows.shape[2] // k
        blocks = F.pad(rows, (0, 0, 0, -rows.shape[2] % k)).view(B, H, -1, k, N)
        prefix = blocks.cumsum(3)
        if self.window:
            suffix = torch.cat([self.before.unsqueeze(2), blocks.flip(3).cumsum(3).flip(3)], 2)
            rest = F.pad(suffix[:, :, :-1, 1:], (0, 0, 0, 1))  # of the block before, from row r + 1 on
            self.before = suffix[:, :, full]
        else:
            totals = torch.cat([self.before, prefix[:, :, :, -1]], 2).cumsum(2)
            rest = totals[:, :, :-1].unsqueeze(3)
            self.before = totals[:, :, full : full + 1]
        self.current = rows[:, :, full * k :]
        return (prefix + rest).view(B, H, -1, N)[:, :, place : place + n]


class FastformerState:
    """What generation remembers: for each layer the sums of pooled queries and keys. Its size does not grow."""

    def __init__(self, config: FastformerConfig):
        windows = [None if k >= config.n_positions or k <= 0 else k for k in config.window_sizes]
        self.sums = [(WindowSum(k), WindowSum(k)) for k in windows]
        self.position = 0


@dataclass
class FastformerOutput(ModelOutput):
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None  # (B, T, V)
    state: Optional[FastformerState] = None


def normal(x):
    """(x - mean) / (deviation + 1e-5) over the last dimension."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


class AdditiveAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        C, H = config.hidden_size, config.n_heads
        self.heads, self.size = H, C // H
        self.scale, self.sink = config.rescale / (C // H), config.eps_denominator
        self.raw = config.pool == "raw"
        self.dropout = config.dropout
        self.attn_norm = nn.LayerNorm(C, eps=1e-5)
        self.projections = nn.Linear(C, 3 * C, bias=False)
        self.query_attn = nn.Parameter(torch.empty(H, C // H))
        self.key_attn = nn.Parameter(torch.empty(H, C // H))

    def pool(self, x, weight, total, mask):  # (B, H, T, D), (H, D) -> (B, H, T, D)
        normed = normal(x)
        score = self.scale * torch.einsum("bhtd,hd->bht", normed, normal(weight))
        e = score.exp()
        if mask is not None:
            e = e * mask[:, None, :].to(e.dtype)
        e = e.unsqueeze(-1)
        sums = total(torch.cat([e * (x if self.raw else normed), e], -1))
        denominator = sums[..., -1:] + self.sink
        return sums[..., :-1] / denominator.masked_fill(denominator == 0, 1)

    def forward(self, x, sums, mask):  # (B, T, C) -> (B, T, C)
        B, T, C = x.shape
        qkv = self.projections(self.attn_norm(x)).view(B, T, 3, self.heads, self.size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        query = F.dropout(self.pool(q, self.query_attn, sums[0], mask), self.dropout, self.training)
        key = F.dropout(self.pool(query * k, self.key_attn, sums[1], mask), self.dropout, self.training)
        return (key * v).transpose(1, 2).reshape(B, T, C)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.hidden_size
        self.attention = AdditiveAttention(config)
        self.boom_norm = nn.LayerNorm(C, eps=1e-5)
        self.boom = nn.Linear(C, 4 * C, bias=False)
        self.unboom = nn.Linear(4 * C, C, bias=False)
        self.dropout = config.dropout

    def forward(self, x, sums, mask):
        x = x + self.attention(x, sums, mask)
        hidden = self.unboom(F.gelu(self.boom(self.boom_norm(x))))
        return x + F.dropout(hidden, self.dropout, self.training)


class Layers(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.position_embeddings = nn.Embedding(config.n_positions, config.hidden_size)
        self.decoders = nn.ModuleList(Layer(config) for _ in range(config.n_layer))


class OutputBias(nn.Module):
    """Logits are products with the token embedding; this is what is added to them."""

    def __init__(self, config):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class FastformerForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = FastformerConfig
    base_model_prefix = "fastformer_model"
    main_input_name = "input_ids"
    _is_stateful = True  # no generation that would have to take tokens back

    def __init__(self, config):
        super().__init__(config)
        padding = config.padding_token if config.padding_token >= 0 else None
        self.word_embedding = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=padding)
        self.fastformer_model = Layers(config)
        self.last_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.proj_logits = OutputBias(config)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0, 0.02)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, AdditiveAttention):
            nn.init.normal_(module.query_attn, 0, 0.02)
            nn.init.normal_(module.key_attn, 0, 0.02)

    def get_input_embeddings(self):
        return self.word_embedding

    def set_input_embeddings(self, embedding):
        self.word_embedding = embedding

    def forward(self, input_ids, attention_mask=None, labels=None, state=None, use_cache=False, return_dict=None,
                **kwargs):
        T = input_ids.shape[1]
        keeps = use_cache or state is not None
        state = state if state is not None else FastformerState(self.config)
        if state.position + T > self.config.n_positions:
            raise ValueError(f"{state.position + T} tokens, the model has {self.config.n_positions} positions")
        mask = None if attention_mask is None or bool(attention_mask.all()) else attention_mask[:, -T:]
        positions = torch.arange(state.position, state.position + T, device=input_ids.device)
        x = self.word_embedding(input_ids) + self.fastformer_model.position_embeddings(positions)
        x = F.dropout(x, self.config.dropout, self.training)
        for layer, sums in zip(self.fastformer_model.decoders, state.sums):
            x = layer(x, sums, mask)
        state.position += T
        logits = F.linear(self.last_norm(x), self.word_embedding.weight, self.proj_logits.bias)
        loss = None
        if labels is not None:  # -100: not counted; position i predicts labels[i + 1]
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return FastformerOutput(loss=loss, logits=logits, state=state if keeps else None)

    # ---- generate()

    def prepare_inputs_for_generation(self, input_ids, state=None, attention_mask=None, **kwargs):
        if state is not None:
            input_ids = input_ids[:, state.position :]
        return {"input_ids": input_ids, "attention_mask": attention_mask, "state": state, "use_cache": True}

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, is_encoder_decoder=False, **kwargs):
        model_kwargs["state"] = outputs.state
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs["attention_mask"] = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], 1)
        return model_kwargs

    def _prepare_cache_for_generation(self, *args, **kwargs):
        return  # the state is the only one there is
