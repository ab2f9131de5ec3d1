"""What other libraries can and can't do today, as ``docs/features.md`` says of them.

Only what no other test here shows: what can be had and agrees with headwise stands in the files of the judges, what is
wrong elsewhere in ``test_wounds.py``. A test that fails here means that a library has learnt something: the table has
to be changed.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidArgument,
    get_all_operator_schema,
    get_all_opkernel_def,
)
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import (
    Cache,
    EncoderDecoderCache,
    QuantizedCache,
    QuantizedLayer,
    StaticCache,
    StaticLayer,
)
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama.modeling_llama import eager_attention_forward

from tests.helpers.operations import Operations
from tests.models import tiny
from tests.peers.test_onnxruntime import run_onnxruntime

ROOT = Path(__file__).resolve().parents[2]
B, H, G, L, S, D = 2, 6, 2, 5, 7, 16
# What transformers' functions ask of an attention module.
MODULE = SimpleNamespace(num_key_value_groups=H // G, training=False, sinks=torch.randn(H))


def tensors(value_width: int = D, gradient: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Query ``[B, H, L, D]``, key ``[B, G, S, D]``, value ``[B, G, S, Dv]``."""
    shapes = (B, H, L, D), (B, G, S, D), (B, G, S, value_width)
    query, key, value = (torch.randn(shape, requires_grad=gradient) for shape in shapes)
    return query, key, value


# Graphs.


class Fused(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, enable_gqa=True)


class Flexible(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, enable_gqa=True)


class Transformers(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager_attention_forward(MODULE, query, key, value, None, scaling=D**-0.5)[0].transpose(1, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Fused, Flexible, Transformers])
def test_one_graph(make):
    module, given = make(), tensors()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given), module(*given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Fused, Flexible, Transformers])
def test_export(make):
    module, (batch, queries, keys) = make(), map(Dim, ("batch", "queries", "keys"))
    shapes = {"query": {0: batch, 2: queries}, "key": {0: batch, 2: keys}, "value": {0: batch, 2: keys}}
    exported = export(module, tensors(), dynamic_shapes=shapes).module()
    given = torch.randn(3, H, 4, D), *torch.randn(2, 3, G, 9, D)
    torch.testing.assert_close(exported(*given), module(*given))


# PyTorch, scaled_dot_product_attention.


def test_sdpa_has_no_option_but_these_and_returns_one_tensor():
    """No window, no offset, no key lengths, no soft-cap, no sinks, no slopes, no packed documents, no LSE."""
    schema = torch.ops.aten.scaled_dot_product_attention.default._schema
    options = [argument.name for argument in schema.arguments]
    assert options == "query key value attn_mask dropout_p is_causal scale enable_gqa".split()
    assert [str(result.type) for result in schema.returns] == ["Tensor"]


def test_sdpa_differentiates_a_bias_but_holds_the_map_then():
    """So windows per head, ALiBi and its slopes can be had as a mask, at the price of the whole map."""
    length = 64
    query, key, value = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    whole_map = 2 * length * length * 4
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    slopes = torch.rand(2, requires_grad=True)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    for bias, holds in ((mask, False), ((slopes[:, None, None] * -distance)[None], True)):
        with Operations(query, key, value, bias, bias.detach()) as ran:
            scaled_dot_product_attention(query, key, value, attn_mask=bias).sum().backward()
        assert (ran.largest_bytes >= whole_map) == holds, ran.largest_name
    assert slopes.grad is not None
    assert slopes.grad.all()


def test_sdpa_takes_values_of_another_width_but_holds_the_map_then():
    length = 64
    query, key = (torch.randn(1, 2, length, 8) for _ in range(2))
    value = torch.randn(1, 2, length, 4)
    with Operations(query, key, value) as ran:
        assert scaled_dot_product_attention(query, key, value).shape[-1] == 4
    assert ran.largest_bytes >= 2 * length * length * 4


def test_sdpa_packs_documents_as_nested_tensors_but_not_in_causal_order_on_a_cpu():
    documents = [torch.randn(length, 2, 8) for length in (3, 5)]
    packed = torch.nested.nested_tensor(documents, layout=torch.jagged).transpose(1, 2)  # [N, H, lengths, D]
    outputs = scaled_dot_product_attention(packed, packed, packed).unbind()
    for output, document in zip(outputs, documents, strict=True):
        alone = document.transpose(0, 1)
        torch.testing.assert_close(output, scaled_dot_product_attention(alone, alone, alone))
    with pytest.raises(RuntimeError, match="No viable backend"):
        scaled_dot_product_attention(packed, packed, packed, is_causal=True)


# PyTorch, FlexAttention.


@pytest.fixture
def plain_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it every call is traced before it runs the same operations, which takes half a second each.
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


@pytest.mark.usefixtures("plain_flex")
def test_flex_has_no_backward_on_a_cpu():
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*tensors(gradient=True), enable_gqa=True)


@pytest.mark.usefixtures("plain_flex")
@pytest.mark.filterwarnings("ignore")
def test_flex_lets_masked_values_leak_and_no_masked_keys():
    query, key, value = tensors()
    block_mask = create_block_mask(lambda b, h, i, j: j < S - 1, None, None, L, S, device="cpu")
    for tensor, leaks in ((key, False), (value, True)):
        kept = tensor[:, :, -1].clone()
        tensor[:, :, -1] = torch.nan
        output = flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)
        assert bool(output.isnan().any()) == leaks
        tensor[:, :, -1] = kept


@pytest.mark.usefixtures("plain_flex")
@pytest.mark.filterwarnings("ignore")
def test_flex_takes_values_of_another_width():
    assert flex_attention(*tensors(value_width=11), enable_gqa=True).shape == (B, H, L, 11)


