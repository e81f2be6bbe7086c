#!/usr/bin/env python3
"""The models of this project in PyTorch: what the trainers are measured against (peers.py, pytorch_peer.py).

    python3 dev/bench/pytorch_models.py check [FILE...]    default: dev/reference/*.safetensors

check compares logits, loss, gradients and training steps with the reference vectors in float64.

Two Fastformers share one module tree, with the parameter names of the published class:

    published   what the published class does: windowed sums as cumsum(i) - cumsum(i-k), which cancel in float32,
                and all B*T*V logits at once
    ours        the fastest PyTorch found, see README.md: windowed sums by doubling, which nothing cancels in, and a
                classifier that takes rows in chunks and makes its gradients in the forward pass

GPT-2:

    huggingface     Hugging Face's class with SDPA, as it comes
    ours            the fastest PyTorch found: a class of its own, attention in blocks of queries, our classifier
    flash           the same, with PyTorch's own attention: its flash kernel, if nothing of the weights is dropped

"plain" is for GPUs, where PyTorch's own kernels are fast: both models with all logits at once and PyTorch's dropout.

B batch, T sequence length, C channels, H heads, D = C/H, V vocabulary, k window.
"""

import functools
import glob
import json
import os
import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

NOT_COUNTED = -100  # a target that the loss ignores
PADDING = 0  # the padding token
MASKED = -10000.0  # added to the score of a padded position: its weight becomes exactly 0


@dataclass(frozen=True)
class Config:
    vocabulary: int
    length: int  # T, rows of the position embedding
    channels: int
    heads: int
    layers: int
    windows: tuple = ()  # one per layer; empty: 4, 8, 16, .. and the last layer global
    rescale: float = 10.0
    sink: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.1  # of GPT-2's attention weights

    def window(self, layer):
        if self.windows:
            return self.windows[layer]
        return min(4 << layer, self.length) if layer + 1 < self.layers else self.length


# ---- windowed sums of y (B, T, ...): sum_{j = max(0, i-k+1) .. i} y_j ------------------------------------------------


def window_sum_published(y, k):
    total = torch.cumsum(y, dim=1)
    before = torch.clone(total)
    before[:, -k:] = 0
    return total - torch.roll(before, k, 1)


def delay(y, steps):
    """Returns y shifted right by `steps` positions, with zeros before it."""
    return F.pad(y[:, :-steps], (0, 0) * (y.dim() - 2) + (steps, 0))


SCAN = 32  # PyTorch may split longer cumulative sums among thread blocks


def prefix_sum(y):
    """Computes torch.cumsum(y, dim=1) on GPUs: cumulative sums within blocks of SCAN positions,
    plus those of the blocks' totals, recursively. PyTorch 2.11 does not compile a cumulative sum
    that it splits (issue 180221: a broadcast input), and without the compiler one thread sums a
    channel's whole sequence."""
    T = y.shape[1]
    if T <= SCAN:
        return torch.cumsum(y, dim=1)
    padded = F.pad(y, (0, 0) * (y.dim() - 2) + (0, -T % SCAN))
    within = torch.cumsum(padded.unflatten(1, (-1, SCAN)), dim=2)
    before = delay(prefix_sum(within[:, :, -1]), 1)
    return (within + before.unsqueeze(2)).flatten(1, 2)[:, :T]


def window_sum_doubling(y, k):
    """Computes the sum over 2n positions as the sum over n positions plus the same n positions
    earlier: log2(k) additions, which a compiler fuses, and no subtraction."""
    if k >= y.shape[1]:
        return prefix_sum(y) if y.is_cuda else torch.cumsum(y, dim=1)
    power, size = y, 1  # sum over the last `size` positions
    result, done = None, 0  # sum over the last `done`
    while done < k:
        if k & size:
            result = power if result is None else result + delay(power, done)
            done += size
        if done < k:
            power = power + delay(power, size)
            size *= 2
    return result


