"""Hugging Face's BertForMaskedLM, which peers.py measures our BERT against."""

import torch

CHOSEN = 0.15  # share of tokens to predict: 80% become the mask, 10% a random token, 10% stay
MASK = 1
NOT_COUNTED = -100


def create_model(sizes, dropout):
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=sizes["V"],
            hidden_size=sizes["C"],
            num_hidden_layers=sizes["L"],
            num_attention_heads=sizes["H"],
            intermediate_size=4 * sizes["C"],
            max_position_embeddings=sizes["T"],
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=0,
            attn_implementation="sdpa",
        )
    )


def random_batch(sizes):
    """Returns inputs and labels (B, T). Each sequence has the same number of labels, so that shapes
    are constant."""
    B, T, V = sizes["B"], sizes["T"], sizes["V"]
    text = torch.randint(2, V, (B, T))
    chosen = torch.zeros(B, T, dtype=torch.bool).scatter(1, torch.rand(B, T).topk(round(CHOSEN * T))[1], True)
    fate = torch.rand(B, T)
    hidden = torch.where(fate < 0.8, MASK, torch.where(fate < 0.9, torch.randint(2, V, (B, T)), text))
    return torch.where(chosen, hidden, text), torch.where(chosen, text, NOT_COUNTED)


def loss_function(module):
    """Returns a function of inputs, labels and mask (None) that returns the training loss."""

    def loss(inputs, labels, mask):
        return module(inputs, attention_mask=mask, labels=labels).loss

    return loss
