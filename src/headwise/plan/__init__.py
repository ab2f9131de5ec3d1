"""What a head layout costs: bytes of the cache, parameters, FLOPs, and how much fits. No tensors, no torch."""

from headwise.plan.answers import Plan, plan
from headwise.plan.errors import PlanError

__all__ = ["Plan", "PlanError", "plan"]