# ---- the classifier --------------------------------------------------------------------------------------------------

CHUNK = 1024  # rows: as fast as any other size; fewer rows take less memory and slightly longer
SLICE = 4000  # rows of the vocabulary: their logits stay in cache between two products
BIAS_COLUMNS = 16  # one is enough, but 144 columns fill whole vectors
LARGEST = 80.0  # larger logits, which training never reaches, are clamped to it


def classifier_chunk(hidden, weight, bias, targets, scale):
    """Returns, for one chunk of rows, the sum of the losses and the gradients of `scale` times this
    sum to hidden (R, C) and to weight (V, C). The weight's gradient lacks the targets' term, which
    the caller subtracts. With a bias (V, or None) it has BIAS_COLUMNS more columns, each of them
    the bias' gradient, again without the targets' term. hidden and weight have the precision of the
    matrix products. Exponentials are divided by their sums only after the products, so each logit
    is visited once."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    counted = (targets != NOT_COUNTED).unsqueeze(1)
    places = torch.where(counted.squeeze(1), targets, 0)
    total, d_hidden, parts = 0.0, 0.0, []
    for start in range(0, weight.shape[0], SLICE):
        rows = weight[start : start + SLICE]
        logits = (hidden @ rows.t()).to(wide)
        if bias is not None:
            logits = logits + bias[start : start + SLICE]
        part = logits.clamp(max=LARGEST).exp()
        total = total + part.sum(-1, keepdim=True)
        part = part.to(hidden.dtype)
        d_hidden = d_hidden + (part @ rows).to(wide)
        parts.append(part)
    factor = counted * scale / total
    own = weight[places].to(wide)
    target = (hidden.to(wide) * own).sum(-1, keepdim=True)
    if bias is not None:
        target = target + bias[places].unsqueeze(1)
    loss = ((total.log() - target) * counted).sum()
    columns = hidden.to(wide) * factor
    if bias is not None:
        columns = torch.cat([columns, factor.expand(-1, BIAS_COLUMNS)], 1)
    columns = columns.to(hidden.dtype)
    d_weight = torch.cat([part.t() @ columns for part in parts])
    return loss, d_hidden * factor - own * (counted * scale), d_weight


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of hidden (N, C) @ weight (V, C)^T + bias (V, or None) against targets
    (N), with matrix products in `precision`. The forward pass computes the gradients chunk by
    chunk, while the logits are in cache."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, precision, chunk):
        counted = targets != NOT_COUNTED
        scale = 1.0 / counted.sum().to(weight.dtype)
        C = hidden.shape[1]
        hidden_cast, weight_cast = hidden.to(precision), weight.to(precision)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        loss = weight.new_zeros(())
        for start in range(0, hidden.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            part = chunk(hidden_cast[rows], weight_cast, bias, targets[rows], scale)
            loss += part[0]
            d_hidden[rows] = part[1]
            d_weight += part[2][:, :C]
            if bias is not None:
                d_bias += part[2][:, C]
        places = torch.where(counted, targets, 0)
        d_weight.index_add_(0, places, hidden.detach() * counted.unsqueeze(1), alpha=-scale.item())
        if bias is not None:
            d_bias.index_add_(0, places, counted.to(bias.dtype), alpha=-scale.item())
        ctx.gradients = [d_hidden, d_weight, d_bias]
        return loss * scale

    @staticmethod
    def backward(ctx, gradient):
        gradients, ctx.gradients = ctx.gradients, None  # avoids copies of them
        factor = gradient.item()
        return *(d if d is None or factor == 1 else factor * d for d in gradients), None, None, None


# ---- dropout ---------------------------------------------------------------------------------------------------------


def signed(word):
    """Returns a 32-bit word as the int32 with the same bits."""
    return word - (1 << 32) if word >> 31 else word


class HashedDropout(nn.Module):
    """Dropout whose mask is a hash of a seed and of each element's index (Wellons, "lowbias32"), in
    integer arithmetic that a compiler vectorises and fuses. PyTorch's own generators take 20 times
    as long on a CPU."""

    def __init__(self, p):
        super().__init__()
        self.p = p
        self.register_buffer("seed", torch.zeros((), dtype=torch.int32), persistent=False)

    def forward(self, x, first=0):
        """`first` is the index of x's first element."""
        if not self.training or self.p == 0:
            return x
        word = (torch.arange(x.numel(), dtype=torch.int32).view(x.shape) + first) ^ self.seed
        word = (word ^ ((word >> 16) & 0xFFFF)) * 0x7FEB352D
        word = (word ^ ((word >> 15) & 0x1FFFF)) * signed(0x846CA68B)
        word = word ^ ((word >> 16) & 0xFFFF)
        # As floats, because booleans are not vectorised.
        kept = torch.where(word < round((0.5 - self.p) * (1 << 32)), 1 / (1 - self.p), 0.0)
        return x * kept.to(x.dtype)


