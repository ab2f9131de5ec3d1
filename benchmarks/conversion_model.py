"""A small model with one KV head for each query head, trained from scratch in a few minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headwise.models import Checkpoint, register
from headwise.models.corpus import cut_rows
from headwise.models.documents import Text

__all__ = ["train_model"]

VOCABULARY, WIDTH, HEADS, LAYERS = 1_024, 192, 8, 4
LENGTH, ROWS, STEPS, RATE = 256, 16, 500, 3e-3


def train_model(texts: Sequence[Text], seed: int) -> Checkpoint:
    """A Llama of 4 layers and 8 heads of 24 dimensions, trained on ``texts`` for 500 steps of 4,096 tokens."""
    tokenizer = _tokenizer(texts)
    rows = cut_rows(
        texts, tokenizer, tokens=STEPS * ROWS * LENGTH // 2, length=LENGTH, seed=seed, what="training"
    ).tokens
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=1_024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate)
    order = torch.cat([torch.randperm(len(rows)) for _ in range(2)])
    for step in range(STEPS):
        batch = rows[order[step * ROWS : (step + 1) * ROWS]]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    register()
    model.set_attn_implementation("headwise")
    return Checkpoint(
        model.eval().requires_grad_(False), tokenizer, name=f"trained here, seed {seed}", source="", objective="next"
    )


def _rate(step: int) -> float:
    """A short warm-up, then a cosine."""
    return min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def _tokenizer(texts: Sequence[Text]) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator((text.text for text in texts), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner)
