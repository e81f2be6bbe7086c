"""The Fastformer of fastformer.c as a class of Hugging Face transformers (4.57 or later).

Every run directory of train_fastformer holds this file next to its weights, so that

    AutoModelForCausalLM.from_pretrained(RUN, trust_remote_code=True)

loads them. Windowed sums are exact, as in the C program: nothing is ever subtracted. Training, evaluation and
generation go through the same sums; generation remembers what the windows hold, whatever the position.

B batch, T tokens, C channels, H heads, D = C/H, k window, V vocabulary.
"""

from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

logger = logging.get_logger(__name__)

GLOBAL_BLOCK = 64  # rows of a block whose sum is added to the total of a global sum
# The name of the cache in this version of transformers.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


def growing_windows(layers, positions):
    """Returns windows of 4 * 2^l tokens for layer l, and of all tokens for the last layer."""
    return [min(4 * 2**layer, positions) for layer in range(layers - 1)] + [positions]


class FastformerConfig(PretrainedConfig):
    model_type = "fastformer"
    keys_to_ignore_at_inference = [CACHE]
    attribute_map = {
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "n_positions",
        "hidden_dropout_prob": "dropout",
    }

    def __init__(self, vocab_size=32000, hidden_size=128, n_layer=6, n_heads=4, n_positions=2048, window_sizes=None,
                 attention=None, rescale=10.0, eps_denominator=1e-5, pool="normalised", query_gain=0.0,
                 positions="learned", rotary_base=10000.0, rotary_part=1.0, token_shift=0.0, norm="layer",
                 norm_eps=1e-5, activation="gelu", intermediate_size=None, scores="usual", dropout=0.1,
                 padding_token=-1, initializer_range=0.02, use_cache=True, use_local_att=True, tie_word_embeddings=True,
                 pad_token_id=None, bos_token_id=None, eos_token_id=None, **kwargs):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.n_layer = kwargs.pop("num_hidden_layers", n_layer)
        self.n_heads = kwargs.pop("num_attention_heads", n_heads)
        self.n_positions = kwargs.pop("max_position_embeddings", n_positions)
        if window_sizes and not use_local_att:
            raise ValueError("use_local_att=False: expected no window_sizes")
        growing = use_local_att and growing_windows(self.n_layer, self.n_positions)
        self.window_sizes = window_sizes or growing or [self.n_positions] * self.n_layer  # n_positions: global
        self.attention = attention or ["additive"] * self.n_layer  # of each layer, or "softmax" or "softmax1"
        self.rescale = rescale
        self.eps_denominator = eps_denominator  # 0: softmax, 1: softmax1
        self.pool = pool  # pools "normalised" or "raw" vectors
        self.query_gain = query_gain  # initial gain, learned per channel, of pooled queries in the result; 0: none
        self.positions = positions  # "learned", "rotary" (of softmax's queries and keys) or "none"
        self.rotary_base = rotary_base  # of the angles of rotary positions
        self.rotary_part = rotary_part  # share of channel pairs that rotate, the fastest ones
        self.token_shift = token_shift  # share of channels read from the token before, the first
        self.norm = norm  # "layer" or "rms"
        self.norm_eps = norm_eps
        self.activation = activation  # "gelu", "relu", "relu2" (its square) or "swiglu"
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.scores = scores  # "usual" or "qknorm" (softmax of normalised queries and keys)
        self.dropout = kwargs.pop("hidden_dropout_prob", dropout)
        self.padding_token = padding_token  # its embedding has no gradient; -1: none
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, pad_token_id=pad_token_id,
                         bos_token_id=bos_token_id, eos_token_id=eos_token_id, **kwargs)
        known = vars(PretrainedConfig()).keys() | vars(PretrainedConfig).keys() | {"auto_map"}
        for name in sorted(kwargs.keys() & vars(self).keys() - known):
            if not name.startswith("_"):
                logger.warning(f"FastformerConfig: unknown argument {name}, which changes nothing")


class WindowSum:
    """Sums over the last k rows of a sequence that may arrive in pieces (van Herk 1992; Gil and
    Werman 1993).

    The sequence is cut into blocks of k rows: the window that ends at row r of a block is the
    suffix r+1 .. k-1 of the previous block plus the prefix 0 .. r of its own. A global sum keeps
    the total of all previous blocks instead."""

    def __init__(self, window: Optional[int]):
        self.window = window  # None: global
        self.block = window or GLOBAL_BLOCK
        self.before = None  # (B, H, k, N) suffix sums of the previous block, or (B, H, 1, N) the total of all
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
            rest = F.pad(suffix[:, :, :-1, 1:], (0, 0, 0, 1))  # of the previous block, from row r + 1 on
            self.before = suffix[:, :, full]
        else:
            totals = torch.cat([self.before, prefix[:, :, :, -1]], 2).cumsum(2)
            rest = totals[:, :, :-1].unsqueeze(3)
            self.before = totals[:, :, full : full + 1]
        self.current = rows[:, :, full * k :]
        return (prefix + rest).view(B, H, -1, N)[:, :, place : place + n]

    def select(self, rows):  # (B') indices of the sequences that continue
        if self.current is not None:
            rows = rows.to(self.current.device)
            self.before, self.current = self.before.index_select(0, rows), self.current.index_select(0, rows)