def draw_seeds(module):
    """Draws seeds for new masks; called before each training step."""
    for part in module.modules():
        if isinstance(part, HashedDropout):
            part.seed.random_(-(1 << 31), (1 << 31) - 1)


def replace_dropout(module):
    """Replaces each nn.Dropout by a HashedDropout."""
    for part in module.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, HashedDropout(child.p))


# ---- Fastformer ------------------------------------------------------------------------------------------------------


def normal(u):
    return (u - u.mean(dim=-1, keepdim=True)) / (u.std(dim=-1, keepdim=True) + 1e-5)


class Attention(nn.Module):
    def __init__(self, config, layer, published):
        super().__init__()
        C, H = config.channels, config.heads
        self.config = config
        self.window = config.window(layer)
        self.published = published
        self.attn_norm = nn.LayerNorm(C)
        self.projections = nn.Linear(C, 3 * C, bias=False)
        self.query_attn = nn.Parameter(torch.randn(H, C // H) * 0.02)
        self.key_attn = nn.Parameter(torch.randn(H, C // H) * 0.02)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, mask):
        query, key, value = self.projections(self.attn_norm(x)).chunk(3, dim=-1)  # (B, T, C) each
        pooled_query = self.dropout(self.pool(query, self.query_attn, mask))
        pooled_key = self.dropout(self.pool(pooled_query * key, self.key_attn, mask))
        return pooled_key * value

    def pool(self, x, weight, mask):
        """x (B, T, C), weight (H, D). mask (B, T, 1) is added to the scores; None: no padding."""
        B, T, C = x.shape
        H = self.config.heads
        if not self.published:  # sums are in float32 at any precision of the products
            x = x.to(torch.promote_types(x.dtype, torch.float32))
        window_sum = window_sum_published if self.published else window_sum_doubling
        x = normal(x.reshape(B, T, H, C // H))
        scores = (x * normal(weight)).sum(dim=-1) / (C // H) * self.config.rescale  # (B, T, H)
        if mask is not None:
            scores = scores + mask
        weights = scores.exp().unsqueeze(-1)
        pooled = window_sum(weights * x, self.window) / (window_sum(weights, self.window) + self.config.sink)
        return pooled.reshape(B, T, C)


class Layer(nn.Module):
    def __init__(self, config, layer, published):
        super().__init__()
        C = config.channels
        self.attention = Attention(config, layer, published)
        self.boom_norm = nn.LayerNorm(C)
        self.boom = nn.Linear(C, 4 * C, bias=False)
        self.unboom = nn.Linear(4 * C, C, bias=False)
        self.boom_drop = nn.Dropout(config.dropout)

    def forward(self, x, mask):
        x = x + self.attention(x, mask)
        return x + self.boom_drop(self.unboom(F.gelu(self.boom(self.boom_norm(x)))))


class Layers(nn.Module):
    def __init__(self, config, published):
        super().__init__()
        self.decoders = nn.ModuleList(Layer(config, layer, published) for layer in range(config.layers))
        self.position_embeddings = nn.Embedding(config.length, config.channels)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, mask):
        x = self.dropout(x + self.position_embeddings.weight[: x.shape[1]])
        for decoder in self.decoders:
            x = decoder(x, mask)
        return x


class Fastformer(nn.Module):
    untrained = PADDING  # the token whose embedding has no gradient

    def __init__(self, config, published):
        super().__init__()
        self.published = published
        self.word_embedding = nn.Embedding(config.vocabulary, config.channels, padding_idx=PADDING)
        self.fastformer_model = Layers(config, published)
        self.last_norm = nn.LayerNorm(config.channels)
        self.proj_logits = nn.Linear(config.channels, config.vocabulary)
        self.proj_logits.weight = self.word_embedding.weight
        self.apply(initialise)

    def hidden(self, x, mask=None):
        """Returns the last hidden states (B, T, C) of the tokens' embeddings (B, T, C); mask (B,
        T): 1 token, 0 padding."""
        if self.published and mask is None:
            mask = x.new_ones(x.shape[:2])
        if mask is not None:
            mask = ((1.0 - mask.to(self.last_norm.weight.dtype)) * MASKED).unsqueeze(-1)
        return self.last_norm(self.fastformer_model(x, mask))

    def logits(self, tokens, mask=None):
        return self.proj_logits(self.hidden(self.word_embedding(tokens), mask))

    def classifier(self):
        return self.proj_logits.weight, self.proj_logits.bias


def initialise(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# ---- GPT-2 -----------------------------------------------------------------------------------------------------------


def blocked_attention(query, key, value, visible, dropout):
    """Computes causal softmax attention in blocks of queries, each with the keys up to the block's
    end: half of the T x T scores are never computed. On a CPU PyTorch has a flash kernel only
    without dropout; with dropout it computes all of T x T.

    query, key, value (B, H, T, D); visible None or (B, 1, T, T), True where a key is visible."""
    T, wide = query.shape[2], torch.promote_types(query.dtype, torch.float32)
    block = max(256, T // 8)
    outputs = []
    for start in range(0, T, block):
        stop = min(start + block, T)
        scores = (query[:, :, start:stop] @ key[:, :, :stop].transpose(-1, -2)).to(wide) * query.shape[-1] ** -0.5
        place = torch.arange(stop, dtype=torch.int32)
        scores = scores + torch.where(place[start:].unsqueeze(1) >= place, 0.0, -torch.inf).to(wide)
        if visible is not None:
            scores = scores.masked_fill(~visible[:, :, start:stop, :stop], -torch.inf)
        weights = scores.softmax(dim=-1).to(value.dtype)
        weights = dropout(weights, start * T) if isinstance(dropout, HashedDropout) else dropout(weights)
        outputs.append(weights @ value[:, :, :stop])
    return torch.cat(outputs, dim=2)


class HuggingFaceGpt2(nn.Module):
    """Hugging Face's class, with "lm." before its parameter names."""

    def __init__(self, config):
        super().__init__()
        # Imported only if needed, because it takes seconds.
        from transformers import GPT2Config, GPT2LMHeadModel

        self.lm = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=config.vocabulary,
                n_positions=config.length,
                n_embd=config.channels,
                n_layer=config.layers,
                n_head=config.heads,
                resid_pdrop=config.dropout,
                embd_pdrop=config.dropout,
                attn_pdrop=config.attention_dropout,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
                attn_implementation="sdpa",
            )
        )
        self.lm.loss_type = "ForCausalLM"

    def logits(self, tokens, mask=None):
        return self.lm(tokens, attention_mask=mask).logits


class Conv1D(nn.Module):
    """A linear layer whose weight is (in, out), as in GPT-2's checkpoints."""

    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * deviation)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@functools.cache
def window_mask(window, length, device):
    """Returns FlexAttention's mask in which a query sees the last `window` keys."""
    return create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < window), None, None, length, length, device=device)


class Gpt2Attention(nn.Module):
    def __init__(self, config, blocked, residual_deviation):
        super().__init__()
        C = config.channels
        self.heads = config.heads
        self.blocked = blocked
        self.window = config.windows[0] if config.windows else None  # the same in all layers
        self.c_attn = Conv1D(C, 3 * C)
        self.c_proj = Conv1D(C, C, residual_deviation)
        self.dropout = nn.Dropout(config.attention_dropout)

    def forward(self, x, visible):
        """visible (B, 1, T, T): True where a key is visible; None: all positions up to the
        query's."""
        B, T, C = x.shape
        query, key, value = (
            y.view(B, T, self.heads, C // self.heads).transpose(1, 2) for y in self.c_attn(x).chunk(3, dim=-1)
        )
        if self.window:  # without dropout of weights
            y = flex_attention(query, key, value, block_mask=window_mask(self.window, T, str(x.device)))
        elif self.blocked:
            y = blocked_attention(query, key, value, visible, self.dropout)
        else:
            dropout = self.dropout.p if self.training else 0.0
            y = F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=dropout, is_causal=visible is None
            )
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Gpt2FeedForward(nn.Module):
    def __init__(self, channels, residual_deviation):
        super().__init__()
        self.c_fc = Conv1D(channels, 4 * channels)
        self.c_proj = Conv1D(4 * channels, channels, residual_deviation)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Layer(nn.Module):
    def __init__(self, config, blocked):
        super().__init__()
        deviation = 0.02 / (2 * config.layers) ** 0.5
        self.ln_1 = nn.LayerNorm(config.channels)
        self.attn = Gpt2Attention(config, blocked, deviation)
        self.ln_2 = nn.LayerNorm(config.channels)
        self.mlp = Gpt2FeedForward(config.channels, deviation)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, visible):
        x = x + self.dropout(self.attn(self.ln_1(x), visible))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class Gpt2Transformer(nn.Module):
    def __init__(self, config, blocked):
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.channels)
        self.wpe = nn.Embedding(config.length, config.channels)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Gpt2Layer(config, blocked) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.channels)

    def forward(self, x, mask):
        """x (B, T, C): the tokens' embeddings."""
        T = x.shape[1]
        visible = None
        if mask is not None:
            visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril() & mask.bool()[:, None, None, :]
        x = self.dropout(x + self.wpe.weight[:T])
        for layer in self.h:
            x = layer(x, visible)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """GPT-2 with Hugging Face's parameter names. blocked: uses blocked_attention(), else PyTorch's
    attention."""

    untrained = None

    def __init__(self, config, blocked):
        super().__init__()
        self.transformer = Gpt2Transformer(config, blocked)
        self.transformer.apply(initialise)

    def hidden(self, x, mask=None):
        return self.transformer(x, mask)

    def logits(self, tokens, mask=None):
        return self.hidden(self.transformer.wte(tokens), mask) @ self.transformer.wte.weight.t()

    def classifier(self):
        return self.transformer.wte.weight, None


