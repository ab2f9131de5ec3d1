"""What a layer may have besides its projections, against the same written out by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.nn import GroupedQueryAttention, ProjectedContext, RotaryEmbedding
from tests.helpers.compare import assert_same, assert_same_function
from tests.nn.by_hand import by_hand

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 2, 7, 11, 6, 3, 10
PER_HEAD = [(2, 0), None, None, None, (1, 1), (4, None)]  # two heads share a KV head; the middle ones see all


def hidden(length: int = LENGTH, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def made(**options: Any) -> GroupedQueryAttention:
    module = GroupedQueryAttention(WIDTH, HEADS, KV_HEADS, HEAD_DIM, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "proj" not in name:  # norms and sinks start where they could hide
                torch.nn.init.normal_(parameter)
    return module


def rope(**options: Any) -> RotaryEmbedding:
    return RotaryEmbedding(HEAD_DIM, 100.0, **options)


# How the layer is built, and what the oracle is told.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "rope": ({"rope": {}}, {"positions": torch.arange(LENGTH)}),
    "rope, interleaved part": ({"rope": {"interleaved": True, "rotary_dim": 4}}, {"positions": torch.arange(LENGTH)}),
    "norms": ({"qk_norm": 1e-2}, {}),
    "norms with offset": ({"qk_norm": 1e-2, "norm_offset": True}, {}),
    "window": ({"window": (2, 0)}, {"window": (2, 0)}),
    "window per head": ({"window": PER_HEAD}, {"window": PER_HEAD}),
    "sinks": ({"sinks": True}, {}),
    "soft-cap": ({"softcap": 0.7}, {"softcap": 0.7}),
    "scale": ({"scale": -0.9}, {"scale": -0.9}),
    "biases": ({"bias": True, "out_bias": False}, {}),
    "all": (
        {"rope": {}, "qk_norm": 1e-2, "window": PER_HEAD, "sinks": True, "softcap": 3.0, "scale": 0.4, "bias": True},
        {"positions": torch.arange(LENGTH), "window": PER_HEAD, "softcap": 3.0, "scale": 0.4},
    ),
}  # fmt: skip


def both(name: str) -> tuple[GroupedQueryAttention, dict[str, Any]]:
    options, told = OPTIONS[name]
    options = dict(options)
    if "rope" in options:
        options["rope"] = rope(**options["rope"])
    module = made(**options)
    return module, told | ({} if module.sinks is None else {"sinks": module.sinks})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_weights_and_gradients_are_those_written_out(name: str, causal: bool) -> None:
    module, told = both(name)

    def through(call: Any) -> Any:
        def run(inputs: Tensor, **weights: Tensor) -> tuple[Tensor, Tensor]:
            for parameter, given in weights.items():
                owner, _, kind = parameter.rpartition(".")
                holder = module.get_submodule(owner)
                del holder._parameters[kind]
                setattr(holder, kind, given)
            try:
                result = call(inputs)
                return result.output, result.weights
            finally:
                for parameter, original in originals.items():
                    owner, _, kind = parameter.rpartition(".")
                    holder = module.get_submodule(owner)
                    delattr(holder, kind)
                    holder.register_parameter(kind, original)

        return run

    originals = dict(module.named_parameters())
    oracle_told = {option: given for option, given in told.items() if option != "sinks"}

    def oracle(inputs: Tensor) -> Any:
        sinks = {"sinks": module.sinks} if "sinks" in told else {}
        return by_hand(module, inputs, causal=causal, **oracle_told, **sinks)

    assert_same_function(
        through(lambda inputs: module(inputs, causal=causal, need_weights=True)),
        through(oracle),
        {"inputs": hidden(), **{parameter: tensor.detach() for parameter, tensor in originals.items()}},
    )


def test_every_option_changes_the_output() -> None:
    module, inputs = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True, softcap=0.7, scale=0.9), hidden()
    full = module(inputs, causal=True).output
    plain: dict[str, Any] = {"rope": None, "q_norm": None, "k_norm": None, "spans": ((None, None),), "sinks": None}
    for option, without in (plain | {"softcap": None, "scale": None}).items():
        kept = getattr(module, option)
        setattr(module, option, without)
        assert not torch.allclose(module(inputs, causal=True).output, full), option
        setattr(module, option, kept)
    assert_same(module(inputs, causal=True).output, full)


def test_positions_are_the_callers_and_only_their_distances_count() -> None:
    module, inputs = made(rope=rope()), hidden()
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [5, 3, 9, 9, 0, 1, 100]])
    result = module(inputs, causal=True, positions=places)
    assert_same(result.output, by_hand(module, inputs, causal=True, positions=places).output)
    assert_same(module(inputs, causal=True, positions=places + 1009).output, result.output, atol=1e-10)
    assert not torch.allclose(result.output, module(inputs, causal=True).output)
    assert_same(module(inputs, causal=True, positions=places[:1]).output, module(inputs, causal=True).output)


def test_packed_documents_are_those_alone() -> None:
    module = made(rope=rope(), window=PER_HEAD, sinks=True)
    documents = [hidden(length, 1) for length in (3, 0, 1, 7)]
    bounds = torch.tensor([0, 3, 3, 4, 11])
    packed = module(torch.cat(documents, 1), causal=True, cu_seqlens=bounds, need_weights=True)
    alone = [module(document, causal=True).output for document in documents if document.shape[1]]
    assert_same(packed.output, torch.cat(alone, 1))
    assert packed.weights[:, :, 3:, :3].eq(0).all()
    assert_same(module(torch.cat(documents, 1), causal=True, cu_seqlens=bounds.tolist()).output, packed.output)


def test_packed_documents_start_at_position_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only distances count, but angles of small positions are the more exact ones."""
    module, seen = made(rope=rope()), []
    whole = module.rope.rotation
    monkeypatch.setattr(module.rope, "rotation", lambda places, dtype: seen.append(places) or whole(places, dtype))
    module(hidden(11, 1), causal=True, cu_seqlens=[0, 3, 3, 4, 11])
    module(hidden(11, 1), causal=True)
    assert [places.tolist() for places in seen] == [[0, 1, 2, 0, *range(7)], list(range(11))]


