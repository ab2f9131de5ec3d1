"""The test cases that the ONNX standard ships for attention, each of them turned into calls of headwise.

Where the standard's operator and headwise's operation differ in convention:

* ``is_causal`` without a cache is aligned at the top left (``offset=0``), behind ``past_key`` at its length, and with
  ``nonpad_kv_seqlen`` at the lower right of each sequence, which is what headwise does with ``key_lengths``.
* A mask of rank 3 is ``(heads, queries, keys)``, one of rank 4 ``(batch, heads, queries, keys)``; one that is shorter
  than the keys hides the rest. Boolean masks say True = may attend on both sides.
* ``left_window_size`` and ``right_window_size`` count as ``window=(left, right)`` does; -1 is unbounded.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim, ``Dv``
value head dim.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.test.case import node as node_cases
from onnx.reference import ReferenceEvaluator
from torch import Tensor

# Which of the standard's operators headwise has something to say to, and the module that holds their cases.
OPERATORS = {"Attention": "attention", "FlexAttention": "flexattention", "RotaryEmbedding": "rotaryembedding"}


@dataclass(frozen=True)
class Case:
    """One case of the standard.

    Attributes:
        name: as the standard calls it, ``test_...``.
        operator: what its only node computes; for an expanded case what its function body stands for.
        model: the model of one node.
        inputs, outputs: arrays by the names that the operator's schema gives them.
        rtol, atol: how far the standard lets a result be from ``outputs``.
    """

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    rtol: float
    atol: float

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node, by name."""
        node = self.model.graph.node[0]
        return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def load_cases() -> dict[str, Case]:
    """All cases whose model is one node of :data:`OPERATORS`, by name.

    Only the modules of these operators are imported: the loader of the whole standard takes seconds, and this runs
    whenever tests are collected. A test holds the result against that loader.
    """
    random_numbers = np.random.get_state()  # the cases seed the global generator as they are made
    for module in OPERATORS.values():
        importlib.import_module(f"{node_cases.__name__}.{module}")
    np.random.set_state(random_numbers)
    return {case.name: case for case in map(read_case, node_cases._NodeTestCases) if case is not None}


def read_case(test: Any) -> Case | None:
    """A case as the standard's loader gives it, or None where its model isn't one node of :data:`OPERATORS`."""
    nodes = test.model.graph.node
    if len(nodes) != 1 or nodes[0].op_type not in OPERATORS:
        return None
    schema = onnx.defs.get_schema(nodes[0].op_type, test.model.opset_import[-1].version, nodes[0].domain)
    ((inputs, outputs),) = test.data_sets
    return Case(
        test.name,
        nodes[0].op_type,
        test.model,
        _named(schema.inputs, nodes[0].input, inputs),
        _named(schema.outputs, nodes[0].output, outputs),
        test.rtol,
        test.atol,
    )


def _named(formal: Any, given: Any, arrays: Any) -> dict[str, np.ndarray]:
    names = [parameter.name for parameter, name in zip(formal, given, strict=False) if name]
    return dict(zip(names, arrays, strict=True))


def make_case(inputs: dict[str, np.ndarray], **attributes: Any) -> Case:
    """A case of one's own for the newest Attention, with the outputs that the standard's implementation gives."""
    formal = [parameter.name for parameter in onnx.defs.get_schema("Attention").inputs]
    node = onnx.helper.make_node("Attention", [name if name in inputs else "" for name in formal], ["Y"], **attributes)
    given = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(inputs[name].dtype), None)
        for name in formal
        if name in inputs
    ]
    made = [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.DOUBLE, None)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "case", given, made))
    ordered = {name: inputs[name] for name in formal if name in inputs}
    case = Case("test_of_our_own", "Attention", model, ordered, {"Y": np.empty(0)}, 0.0, 0.0)
    return replace(case, outputs=exact_judge(case))


def to_tensor(array: np.ndarray) -> Tensor:
    """The same numbers as a tensor of the same dtype; numpy's bfloat16 is one that PyTorch doesn't know."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def judge(case: Case) -> dict[str, np.ndarray]:
    """What the standard's own implementation gives for the case."""
    return _evaluate(case, case.model, case.inputs)


def exact_judge(case: Case) -> dict[str, np.ndarray]:
    """What it gives for the same numbers in float64, without the roundings to float32 that are built into it.

    It rounds the root of the scale, so the query is scaled beforehand; and the softmax, where that is asked for.
    """
    inputs = {name: array if array.dtype.kind in "bi" else array.astype(float) for name, array in case.inputs.items()}
    if case.operator == "RotaryEmbedding":
        return _evaluate(case, case.model, inputs)
    model, attributes = onnx.ModelProto(), case.attributes
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name not in ("scale", "softmax_precision")]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("scale", 1.0)])
    for attribute in node.attribute:
        _widen(attribute.g)
    head_dim = inputs["Q"].shape[-1] // (attributes["q_num_heads"] if inputs["Q"].ndim == 3 else 1)
    inputs["Q"] = inputs["Q"] * attributes.get("scale", head_dim**-0.5)
    return _evaluate(case, model, inputs)


def _widen(graph: onnx.GraphProto) -> None:
    """Turn the float32 constants and casts of a graph into float64."""
    single, double = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for constant in graph.initializer:
        if constant.data_type == single:
            numbers = onnx.numpy_helper.to_array(constant).astype(float)
            constant.CopyFrom(onnx.numpy_helper.from_array(numbers, constant.name))
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if (attribute.name, attribute.i) == ("to", single):
            attribute.i = double


