"""Tensor parallelism by heads: every rank computes some of the query heads of a layer, and the KV heads they read.

The engine is PyTorch's own, ``torch.distributed.tensor``. This module says which part of an attention layer goes where,
and how gradients of what ranks share are summed.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D``
head dim.

Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from headwise.attention.masks import WindowArgument, head_spans
from headwise.nn.grouped import GroupedQueryAttention
from headwise.nn.latent import LatentAttention
from headwise.nn.shares import LocalLinear, SharedLinear, entered, share, whole

__all__ = ["HeadParallel", "local_kv_heads", "tensor_parallel_plan"]

Layer: TypeAlias = GroupedQueryAttention | LatentAttention
ModuleType = TypeVar("ModuleType", bound=nn.Module)


def tensor_parallel_plan(module: nn.Module, ranks: int) -> dict[str, ParallelStyle]:
    """A plan for ``parallelize_module`` that splits every attention layer of ``module`` by heads.

    Add the styles of other parts to it, such as ``ColwiseParallel`` and ``RowwiseParallel`` for a feed-forward block.
    Started with ``torchrun --nproc-per-node 4 script.py``, this is a layer on four ranks::

        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        from headwise.cache import DenseCache
        from headwise.nn import GroupedQueryAttention, local_kv_heads, tensor_parallel_plan

        mesh = init_device_mesh("cpu", (4,))  # "cuda" with one GPU per rank
        layer = GroupedQueryAttention(512, num_heads=8, num_kv_heads=2)
        parallelize_module(layer, mesh, tensor_parallel_plan(layer, mesh.size()))

        hidden = torch.ones(1, 5, 512)  # the same on every rank
        layer(hidden, causal=True).output.sum().backward()

        cache = DenseCache(1, len(local_kv_heads(layer)), capacity=64, head_dim=64)
        with torch.no_grad():
            print(layer(hidden, causal=True, cache=cache).output.norm())
        torch.distributed.destroy_process_group()

    Args:
        module: an attention layer, or a model with such layers.
        ranks: how many processes will share each layer.

    Returns:
        A :class:`HeadParallel` for the path of every layer; the path is empty where ``module`` is the layer itself.

    Raises:
        ValueError: there is no layer, or the heads of one cannot be split; the message names it.
    """
    layers = {path: child for path, child in module.named_modules() if isinstance(child, Layer)}
    if not layers:
        raise ValueError(
            "tensor_parallel_plan: expected GroupedQueryAttention or LatentAttention layers, got "
            f"{type(module).__name__} without one"
        )
    for path, layer in layers.items():
        _check_ranks(layer, ranks, path)
    return {path: HeadParallel() for path in layers}


def local_kv_heads(layer: GroupedQueryAttention) -> range:
    """The KV heads that this rank computes: those that its query heads read; all of them in a layer that isn't split.

    A cache for the layer holds these and no others, ``DenseCache(batch, len(local_kv_heads(layer)), ...)``. Where
    there are fewer KV heads than ranks, several ranks hold the same one.
    """
    if layer.local_heads is None:
        return range(layer.num_kv_heads)
    group = layer.num_heads // layer.num_kv_heads
    return range(layer.local_heads.start // group, (layer.local_heads.stop - 1) // group + 1)


class HeadParallel(ParallelStyle):
    """How ``parallelize_module`` splits one attention layer: rank ``r`` of ``N`` computes query heads ``r * H / N`` on.

    - :class:`GroupedQueryAttention`: the rows of ``q_proj`` and the columns of ``o_proj`` are split, and so are
      ``sinks`` and windows per head. ``k_proj`` and ``v_proj`` are split where ``N`` divides ``G``. Where ``G`` divides
      ``N`` they lie on every rank in full, and each computes the one KV head that its query heads read. ``q_norm`` and
      ``k_norm`` are the same on every rank.
    - :class:`LatentAttention`: ``q_proj`` or ``q_b_proj``, ``kv_b_proj`` and ``o_proj`` are split; the projections down
      to latents and their norms are the same on every rank. The latent belongs to all heads, so every rank holds all of
      it: a ``LatentCache`` is built as without ranks.

    All parameters become ``DTensor`` objects on ``mesh``, of the same names and whole shapes, with gradients of the
    same placements: optimizers, gradient clipping and distributed checkpoints treat them alike.

    The layer is called as before, on every rank with the same ``hidden``, ``mask``, ``bias``, ``window`` and so on, for
    **all heads**, and gives the same output on every rank. Gradients of ``hidden``, ``context`` and ``bias`` are those
    of one process, on every rank. Three things are of this rank alone: weights from ``need_weights``,
    ``[B, H / N, L, S]``; keys and values from ``project_context``; and a cache, see :func:`local_kv_heads`. There must
    be at least one token.

    Args:
        input_layouts: how a plain ``hidden`` is spread, default ``Replicate()``. With ``Shard(1)`` each rank gives its
            part of the tokens (of equal length), which are gathered once.
        output_layouts: how the output is spread, default ``Replicate()``; ``Shard(1)`` leaves each rank its tokens.
        use_local_output: whether the output is a plain tensor (the default) or a ``DTensor``.

    Raises:
        TypeError: when applied to another module.
        ValueError: when applied to a layer whose heads cannot be split, or that was split before, or with a mesh of
            several dimensions. The layer is left as it was.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = Replicate() if input_layouts is None else input_layouts
        self.output_layouts = Replicate() if output_layouts is None else output_layouts
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Layer):
            raise TypeError(
                "HeadParallel: expected a GroupedQueryAttention or LatentAttention, got "
                f"{type(module).__name__}; tensor_parallel_plan finds the layers of a model"
            )
        if device_mesh.ndim != 1:
            raise ValueError(
                f"HeadParallel: expected a mesh of one dimension, got {device_mesh.ndim}; pass one of them, "
                'mesh["name"]'
            )
        ranks = device_mesh.size()
        _check_ranks(module, ranks)
        split = module.num_heads // ranks
        first = device_mesh.get_local_rank() * split
        module.local_heads = range(first, first + split)
        if isinstance(module, GroupedQueryAttention):
            self._split_grouped(module, device_mesh)
        else:
            self._split_latent(module, device_mesh)
        if module.sinks is not None:
            module.sinks = self._spread(module.sinks, device_mesh, Shard(0))
        module.register_forward_pre_hook(_Arguments(module, device_mesh, self.input_layouts), with_kwargs=True)
        return module

    def _split_grouped(self, layer: GroupedQueryAttention, mesh: DeviceMesh) -> None:
        plan: dict[str, ParallelStyle] = {"q_proj": ColwiseParallel(), "o_proj": self._output_style()}
        if layer.num_kv_heads % mesh.size() == 0:
            plan |= {"k_proj": ColwiseParallel(), "v_proj": ColwiseParallel()}
        else:
            kept = local_kv_heads(layer)
            rows = slice(kept.start * layer.head_dim, kept.stop * layer.head_dim)
            layer.k_proj = SharedLinear(self._spread_all(layer.k_proj, mesh, Replicate()), mesh, rows)
            layer.v_proj = SharedLinear(self._spread_all(layer.v_proj, mesh, Replicate()), mesh, rows)
        parallelize_module(layer, mesh, plan, src_data_rank=self.src_data_rank)
        for norm in (layer.q_norm, layer.k_norm):
            if norm is not None:
                self._repeat(norm, mesh, Shard(2), DTensor.to_local)  # [B, length, heads, D]
                if norm.weight.requires_grad:
                    # Each rank finds the share of its own heads; summed at once, so that nobody takes it for the whole.
                    norm.weight.register_hook(whole)

    def _split_latent(self, layer: LatentAttention, mesh: DeviceMesh) -> None:
        plan: dict[str, ParallelStyle] = {"o_proj": self._output_style()}
        if layer.query_latent_dim is None:
            plan["q_proj"] = ColwiseParallel()
        else:
            plan["q_b_proj"] = ColwiseParallel()
            self._repeat(layer.q_a_proj, mesh, Replicate(), DTensor.to_local)
            self._repeat(layer.q_a_layernorm, mesh, Replicate(), DTensor.to_local)
        parallelize_module(layer, mesh, plan, src_data_rank=self.src_data_rank)
        latent_dim = layer.latent_dim

        def share_turning(features: DTensor) -> Tensor:
            # Heads take the turning features from here, but the latent only behind its norm.
            here = features.to_local()
            return torch.cat([here[..., :latent_dim], share(entered(here[..., latent_dim:], mesh))], -1)

        self._repeat(layer.kv_a_proj_with_mqa, mesh, Replicate(), share_turning)
        self._repeat(layer.kv_a_layernorm, mesh, Replicate(), lambda latent: share(whole(latent)))
        # Absorbed or expanded, what comes back to a latent is the share of the local heads: it is summed once, above.
        layer.kv_b_proj = LocalLinear(self._spread_all(layer.kv_b_proj, mesh, Shard(0)))

    def _output_style(self) -> RowwiseParallel:
        return RowwiseParallel(output_layouts=self.output_layouts, use_local_output=self.use_local_output)

    def _repeat(
        self, module: nn.Module, mesh: DeviceMesh, inputs: Placement, leave: Callable[[DTensor], Tensor]
    ) -> None:
        """Run ``module`` on every rank with the same parameters, on inputs that are placed as ``inputs``."""
        self._spread_all(module, mesh, Replicate())
        module.register_forward_pre_hook(lambda _, given: DTensor.from_local(given[0], mesh, [inputs], run_check=False))
        module.register_forward_hook(lambda _, given, output: leave(output))

    def _spread_all(self, module: ModuleType, mesh: DeviceMesh, placement: Placement) -> ModuleType:
        for name, parameter in module.named_parameters():
            module.register_parameter(name, self._spread(parameter, mesh, placement))
        return module

    def _spread(self, parameter: nn.Parameter, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
        spread = distribute_tensor(parameter, mesh, [placement], src_data_rank=self.src_data_rank)
        return nn.Parameter(spread, requires_grad=parameter.requires_grad)


class _Arguments:
    """A forward hook of a layer: of what is said about all heads, each rank takes what concerns its own."""

    def __init__(self, layer: Layer, mesh: DeviceMesh, hidden: Placement) -> None:
        self._signature = signature(layer.forward)
        self._mesh, self._hidden = mesh, hidden

    def __call__(self, layer: Layer, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        arguments = self._signature.bind(*given, **named).arguments
        _check_some_tokens(arguments["hidden"])
        # Gathered once for all projections, and its gradient is summed once.
        hidden = whole(entered(arguments["hidden"], self._mesh, self._hidden))
        arguments["hidden"] = hidden if isinstance(layer, GroupedQueryAttention) else hidden.to_local()
        if isinstance(arguments.get("context"), Tensor):
            arguments["context"] = whole(entered(arguments["context"], self._mesh))
        for name in ("mask", "bias"):
            arguments[name] = self._of_heads(layer, arguments.get(name))
        arguments["window"] = _own_windows(layer, arguments.get("window"))
        return (), arguments

    def _of_heads(self, layer: Layer, scores: Any) -> Any:
        """What of a mask or bias ``[..., H or 1, L, S]`` concerns this rank; what is none is left for the layer."""
        if not isinstance(scores, Tensor):
            return scores
        if scores.requires_grad or isinstance(scores, DTensor):
            scores = share(whole(entered(scores, self._mesh)))
        if scores.dim() < 3 or scores.shape[-3] != layer.num_heads:
            return scores
        return scores[..., _own(layer).start : _own(layer).stop, :, :]


def _check_some_tokens(hidden: Tensor) -> None:
    if hidden.numel() == 0:
        raise ValueError(
            f"hidden: expected at least one token in a layer split over ranks, got {list(hidden.shape)}; PyTorch "
            "multiplies no empty distributed tensors, so leave the call out on every rank"
        )


def _own(layer: Layer) -> range:
    assert layer.local_heads is not None  # the hook was registered when they were set
    return layer.local_heads


def _own_windows(layer: Layer, window: WindowArgument) -> WindowArgument:
    spans = head_spans(window, False, layer.num_heads)
    return window if len(spans) == 1 else [spans[head] for head in _own(layer)]


def _check_ranks(layer: Layer, ranks: int, path: str = "") -> None:
    """Refuse a layer whose heads can't be split evenly over ``ranks``, or that was split before."""
    owner = f"{type(layer).__name__} {path}".rstrip()
    if layer.local_heads is not None:
        raise ValueError(f"{owner}: expected a layer that isn't split, got one that computes {layer.local_heads}")
    heads = layer.num_heads
    kv_heads = layer.num_kv_heads if isinstance(layer, GroupedQueryAttention) else heads
    possible = [count for count in range(1, heads + 1) if _fits(heads, kv_heads, count)]
    if ranks in possible:
        return
    if ranks < 1 or heads % ranks:
        reason = f"that divide num_heads {heads}"
    else:
        reason = f"that divide num_kv_heads {kv_heads}, or that it divides"
    raise ValueError(f"{owner}: expected ranks {reason}, got {ranks}; use one of {', '.join(map(str, possible))} ranks")


def _fits(heads: int, kv_heads: int, ranks: int) -> bool:
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
