"""One way to compare tensors: shape, dtype, value, and the gradients of whatever produced them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# What float64 results may differ by when only the order of the operations differs.
EXACT = 1e-12


def assert_same(actual: Tensor, expected: Tensor, *, atol: float = EXACT, what: str = "result") -> None:
    """Shape and dtype are equal, infinities lie at the same places, and the rest differs by ``atol`` at most."""
    actual, expected = actual.detach(), expected.detach()
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert not actual.isnan().any(), f"{what}: holds NaN"
    assert not expected.isnan().any(), f"{what}: the expectation holds NaN"
    infinite = expected.isinf()
    assert torch.equal(actual.isinf(), infinite), f"{what}: infinities lie elsewhere"
    assert torch.equal(actual[infinite], expected[infinite]), f"{what}: an infinity has another sign"
    if actual.numel():
        distance = float((actual - expected).masked_fill(infinite, 0.0).abs().max())
        assert distance <= atol, f"{what}: differs by {distance:.3g}, allowed {atol:.3g}"


def assert_same_function(
    actual: Callable[..., Sequence[Tensor]],
    expected: Callable[..., Sequence[Tensor]],
    inputs: dict[str, Tensor],
    *,
    atol: float = EXACT,
) -> None:
    """Two functions of named tensors give the same outputs and the same gradients for every input.

    The gradients are those of one random weighting of all outputs (infinite outputs, such as the LSE of a row that sees
    nothing, are left out of it).
    """
    leaves = [{name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()} for _ in range(2)]
    results = [list(function(**leaf)) for function, leaf in zip((actual, expected), leaves, strict=True)]
    assert len(results[0]) == len(results[1])
    losses = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
    for number, pair in enumerate(zip(*results, strict=True)):
        assert_same(pair[0], pair[1], atol=atol, what=f"output {number}")
        weighting = torch.randn(pair[0].shape, dtype=pair[0].dtype)
        finite = ~pair[1].isinf()
        for index in range(2):
            losses[index] = losses[index] + (pair[index][finite] * weighting[finite]).sum()
    for index in range(2):
        if losses[index].requires_grad:
            losses[index].backward()
    for name in inputs:
        gradients = [
            leaf[name].grad if leaf[name].grad is not None else torch.zeros_like(leaf[name]) for leaf in leaves
        ]
        assert_same(gradients[0], gradients[1], atol=atol, what=f"gradient of {name}")