def _evaluate(case: Case, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [name for name in model.graph.node[0].input if name]
    results = ReferenceEvaluator(model).run(None, dict(zip(names, inputs.values(), strict=True)))
    return dict(zip(case.outputs, results, strict=True))


class Inexpressible(Exception):
    """The case asks for something that headwise's operation doesn't have; the message says what."""


@dataclass(frozen=True)
class Call:
    """An attention call of headwise that says the same as a case.

    Attributes:
        query: ``[B, H, L, D]``.
        key, value: ``[B, G, T, D]`` and ``[B, G, T, Dv]``, the new tokens.
        past: keys and values of earlier tokens, or None.
        options: what :func:`headwise.attention.attention` takes beside tensors.
        flat: whether the case lays heads side by side, ``[B, L, H * D]``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    past: tuple[Tensor, Tensor] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    flat: bool = False

    def to(self, dtype: torch.dtype) -> Call:
        """The same call with its floating tensors in another dtype."""
        options = {
            name: option.to(dtype) if isinstance(option, Tensor) and option.is_floating_point() else option
            for name, option in self.options.items()
        }
        past = None if self.past is None else (self.past[0].to(dtype), self.past[1].to(dtype))
        tensors = (tensor.to(dtype) for tensor in (self.query, self.key, self.value))
        return Call(*tensors, past, options, self.flat)

    def without(self, *names: str) -> Call:
        """The same call without some of its options."""
        return replace(self, options={name: option for name, option in self.options.items() if name not in names})


def to_call(case: Case) -> Call:
    """The attention call that says what ``case`` says.

    Raises:
        Inexpressible: headwise's operation has no such thing.
    """
    if case.operator == "FlexAttention":
        return _flex_call(case)
    inputs, attributes = {name: to_tensor(array) for name, array in case.inputs.items()}, case.attributes
    query, key, value = inputs["Q"], inputs["K"], inputs["V"]
    flat = query.dim() == 3
    if flat:
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        query, key, value = split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)
    past = (inputs["past_key"], inputs["past_value"]) if "past_key" in inputs else None
    held = 0 if past is None else past[0].shape[2]
    options: dict[str, Any] = _visibility(attributes, inputs.get("nonpad_kv_seqlen"), held)
    options |= _mask(inputs.get("attn_mask"), held + key.shape[2])
    options |= {name: attributes[name] for name in ("scale", "softcap") if name in attributes}
    return Call(query, key, value, past, options, flat)


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """``[B, L, heads * D]`` to ``[B, heads, L, D]``."""
    return tensor.unflatten(2, (heads, -1)).transpose(1, 2)


def join_heads(tensor: Tensor) -> Tensor:
    """``[B, heads, L, D]`` to ``[B, L, heads * D]``."""
    return tensor.transpose(1, 2).flatten(2)


def _visibility(attributes: dict[str, Any], lengths: Tensor | None, held: int) -> dict[str, Any]:
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    options = {
        "causal": bool(attributes.get("is_causal", 0)),
        "window": (None if left < 0 else left, None if right < 0 else right),
    }
    # Without key lengths the standard counts positions from the first held key; with them as headwise does.
    return options | ({"offset": held} if lengths is None else {"key_lengths": lengths})


def _mask(mask: Tensor | None, keys: int) -> dict[str, Tensor]:
    if mask is None:
        return {}
    boolean = mask.dtype == torch.bool
    missing = mask.new_full((*mask.shape[:-1], keys - mask.shape[-1]), False if boolean else -torch.inf)
    return {"mask" if boolean else "bias": torch.cat([mask, missing], -1)}


def _flex_call(case: Case) -> Call:
    attributes = case.attributes
    if "prob_mod" in attributes:
        raise Inexpressible("it changes the weights between softmax and values")
    query, key, value = (to_tensor(case.inputs[name]) for name in "QKV")
    options: dict[str, Any] = {"scale": attributes["scale"]} if "scale" in attributes else {}
    if "score_mod" in attributes:
        opsets = {opset.domain: opset.version for opset in case.model.opset_import}
        options |= read_score_mod(attributes["score_mod"], opsets, (*query.shape[:3], key.shape[2]))
    return Call(query, key, value, options=options)


def read_score_mod(graph: onnx.GraphProto, opsets: dict[str, int], shape: tuple[int, ...]) -> dict[str, Any]:
    """What a function of scores ``[B, H, L, S]`` does to them, in headwise's words: a soft-cap, or a bias and a mask.

    Raises:
        Inexpressible: it neither caps nor adds.
    """
    if [node.op_type for node in graph.node] == ["Div", "Tanh", "Mul"]:
        (cap,) = (onnx.numpy_helper.to_array(constant) for constant in graph.initializer)
        return {"softcap": float(cap)}
    evaluator, zeros = ReferenceEvaluator(graph, opsets=opsets), np.zeros(shape, np.float32)
    added, moved = (evaluator.run(None, {"scores": zeros + score})[0] for score in (0, 1))
    visible = added > -np.inf
    if not np.array_equal(moved[visible], added[visible] + 1) or not np.array_equal(moved > -np.inf, visible):
        raise Inexpressible("it changes scores by something else than a soft-cap, a bias or a mask")
    return {"bias": torch.from_numpy(np.where(visible, added, 0)), "mask": torch.from_numpy(visible)}