# ---- training --------------------------------------------------------------------------------------------------------

VARIANTS = {"fastformer": ("published", "ours", "plain"), "gpt2": ("huggingface", "ours", "flash", "plain")}


def create_model(model, variant, config, compiled):
    if model == "fastformer":
        module = Fastformer(config, published=variant == "published")
    elif variant == "huggingface":
        module = HuggingFaceGpt2(config)
    else:
        module = Gpt2(config, blocked=variant == "ours")
    if variant in ("ours", "flash") and compiled:
        replace_dropout(module)
    return module


def shifted_loss(logits, labels):
    """Computes the loss as both published classes do: position i predicts labels (B, T) at i+1."""
    logits = logits[:, :-1].contiguous()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=NOT_COUNTED)


def next_tokens(labels):
    """Returns the target of each position of labels (B, T); the last position of a row has none."""
    targets = torch.full_like(labels, NOT_COUNTED)
    targets[:, :-1] = labels[:, 1:]
    return targets


def plain_loss(module):
    """Returns a function as loss_function() does, which computes all logits at once."""

    def loss(tokens, labels, mask):
        logits, targets = module.logits(tokens, mask), next_tokens(labels)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=NOT_COUNTED)

    return loss


def add_rows(total, tokens, rows, left_out):
    """Adds rows (B, T, C) to the rows of total (V, C) with the indices tokens (B, T), except for
    the token left_out."""
    if left_out is not None:
        rows = rows * (tokens != left_out).unsqueeze(-1)
    total.index_add_(0, tokens.flatten(), rows.flatten(0, 1))


