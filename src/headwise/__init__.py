"""Size, run, read and reshape the attention heads of transformers.

Nothing heavy is imported here: each public name is loaded from its module on first use, so that the command line and
the parts that need no tensors start at once. The operation `attention` lives in the package of the same name:
`from headwise.attention import attention`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.attention import (
        AttentionOutput,
        AttentionReading,
        HeadStatistics,
        attention_with_lse,
        attention_with_statistics,
        head_statistics,
    )
    from headwise.errors import UserError
    from headwise.layout import HeadLayout, head_name, parse_head
    from headwise.models.load import load

__version__ = "0.1.0"

# Public name -> the module that defines it. A name must not be that of a subpackage: importing `headwise.attention`
# binds `headwise.attention` to the package, so an operation of that name would change its meaning half-way.
_HOMES = {
    "AttentionOutput": "headwise.attention",
    "AttentionReading": "headwise.attention",
    "HeadLayout": "headwise.layout",
    "HeadStatistics": "headwise.attention",
    "UserError": "headwise.errors",
    "attention_with_lse": "headwise.attention",
    "attention_with_statistics": "headwise.attention",
    "head_name": "headwise.layout",
    "head_statistics": "headwise.attention",
    "load": "headwise.models.load",
    "parse_head": "headwise.layout",
}

__all__ = [
    "AttentionOutput",
    "AttentionReading",
    "HeadLayout",
    "HeadStatistics",
    "UserError",
    "__version__",
    "attention_with_lse",
    "attention_with_statistics",
    "head_name",
    "head_statistics",
    "load",
    "parse_head",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(home), name)
    globals()[name] = value  # from now on without this detour
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
