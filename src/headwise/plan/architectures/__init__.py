"""From a config to what the model keeps and computes, layer by layer."""

from headwise.plan.architectures.registry import FAMILIES, REFUSED, WRAPPERS, architecture_of

__all__ = ["FAMILIES", "REFUSED", "WRAPPERS", "architecture_of"]