# transformers.


def test_eager_attention_shows_a_blind_row_the_mean_of_what_it_may_not_see():
    """Its masks hold the least finite number instead of minus infinity, so that nothing becomes NaN."""
    query, key, value = tensors()
    mask = torch.zeros(B, 1, L, S)
    mask[:, :, 2] = torch.finfo(torch.float32).min
    output, _ = eager_attention_forward(MODULE, query, key, value, mask, scaling=D**-0.5)  # [B, L, H, Dv]
    mean = value.mean(2).repeat_interleave(H // G, 1)
    torch.testing.assert_close(output[:, 2], mean)
    assert not scaled_dot_product_attention(query, key, value, attn_mask=mask == 0, enable_gqa=True)[:, :, 2].any()


def test_eager_attention_repeats_keys_and_holds_the_map():
    query, key, value = tensors()
    with Operations(query, key, value) as ran:
        eager_attention_forward(MODULE, query, key, value, None, scaling=D**-0.5)
    assert ran.largest_bytes >= key.nbytes * H // G


def test_eager_attention_lets_masked_memory_leak():
    query, key, value = tensors()
    mask = torch.zeros(B, 1, L, S)
    mask[..., -1] = torch.finfo(torch.float32).min
    value[:, :, -1] = torch.nan
    assert eager_attention_forward(MODULE, query, key, value, mask, scaling=1.0)[0].isnan().any()


def test_eager_attention_differentiates_sinks():
    module = SimpleNamespace(num_key_value_groups=H // G, training=False, sinks=torch.randn(H, requires_grad=True))
    output, _ = modeling_gpt_oss.eager_attention_forward(module, *tensors(), None, scaling=D**-0.5)
    output.square().sum().backward()
    assert module.sinks.grad is not None
    assert module.sinks.grad.all()


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_softcap_and_sinks_are_left_to_eager_attention_on_a_cpu(name):
    """FlexAttention takes a soft-cap, but sinks on a GPU only."""
    model = tiny.build(tiny.DECODERS[name])
    with pytest.raises(ValueError, match="does not support an attention implementation through"):
        model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="Attention sinks cannot be run on CPU with flex attention"):
        flex_attention_forward(MODULE, *tensors(), None, s_aux=MODULE.sinks)


def test_caches_of_transformers():
    """Preallocated, sliding and quantized ones, of one length for a batch; none of them counts its bytes."""
    assert issubclass(StaticCache, Cache)
    assert issubclass(QuantizedCache, Cache)
    names = {name for kind in (Cache, StaticLayer, EncoderDecoderCache) for name in dir(kind)}
    assert {"crop", "reorder_cache", "batch_select_indices"} <= names
    assert not any("nbytes" in name or "snapshot" in name for name in names)
    # What is quantized is made whole again at each step.
    source = inspect.getsource(QuantizedLayer.update)
    assert "_dequantize" in source
    assert "torch.cat" in source
    layer = StaticLayer(max_cache_len=7)
    layer.update(torch.randn(B, G, 5, D), torch.randn(B, G, 5, D))
    layer.crop(-1)
    assert layer.get_seq_length() == 4


# ONNX Runtime, com.microsoft.GroupQueryAttention.


def schema() -> Any:
    return next(one for one in get_all_operator_schema() if one.name == "GroupQueryAttention")


def test_the_operator_has_no_mask_no_slopes_and_no_lse():
    """Nor documents side by side, nor windows to the right or per head."""
    inputs = {one.name for one in schema().inputs}
    assert not {name for name in inputs if "mask" in name or "slope" in name or "cu_" in name}
    assert {one.name for one in schema().outputs} == {"output", "present_key", "present_value", "output_qk"}
    assert {name for name in schema().attributes if "window" in name} == {"local_window_size", "sliding_window_cache"}


def test_the_operator_can_cache_integers_and_a_window():
    assert "8 and 4" in schema().attributes["kv_cache_bit_width"].description
    assert "sliding_window_cache" in schema().attributes
    assert "rejecting speculative draft tokens" in schema().doc


def test_pages_have_no_kernel_on_a_cpu():
    kernels = {one.op_name for one in get_all_opkernel_def() if one.provider == "CPUExecutionProvider"}
    assert "GroupQueryAttention" in kernels
    assert "PagedAttention" not in kernels


def test_the_operator_takes_no_values_of_another_width():
    query, key, value = (torch.randn(1, 3, heads * width) for heads, width in ((H, D), (G, D), (G, D // 2)))
    given = {"query": query, "key": key, "value": value, "seqlens_k": torch.tensor([2], dtype=torch.int32)}
    with pytest.raises(InvalidArgument):
        run_onnxruntime(given, H, G)


PEAKS = """
import re, torch
from pathlib import Path
from tests.peers.test_onnxruntime import run_onnxruntime

def growth(length, **attributes):
    tensors = {name: torch.randn(1, length, 4 * 16) for name in ("query", "key", "value")}
    tensors["seqlens_k"] = torch.tensor([length - 1], dtype=torch.int32)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = peak()
    run_onnxruntime(tensors, 4, 4, **attributes)
    return peak() - before

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

growth(16)
print(growth(2048), growth(2048, local_window_size=100), growth(2048, softcap=2.0))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
def test_the_operator_holds_the_map_with_a_softcap_only():
    """Peak memory in MiB at 2048 tokens and 4 heads, where a map takes 64 MiB; so it is with sinks as well."""
    ran = subprocess.run([sys.executable, "-c", PEAKS], cwd=ROOT, capture_output=True, text=True, check=True)
    plain, window, softcap = map(float, ran.stdout.split())
    assert max(plain, window) < 32
    assert softcap > 48
