"""States of fixed size: columns of a short convolution, and the recurrent state of a Mamba or delta-rule layer.

A convolution of kernel ``k`` reads the ``k - 1`` columns before the next token; that is what has to be kept. Planes are
cut the way that tensor parallelism deals them: by heads, by groups, by channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwise.plan.architectures.fields import said
from headwise.plan.config import Config
from headwise.plan.states import Fixed, Plane, State

__all__ = ["Delta", "Mamba1", "Mamba2", "convolution", "delta_rule", "mamba1", "mamba2", "state_dtype"]


@dataclass(frozen=True)
class Mamba1:
    """A selective scan with a state for each channel."""

    channels: int
    kernel: int
    state: int
    dtype: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    def states(self, index: int) -> tuple[State, ...]:
        """What a layer keeps."""
        columns = (Plane("columns", self.channels, 1, "convolution"),)
        matrix = (Plane("state", self.channels, self.state, "recurrent"),)
        return (
            convolution(index, columns, self.kernel, self.provenance),
            State(index, "recurrent", matrix, Fixed(), dtype=self.dtype, provenance=dict(self.provenance)),
        )


@dataclass(frozen=True)
class Mamba2:
    """A selective scan with a matrix for each head; its convolution also runs over ``B`` and ``C`` of each group."""

    heads: int
    head_dim: int
    groups: int
    kernel: int
    state: int
    dtype: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    def states(self, index: int) -> tuple[State, ...]:
        """What a layer keeps."""
        columns = (
            Plane("columns of x", self.heads, self.head_dim, "convolution"),
            Plane("columns of B", self.groups, self.state, "convolution"),
            Plane("columns of C", self.groups, self.state, "convolution"),
        )
        matrix = (Plane("state", self.heads, self.head_dim * self.state, "recurrent"),)
        return (
            convolution(index, columns, self.kernel, self.provenance),
            State(index, "recurrent", matrix, Fixed(), dtype=self.dtype, provenance=dict(self.provenance)),
        )


@dataclass(frozen=True)
class Delta:
    """A gated delta rule: a matrix ``Dk x Dv`` for each value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    dtype: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    def states(self, index: int) -> tuple[State, ...]:
        """What a layer keeps."""
        columns = (
            Plane("columns of the query", self.key_heads, self.key_dim, "convolution"),
            Plane("columns of the key", self.key_heads, self.key_dim, "convolution"),
            Plane("columns of the value", self.value_heads, self.value_dim, "convolution"),
        )
        matrix = (Plane("state", self.value_heads, self.key_dim * self.value_dim, "recurrent"),)
        return (
            convolution(index, columns, self.kernel, self.provenance),
            State(index, "recurrent", matrix, Fixed(), dtype=self.dtype, provenance=dict(self.provenance)),
        )


def state_dtype(config: Config) -> str | None:
    """How the config wants recurrent states to be kept; None: it doesn't say."""
    return config.maybe_text("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


def convolution(index: int, planes: tuple[Plane, ...], kernel: int, provenance: Mapping[str, str]) -> State:
    """The columns that the next token's convolution reads besides its own."""
    return State(index, "convolution", planes, Fixed(kernel - 1), provenance=dict(provenance))


def mamba1(
    config: Config, *, expand: str, kernel: str, state: str, width: tuple[str, ...] = ("hidden_size",)
) -> Mamba1:
    """Mamba 1 under the names that a family gives its fields."""
    channels = config.whole(expand) * config.whole(*width)
    found = channels, config.whole(kernel, least=2), config.whole(state)
    return Mamba1(*found, state_dtype(config), said(config, expand, width[0], kernel, state))


def mamba2(
    config: Config,
    *,
    heads: str,
    groups: tuple[str, ...],
    kernel: tuple[str, ...],
    state: str,
    head_dim: str = "",
    inner: int | None = None,
    inner_name: str = "",
) -> Mamba2:
    """Mamba 2 under the names that a family gives its fields.

    Args:
        config: the fields.
        heads: name of the number of heads.
        groups: names of the number of groups.
        kernel: names of the kernel of the convolution.
        state: name of the width of the state.
        head_dim: name of the width of a head; empty, or ``auto`` in the config: ``inner / heads``.
        inner: elements of all heads, where the config gives them too.
        inner_name: how messages call that number.
    """
    count = config.whole(heads)
    if inner is not None and (not head_dim or config.auto(head_dim)):
        if inner % count:
            raise config.refuse(heads, f"a divisor of {inner_name} = {inner}")
        width = config.derived(head_dim or "head_dim", inner // count, f"{inner_name} / {heads}")
    else:
        width = config.whole(head_dim)
    if inner is not None and width * count != inner:
        raise config.refuse(head_dim, f"{inner_name} / {heads} = {inner} / {count}")
    found = count, width, config.whole(*groups), config.whole(*kernel, least=2), config.whole(state)
    return Mamba2(*found, state_dtype(config), said(config, heads, head_dim, groups[0], kernel[0], state))


def delta_rule(config: Config) -> Delta:
    """The gated delta rule of Qwen3-Next and what follows it."""
    names = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    )
    key_heads, value_heads, key_dim, value_dim = (config.whole(name) for name in names)
    if value_heads % key_heads:
        raise config.refuse("linear_num_value_heads", f"a multiple of linear_num_key_heads = {key_heads}")
    kernel = config.whole("linear_conv_kernel_dim", least=2)
    how = said(config, *names, "linear_conv_kernel_dim")
    return Delta(key_heads, value_heads, key_dim, value_dim, kernel, state_dtype(config), how)
