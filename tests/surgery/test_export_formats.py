"""Which format holds which layers, known before anything is written."""

from __future__ import annotations

import pytest

from headwise.errors import UserError
from headwise.models import load
from headwise.surgery.bigcode import gpt_bigcode_of
from headwise.surgery.export import check_exportable, export
from tests.surgery.resized import one_kv_head, whole


def test_an_architecture_that_cannot_be_reshaped_is_saved_as_it_is(tmp_path):
    checkpoint = whole("olmo2")
    export(checkpoint, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.weights_sha256 == checkpoint.weights_sha256
    with pytest.raises(UserError, match="headwise does not know where olmo2 keeps its heads"):
        check_exportable(checkpoint, [(3, 1)] * 3)
    with pytest.raises(UserError, match="headwise does not know where olmo2 keeps its heads"):
        export(checkpoint, tmp_path / "other", format="headwise")


@pytest.mark.parametrize(
    ("name", "layers", "form", "reason"),
    [
        ("llama", [(4, 2)] * 3, "stock", r"LlamaConfig refuses: The hidden size \(42\) is not a multiple of"),
        ("gemma2", [(4, 2)] * 3, "stock", r"Gemma2Config refuses: The hidden size \(42\) is not a multiple of"),
        ("qwen2", [(4, 2)] * 3, "mistral", "mistral takes over for llama only, not for qwen2"),
        ("llama", [(4, 2), (6, 2), (4, 2)], "mistral", "layer 0 has 4 heads on 2 KV heads, layer 1 6 heads"),
        ("gpt2", [(4, 4)] * 3, "stock", "gpt2 has 5 heads of 7 dimensions for a width of 35, each with keys"),
        ("gpt2", [(5, 5)] * 3, "gpt_bigcode", "gpt_bigcode has 5 heads of 7 dimensions .*, and one KV head for all"),
        ("gpt-neox", [(5, 1)] * 3, None, "gpt_neox has keys and values for every query head, and layer 0 5 heads on 1"),
        ("bert", [(4, 2)] * 3, None, "bert has keys and values for every query head"),
        ("llama", [(4, 3)] * 3, None, "the first a multiple of the second, got 4/3"),
        ("llama", [(4, 2)], None, "for 3 layers, .* for 1"),
        ("llama", [(0, 1)] * 3, None, "got 0/1"),
        ("llama", [(3, 1)] * 3, "onnx", "format: expected one of stock, mistral, gpt_bigcode, headwise, got 'onnx'"),
    ],
)
def test_what_no_format_holds_is_refused_before_any_work(name, layers, form, reason):
    with pytest.raises(UserError, match=reason):
        check_exportable(whole(name), layers, form)


def test_the_format_is_known_before_any_work():
    checkpoint = whole("llama")
    assert check_exportable(checkpoint, [(3, 1)] * 3) == "stock"
    assert check_exportable(checkpoint, [(5, 1)] * 3) == "mistral"
    assert check_exportable(checkpoint, [(6, 2), (3, 1), (6, 2)]) == "headwise"
    assert check_exportable(whole("gpt2"), [(5, 1)] * 3) == "gpt_bigcode"


def test_a_format_can_be_asked_for(tmp_path):
    checkpoint = one_kv_head()
    for form, kind in (("stock", "gpt2"), ("headwise", "gpt2"), ("gpt_bigcode", "gpt_bigcode")):
        folder = export(checkpoint, tmp_path / form, format=form)
        assert load(folder).model.config.model_type == kind
    with pytest.raises(UserError, match="expected a gpt2 whose heads all have the same keys and values"):
        gpt_bigcode_of(whole("gpt2"))