def loss_function(variant, module, compiled, precision):
    """Returns a function of tokens (B, T), labels (B, T) and mask (B, T) or None that returns the
    training loss. labels are the tokens themselves. `precision` is that of the matrix products; the
    caller applies autocast."""
    compile_it = torch.compile if compiled else lambda function, **_: function
    if variant == "plain":
        return compile_it(plain_loss(module), dynamic=False)
    if variant == "huggingface":
        return compile_it(lambda tokens, labels, mask: module.lm(tokens, attention_mask=mask, labels=labels).loss)
    if variant == "published":
        return compile_it(lambda tokens, labels, mask: shifted_loss(module.logits(tokens, mask), labels))

    hidden = compile_it(module.hidden, dynamic=False)
    chunk = compile_it(classifier_chunk, dynamic=False)

    def loss(tokens, labels, mask):
        targets = next_tokens(labels)
        draw_seeds(module)
        weight, bias = module.classifier()
        # The classifier's gradient is computed first; the embedding's (same weight) is added to it.
        x = weight.detach()[tokens].requires_grad_()
        x.register_hook(lambda gradient: add_rows(weight.grad, tokens, gradient, module.untrained))
        rows = hidden(x, mask)
        return ChunkedCrossEntropy.apply(
            rows.reshape(-1, rows.shape[-1]), weight, bias, targets.reshape(-1), precision, chunk
        )

    return loss