@pytest.mark.parametrize("name", ["plain", "norms", "sinks"])
def test_a_context_is_projected_once(name: str) -> None:
    module, told = both(name)
    inputs, context = hidden(), hidden(13)
    kept = module.project_context(context)
    assert isinstance(kept, ProjectedContext)
    assert kept.key.shape == kept.value.shape == (BATCH, KV_HEADS, 13, HEAD_DIM)
    real = torch.ones(BATCH, 13, dtype=torch.bool)
    real[1, 5:] = False
    expected = by_hand(module, inputs, context, mask=real[:, None, None], **told).output
    assert_same(module(inputs, context, key_mask=real).output, expected)
    parts = [module(part, kept, key_mask=real).output for part in inputs.split([3, 1, 3], 1)]
    assert_same(torch.cat(parts, 1), expected)
    reordered = ProjectedContext(*(tensor[[1, 1]] for tensor in kept))
    assert_same(module(inputs[[1, 1]], reordered, key_mask=real[[1, 1]]).output, expected[[1, 1]])


def test_a_context_carries_gradients() -> None:
    module, context = made(), hidden(13).requires_grad_()
    module(hidden(), module.project_context(context)).output.sum().backward()
    assert context.grad is not None
    assert context.grad.abs().sum() > 0


def test_only_the_heads_that_are_here_count() -> None:
    """With some heads' rows and windows a module computes what these heads add to the output."""
    whole, inputs = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True), hidden()
    total = torch.zeros(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    for group in range(KV_HEADS):
        part = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True)
        part.load_state_dict(whole.state_dict())
        queries, keys = slice(20 * group, 20 * (group + 1)), slice(10 * group, 10 * (group + 1))
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            projection = getattr(part, name)
            projection.weight = torch.nn.Parameter(projection.weight[rows])
        part.o_proj.weight = torch.nn.Parameter(part.o_proj.weight[:, queries])
        part.local_heads = range(2 * group, 2 * (group + 1))
        assert part.sinks is not None
        part.sinks = torch.nn.Parameter(part.sinks[2 * group : 2 * (group + 1)])
        total += part(inputs, causal=True).output.detach()
        # Whether these heads have windows or not: processes that share a layer must refuse alike.
        with pytest.raises(ValueError, match=r"^window: expected none in a call of a layer with windows of its own"):
            part(inputs, causal=True, window=(1, 0))
    assert_same(total, whole(inputs, causal=True).output)


def test_one_graph_and_the_same_results() -> None:
    torch.compiler.reset()
    module = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True, softcap=3.0)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    real = torch.tensor([[True] * 7, [False] * 2 + [True] * 5])

    def run(layer: Any) -> Any:
        return lambda inputs: (layer(inputs, causal=True, key_mask=real).output,)

    assert_same_function(run(compiled), run(module), {"inputs": hidden()})


