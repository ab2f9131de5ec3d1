"""A tiny model with random weights and a tokenizer of its own, as a folder that `load` opens."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headwise.study import run

WORDS = 211
SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "xu")


def words() -> list[str]:
    """Different words of two syllables, and the punctuation that makes delimiters."""
    pairs = [first + second for first in SYLLABLES for second in SYLLABLES]
    return [".", ",", *pairs[: WORDS - 2]]


def tokenizer(*, wrapped: bool) -> PreTrainedTokenizerFast:
    """One token a word; BERT's special tokens around a text if ``wrapped``."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *words()])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    if not wrapped:
        return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="[CLS]", eos_token="[SEP]", **names)
    from tokenizers.processors import TemplateProcessing

    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", **names
    )


def save_llama(folder: Path, seed: int = 0, spread: float = 0.2) -> Path:
    """Three layers of six query heads on two KV heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS + 5, hidden_size=66, intermediate_size=34, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, initializer_range=spread, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(wrapped=False).save_pretrained(folder)
    return folder


def save_bert(folder: Path, seed: int = 0) -> Path:
    """Two layers of three heads, with a masked-language head."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=WORDS + 5, hidden_size=33, intermediate_size=17, num_hidden_layers=2, num_attention_heads=3,
        initializer_range=0.2, max_position_embeddings=131,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer(wrapped=True).save_pretrained(folder)
    return folder


def write_texts(folder: Path, count: int = 29, length: int = 71, seed: int = 0) -> Path:
    """Documents of random words with a full stop now and then, one file each."""
    import random

    generator = random.Random(seed)
    folder.mkdir()
    for number in range(count):
        chosen = generator.choices(words()[2:40], k=length)
        for place in range(7, length, 11):
            chosen[place] = "."
        (folder / f"text{number:02}.txt").write_text(" ".join(chosen), encoding="utf-8")
    return folder


def everything_is_a_finding(monkeypatch) -> None:
    """Lets a random model through to the effects, which only findings reach."""
    real = run.score_table

    def table(*arguments):
        scores = real(*arguments)
        scores["finding"] = scores["primary"]
        return scores

    monkeypatch.setattr(run, "score_table", table)