def create_optimizer(module, learning_rate=5e-4, weight_decay=0.01):
    """Returns AdamW with weight decay on all parameters but those of LayerNorms and biases."""
    vectors = {id(p) for m in module.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    vectors |= {id(p) for name, p in module.named_parameters() if name.endswith("bias")}
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if id(p) not in vectors], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in vectors], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=True)


def training_step(loss_of, parameters, optimizer, tokens, labels, mask=None):
    """Returns the loss and the gradient's norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(tokens, labels, mask)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return loss.item(), norm.item()


# ---- check -----------------------------------------------------------------------------------------------------------

# Relative. Cancellation limits the reference fastformer_sharp itself to about 1e-8; Hugging Face
# computes the loss in float32.
TOLERANCE = {"fastformer": 1e-7, "gpt2": 1e-6}
TRAINING_STEPS = 5  # compared; rounding errors grow tenfold per step and dominate later steps


def reference_config(meta):
    def value(*names):
        return next(int(meta[name]) for name in names if name in meta)

    fastformer = {}
    if meta["model"] == "fastformer":
        fastformer = {
            "windows": tuple(json.loads(meta["window_sizes"])),
            "rescale": float(meta["rescale"]),
            "sink": float(meta["eps_denominator"]),
        }
    return Config(
        vocabulary=value("vocab_size"),
        length=value("n_positions"),
        channels=value("hidden_size", "n_embd"),
        heads=value("n_heads", "n_head"),
        layers=value("n_layer"),
        dropout=0.0,
        attention_dropout=0.0,
        **fastformer,
    )


def reference_name(name):
    """Returns the name of a parameter in the reference file."""
    return name.removeprefix("lm.")


def load_parameters(module, tensors):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[reference_name(name)])


def relative_error(value, reference, floor=0.0):
    return ((value - reference).norm() / (reference.norm() + floor).clamp_min(1e-300)).item()


def check_gradients(module, tensors):
    gradients = [t for name, t in tensors.items() if name.startswith("grad.")]
    floor = 1e-3 * torch.cat([g.reshape(-1) for g in gradients]).norm()
    return max(
        relative_error(p.grad, tensors["grad." + reference_name(name)], floor) for name, p in module.named_parameters()
    )


def check_training(module, loss_of, tensors, meta):
    """Returns the worst relative error of the first losses and norms; None if the file has no
    training steps."""
    if "train_steps" not in meta:
        return None
    steps, rate = int(meta["train_steps"]), float(meta["train_lr"])
    optimizer = create_optimizer(module, rate, float(meta["train_weight_decay"]))
    results = []
    for step in range(min(steps, TRAINING_STEPS)):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        tokens = tensors["train.input_ids"][step].long()
        results.append(training_step(loss_of, list(module.parameters()), optimizer, tokens, tokens))
    losses, norms = torch.tensor(results, dtype=torch.float64, device=tensors["train.losses"].device).t()
    return max(
        relative_error(losses, tensors["train.losses"][: len(losses)]),
        relative_error(norms, tensors["train.grad_norms"][: len(norms)]),
    )


def check_variant(path, variant, tensors, meta, device):
    model = meta["model"]
    module = create_model(model, variant, reference_config(meta), compiled=False).double().to(device)
    load_parameters(module, tensors)
    loss_of = loss_function(variant, module, compiled=False, precision=torch.float64)
    tokens, mask, labels = (tensors[n].long() for n in ("input_ids", "attention_mask", "labels"))
    with torch.no_grad():
        logits = relative_error(module.logits(tokens, mask), tensors["logits"])
    loss = loss_of(tokens, labels, mask)
    loss.backward()
    loss_error = relative_error(loss.detach().reshape(1), tensors["loss"].double())
    gradients = check_gradients(module, tensors)
    load_parameters(module, tensors)
    training = check_training(module, loss_of, tensors, meta)
    passed = max(logits, loss_error, gradients, training or 0.0) < TOLERANCE[model]
    print(
        f"{os.path.basename(path)} {variant} logits {logits:.1e} loss {loss_error:.1e} grad {gradients:.1e}"
        + (f" train {training:.1e}" if training is not None else "")
        + f": {'PASS' if passed else 'FAIL'}"
    )
    return passed


DTYPES = {"F64": torch.float64, "F32": torch.float32, "I32": torch.int32}


def read_safetensors(path, device):
    """Returns the metadata and the tensors of a file, without the safetensors package."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    meta = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        values = torch.frombuffer(data[start:stop], dtype=DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).to(device)
    return meta, tensors


def check(paths, variants, device):
    """Prints a line per file and variant and returns the number of failures. variants: as
    VARIANTS."""
    failed = 0
    for path in paths:
        meta, tensors = read_safetensors(path, device)
        if meta.get("model") not in variants or meta.get("attention", "softmax") != "softmax":
            print(
                f"{os.path.basename(path)}: {meta.get('model', 'no model')}, {meta.get('attention', 'softmax')} attention: left out"
            )
            continue
        failed += sum(not check_variant(path, variant, tensors, meta, device) for variant in variants[meta["model"]])
    return failed


def reference_files():
    here = os.path.dirname(os.path.abspath(__file__))
    paths = sorted(glob.glob(os.path.join(here, "..", "reference", "*.safetensors")))
    return paths or sys.exit("no reference files in dev/reference")


def main():
    if len(sys.argv) < 2 or sys.argv[1] != "check":
        sys.exit(__doc__.split("\n\n")[1])
    torch.set_num_threads(1)  # the models are tiny
    sys.exit(1 if check(sys.argv[2:] or reference_files(), VARIANTS, "cpu") else 0)


if __name__ == "__main__":
    main()