def test_an_exported_layer_takes_other_lengths() -> None:
    module = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True, softcap=3.0)
    lengths = {"hidden": {1: torch.export.Dim("length", min=2, max=61)}, "causal": None}
    exported = torch.export.export(module, (hidden(),), {"causal": True}, dynamic_shapes=lengths)
    inputs = hidden(17)
    assert_same(exported.module()(inputs, causal=True).output, module(inputs, causal=True).output)


@pytest.mark.parametrize("through", ["autocast", "bfloat16", "float16"])
def test_half_types_lose_no_more_than_plain_pytorch(through: str) -> None:
    module, inputs = made(), hidden()
    exact = module(inputs, causal=True).output.detach()

    def plain(tokens: Tensor) -> Tensor:
        query, key, value = (
            project(tokens).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        heads = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return module.o_proj(heads.transpose(1, 2).flatten(2))

    dtype = torch.bfloat16 if through == "autocast" else getattr(torch, through)
    module.to(torch.float32 if through == "autocast" else dtype)
    inputs = inputs.to(module.q_proj.weight.dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=through == "autocast"):
        ours, theirs = module(inputs, causal=True).output, plain(inputs)
    assert ours.dtype == theirs.dtype == dtype
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


def test_every_option_goes_through_autocast() -> None:
    module = made(rope=rope(), qk_norm=1e-2, window=PER_HEAD, sinks=True, softcap=3.0).float()
    with torch.autocast("cpu", torch.bfloat16):
        output = module(hidden().float(), causal=True).output
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


REFUSED_CALLS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"window": (1, 0)}, {"window": (2, 0)}, "window: expected none in a call of a layer with windows of its own, got "
     "(2, 0); build the layer without, or pass a mask"),
    ({}, {"positions": torch.arange(LENGTH)},
     "positions: expected none in a layer without rope, which nothing else reads"),
    ({"rope": rope()}, {"context": hidden()}, "context: expected none in a layer with rope, since the positions of two "
     "sequences have no distance; build the layer without"),
    ({"rope": rope()}, {"positions": torch.arange(3)}, "positions: expected [7] or [2, 7] for [2, 6, 7, 10], got "
     "[1, 3]; there is one position for each token"),
    ({}, {"lengths": [1, 2]}, "lengths: expected none without a cache; mark padding with key_mask"),
    ({}, {"cu_seqlens": [0, 7]}, "cu_seqlens: expected packed documents in a batch of 1, got a batch of 2; reshape it"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "call", "message"), REFUSED_CALLS)
def test_arguments_that_exclude_each_other_are_refused(
    options: dict[str, Any], call: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made(**options)(hidden(), causal=True, **call)


REFUSED_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rope": RotaryEmbedding(8)}, ValueError,
     "GroupedQueryAttention: expected rope for head_dim 10, got one for 8"),
    ({"window": [(1, 0)] * 3}, ValueError, "window: expected one (left, right) or 6 of them, one per query head, got "
     "3: [(1, 0), (1, 0), (1, 0)]"),
    ({"softcap": 0.0}, ValueError,
     "softcap: expected a positive number, got 0.0; leave it None for no soft-cap"),
    ({"scale": "1"}, TypeError, "scale: expected a number or None, got str"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED_OPTIONS)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        made(**options)


def test_a_window_of_the_call_serves_where_the_layer_has_none() -> None:
    module, inputs = made(), hidden()
    assert_same(module(inputs, window=PER_HEAD).output, by_hand(module, inputs, window=PER_HEAD).output)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rope": RotaryEmbedding(4)}, "it has rope"),
        ({"qk_norm": 1e-6}, "it has qk_norm"),
        ({"sinks": True}, "it has sinks"),
        ({"window": (1, 0)}, "it has window"),
        ({"softcap": 1.0}, "it has softcap"),
        ({"scale": 1.0}, "it has scale"),
    ],
)
def test_torch_has_no_room_for_these(options: dict[str, Any], reason: str) -> None:
    message = f"to_torch: {reason}, which torch.nn.MultiheadAttention can't express; keep this layer"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GroupedQueryAttention(12, 3, **options).to_torch()


def test_print_tells_the_settings() -> None:
    text = repr(made(window=(1, 0), softcap=3.0, scale=0.5, rope=rope(), qk_norm=1e-2))
    assert "num_kv_heads=3, head_dim=10, window=(1, 0), softcap=3.0, scale=0.5" in text
    assert "RotaryEmbedding(head_dim=10" in text
    assert "window=[(2, 0), (None, None)" in repr(made(window=PER_HEAD))