class LastRows:
    """The last k - 1 rows of a sequence that may arrive in pieces: those that the next row sees
    besides itself."""

    def __init__(self, window: Optional[int]):
        self.window = window  # None: global
        self.rows = None  # (B, H, < k, N)
        self.count = 0  # rows so far

    def __call__(self, rows):  # (B, H, n, N) -> (B, H, kept + n, N)
        self.count += rows.shape[2]
        rows = rows if self.rows is None else torch.cat([self.rows, rows], 2)
        self.rows = rows[:, :, max(0, rows.shape[2] - self.window + 1) :] if self.window else rows
        return rows

    def select(self, rows):  # as above
        if self.rows is not None:
            self.rows = self.rows.index_select(0, rows.to(self.rows.device))


def layer_window(config, layer):
    """Returns the window of a layer; None: global, in texts of any length."""
    window = config.window_sizes[layer]
    return window if window < config.n_positions else None


def layer_memory(config, layer):
    """Returns the sums of pooled queries and of pooled keys, or softmax's last keys and values;
    then the last input."""
    window = layer_window(config, layer)
    if config.attention[layer] == "additive":
        return WindowSum(window), WindowSum(window), LastRows(2)
    return LastRows(window), LastRows(2)


class FastformerCache:
    """The state that generation keeps of each layer. It grows only with global softmax, and cannot
    be cropped."""

    is_compileable = is_croppable = False
    is_linear = [False]  # it knows its length

    def __init__(self, config: FastformerConfig):
        self.layers = [layer_memory(config, layer) for layer in range(config.n_layer)]
        self.position = 0

    def get_seq_length(self, layer_idx=0):
        return self.position

    def get_max_cache_shape(self, layer_idx=0):
        return -1  # no limit

    def reorder_cache(self, beam_idx):
        for part in (part for layer in self.layers for part in layer):
            part.select(beam_idx)


def rotated(x, first, base, part):
    """Rotates rows (B, H, T, D) by the angles of positions first, first + 1, ...: pairs are in the
    two halves of a row, as in Hugging Face's Llama. Of the D/2 pairs only the fastest share `part`
    rotates."""
    T, D = x.shape[2:]
    pairs = torch.arange(D // 2, device=x.device)
    rates = base ** -(pairs.double() / (D // 2)) * (pairs < int(part * D // 2))
    angles = torch.arange(first, first + T, device=x.device)[:, None] * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def shifted(x, part, mask, last):
    """Returns rows (B, T, C) whose first channels are those of the previous row; 0 if none exists
    or the mask hides it."""
    B, T, C = x.shape
    n = int(part * C + 0.5)
    if not n:
        return x
    rows = x[..., :n] if mask is None else x[..., :n] * mask[..., None].to(x.dtype)
    before = F.pad(last(rows[:, None]), (0, 0, 1, 0))[:, 0, -T - 1 : -1]
    return torch.cat([before, x[..., n:]], -1)


def normal(x):
    """Returns (x - mean) / (deviation + 1e-5) over the last dimension."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def norm_layer(config, size):
    return (nn.RMSNorm if config.norm == "rms" else nn.LayerNorm)(size, eps=config.norm_eps)


class AdditiveAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        C, H = config.hidden_size, config.n_heads
        self.heads, self.size = H, C // H
        self.memory = lambda: layer_memory(config, layer)
        self.scale, self.sink = config.rescale / (C // H), config.eps_denominator
        self.raw = config.pool == "raw"
        self.query_gain = None
        if config.query_gain > 0:
            self.query_gain = nn.Parameter(torch.full((C,), float(config.query_gain)))
        self.shift = config.token_shift
        self.dropout = config.dropout
        self.attn_norm = norm_layer(config, C)
        self.projections = nn.Linear(C, 3 * C, bias=False)
        self.query_attn = nn.Parameter(torch.empty(H, C // H))
        self.key_attn = nn.Parameter(torch.empty(H, C // H))

    def pool(self, x, weight, total, mask):  # (B, H, T, D), (H, D) -> (B, H, T, D)
        """Computes in float32 at least, as exp(score) and its sums exceed the range of float16."""
        kind = x.dtype
        x, weight = (y.to(torch.promote_types(kind, torch.float32)) for y in (x, weight))
        normed = normal(x)
        e = (self.scale * (normed * normal(weight)[:, None]).sum(-1, keepdim=True)).exp()
        if mask is not None:
            e = e * mask[:, None, :, None].to(e.dtype)
        sums = total(torch.cat([e * (x if self.raw else normed), e], -1))
        denominator = sums[..., -1:] + self.sink
        return (sums[..., :-1] / denominator.masked_fill(denominator == 0, 1)).to(kind)

    def forward(self, x, mask, sums):  # (B, T, C) -> (B, T, C); sums None: only these rows
        B, T, C = x.shape
        sums = sums or self.memory()
        x = shifted(self.attn_norm(x), self.shift, mask, sums[2])
        qkv = self.projections(x).view(B, T, 3, self.heads, self.size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        query = F.dropout(self.pool(q, self.query_attn, sums[0], mask), self.dropout, self.training)
        key = F.dropout(self.pool(query * k, self.key_attn, sums[1], mask), self.dropout, self.training)
        y = (key * v).transpose(1, 2).reshape(B, T, C)
        if self.query_gain is not None:
            y = y + self.query_gain * query.transpose(1, 2).reshape(B, T, C)
        return y


class SoftmaxAttention(nn.Module):
    """Softmax attention to the last k tokens. softmax1 adds 1 to the denominator: a score of 0
    whose weight is dropped."""

    def __init__(self, config, layer):
        super().__init__()
        C, H = config.hidden_size, config.n_heads
        self.heads, self.size = H, C // H
        self.window, self.sink = layer_window(config, layer), config.attention[layer] == "softmax1"
        self.memory = lambda: layer_memory(config, layer)
        self.base = config.rotary_base if config.positions == "rotary" else None
        self.part = config.rotary_part
        self.shift = config.token_shift
        self.dropout = config.dropout
        self.attn_norm = norm_layer(config, C)
        self.projections = nn.Linear(C, 3 * C, bias=False)
        self.normalised = config.scores == "qknorm"
        if self.normalised:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.size, eps=config.norm_eps) for _ in range(2))
        self.output = nn.Linear(C, C, bias=False)

    def forward(self, x, mask, memory):  # as above
        B, T, C = x.shape
        last, before = memory or self.memory()
        x = shifted(self.attn_norm(x), self.shift, mask, before)
        q, k, v = self.projections(x).view(B, T, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        seen = x.new_ones(B, T) if mask is None else mask.to(x.dtype)
        if self.normalised:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.base:
            q, k = (rotated(rows, last.count, self.base, self.part) for rows in (q, k))
        rows = last(torch.cat([k, v, seen[:, None, :, None].expand(B, self.heads, T, 1)], -1))
        k, v, seen = rows.split([self.size, self.size, 1], -1)
        n = rows.shape[2]
        age = torch.arange(n - T, n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        hidden = (age < 0) | (seen.transpose(2, 3) == 0)  # (B, H, T, n)
        if self.window:
            hidden = hidden | (age >= self.window)
        scores = (q @ k.transpose(2, 3) / self.size**0.5).to(torch.promote_types(x.dtype, torch.float32))
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = F.pad(scores, (0, int(self.sink))).softmax(-1)[..., :n].masked_fill(hidden, 0)
        y = F.dropout(weights.to(v.dtype), self.dropout, self.training) @ v
        return F.dropout(self.output(y.transpose(1, 2).reshape(B, T, C)), self.dropout, self.training)


def swiglu(x):  # (..., 2 F): gates, then values -> (..., F)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def squared_relu(x):
    return F.relu(x) ** 2


ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "relu2": squared_relu, "swiglu": swiglu}


class Layer(GradientCheckpointingLayer):
    def __init__(self, config, layer):
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        additive = config.attention[layer] == "additive"
        self.attention = (AdditiveAttention if additive else SoftmaxAttention)(config, layer)
        self.boom_norm = norm_layer(config, C)
        self.boom = nn.Linear(C, inner * (2 if config.activation == "swiglu" else 1), bias=False)
        self.unboom = nn.Linear(inner, C, bias=False)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = config.dropout

    def forward(self, x, mask, memory):
        x = x + self.attention(x, mask, memory)
        hidden = self.unboom(self.activation(self.boom(self.boom_norm(x))))
        return x + F.dropout(hidden, self.dropout, self.training)


CHOICES = {
    "pool": ("normalised", "raw"),
    "positions": ("learned", "rotary", "none"),
    "norm": ("layer", "rms"),
    "activation": tuple(ACTIVATIONS),
    "scores": ("usual", "qknorm"),
}


class Layers(nn.Module):
    def __init__(self, config):
        super().__init__()
        if config.positions == "learned":
            self.position_embeddings = nn.Embedding(config.n_positions, config.hidden_size)
        self.decoders = nn.ModuleList(Layer(config, layer) for layer in range(config.n_layer))


class FastformerForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = FastformerConfig
    base_model_prefix = "fastformer_model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer"]
    _tied_weights_keys = {"proj_logits.weight": "word_embedding.weight"}
    _is_stateful = True  # no generation that has to remove tokens

    def __init__(self, config):
        super().__init__(config)
        windows, channels, heads = config.window_sizes, config.hidden_size, config.n_heads
        if len(windows) != config.n_layer or min(windows) < 1:
            raise ValueError(f"window_sizes {windows}: expected {config.n_layer} windows of 1 token or more")
        if len(config.attention) != config.n_layer or set(config.attention) - {"additive", "softmax", "softmax1"}:
            raise ValueError(f"attention {config.attention}: expected additive, softmax or softmax1 for each layer")
        if channels % heads or channels < 2 * heads:
            raise ValueError(f"hidden_size {channels}: expected {heads} heads of 2 channels or more")
        for name, choices in CHOICES.items():
            if getattr(config, name) not in choices:
                raise ValueError(f'{name} "{getattr(config, name)}": expected one of {", ".join(choices)}')
        if config.positions == "rotary" and channels // heads % 2:
            raise ValueError(f"positions rotary: heads of {channels // heads} channels; they must be even")
        padding = config.padding_token if config.padding_token >= 0 else None
        self.word_embedding = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=padding)
        self.fastformer_model = Layers(config)
        self.last_norm = norm_layer(config, config.hidden_size)
        self.proj_logits = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _init_weights(self, module):
        deviation = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0, deviation)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            nn.init.ones_(module.weight)
        if isinstance(module, AdditiveAttention):
            nn.init.normal_(module.query_attn, 0, deviation)
            nn.init.normal_(module.key_attn, 0, deviation)
            if module.query_gain is not None:
                nn.init.constant_(module.query_gain, self.config.query_gain)

    def get_input_embeddings(self):
        return self.word_embedding

    def set_input_embeddings(self, embedding):
        self.word_embedding = embedding

    def get_output_embeddings(self):
        return self.proj_logits

    def set_output_embeddings(self, projection):
        self.proj_logits = projection

    def positions(self, tokens, before, attention_mask, position_ids):
        """Returns the positions of the last `tokens` tokens: those given, or counted without tokens
        that the mask hides."""
        if position_ids is None and attention_mask is not None and attention_mask.shape[1] == before + tokens:
            position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        if position_ids is None:
            position_ids = torch.arange(before, before + tokens, device=self.device)[None]
        position_ids = position_ids[:, -tokens:]
        limit = self.config.n_positions
        if before + tokens > limit and int(position_ids.max()) >= limit:
            raise ValueError(f"a token is at position {int(position_ids.max())}, the model has {limit} positions")
        return position_ids

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, cache=None,
                inputs_embeds=None, labels=None, use_cache=None, output_hidden_states=None, return_dict=None,
                logits_to_keep=0, **kwargs):
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected either input_ids or inputs_embeds")
        x = self.word_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        T = x.shape[1]
        cache = past_key_values if cache is None else cache
        checkpointing = any(layer.gradient_checkpointing for layer in self.fastformer_model.decoders)
        if checkpointing and self.training and torch.is_grad_enabled():
            cache = None  # layers run twice
        elif cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = FastformerCache(self.config)
        mask = None if attention_mask is None else attention_mask[:, -T:]
        if self.config.positions == "learned":
            position_ids = self.positions(T, cache.position if cache else 0, attention_mask, position_ids)
            x = x + self.fastformer_model.position_embeddings(position_ids)
        x = F.dropout(x, self.config.dropout, self.training)
        hidden = [x]
        for i, layer in enumerate(self.fastformer_model.decoders):
            x = layer(x, mask, cache.layers[i] if cache else None)
            hidden.append(x)
        if cache:
            cache.position += T
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.proj_logits(self.last_norm(x)[:, kept])
        loss = None
        if labels is not None:  # -100: ignored; position i predicts labels[i + 1]
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        shows = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=tuple(hidden) if shows else None,
                                        **{CACHE: cache})
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        if model_kwargs.get(CACHE) is None and generation_config.use_cache is not False:
            model_kwargs[CACHE] = FastformerCache(self.config)
