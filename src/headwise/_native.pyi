# What native/bindings*.cpp export; headwise.native is the door to use.

from collections.abc import Sequence

_Tensor = tuple[int, int, Sequence[int], Sequence[int]]  # address, element, shape, strides

def cpu_features() -> tuple[str, list[str]]: ...
def cache_sizes() -> tuple[int, int, int]: ...
def default_buffer_bytes() -> int: ...
def expected_checksum(bytes_read: int, repeats: int) -> int: ...
def measure_read_bandwidth(threads: int, buffer_bytes: int, repeats: int) -> tuple[int, int, list[float], int]: ...
def kernel_names() -> list[str]: ...
def decode_attention(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    output: _Tensor,
    lse: _Tensor | None,
    offsets: Sequence[int],
    key_lengths: Sequence[int] | None,
    left: Sequence[int] | None,
    right: Sequence[int] | None,
    mask: _Tensor | None,
    bias: _Tensor | None,
    sinks: _Tensor | None,
    slopes: _Tensor | None,
    scale: float,
    softcap: float,
    threads: int,
    isa: str,
) -> None: ...
def prefill_attention(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    output: _Tensor,
    lse: _Tensor | None,
    offsets: Sequence[int],
    key_lengths: Sequence[int] | None,
    left: Sequence[int] | None,
    right: Sequence[int] | None,
    mask: _Tensor | None,
    bias: _Tensor | None,
    sinks: _Tensor | None,
    slopes: _Tensor | None,
    scale: float,
    softcap: float,
    threads: int,
    isa: str,
) -> None: ...
def head_statistics(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    output: _Tensor,
    lse: _Tensor | None,
    offsets: Sequence[int],
    key_lengths: Sequence[int] | None,
    left: Sequence[int] | None,
    right: Sequence[int] | None,
    mask: _Tensor | None,
    bias: _Tensor | None,
    sinks: _Tensor | None,
    slopes: _Tensor | None,
    scale: float,
    softcap: float,
    threads: int,
    isa: str,
    relations: Sequence[tuple[int | _Tensor | None, ...]],
    results: Sequence[_Tensor],
) -> None: ...
def decode_segments(
    query: _Tensor,
    output: _Tensor,
    kv_heads: int,
    keys: int,
    value_width: int,
    # Each: bits, key, value, key scales, value scales, first, count, slot, table.
    segments: Sequence[tuple[object, ...]],
    lse: _Tensor | None,
    offsets: Sequence[int],
    left: Sequence[int] | None,
    right: Sequence[int] | None,
    mask: _Tensor | None,
    bias: _Tensor | None,
    sinks: _Tensor | None,
    slopes: _Tensor | None,
    scale: float,
    softcap: float,
    threads: int,
    isa: str,
) -> None: ...
def quantize(vectors: _Tensor, codes: _Tensor, scales: _Tensor, bits: int, threads: int, isa: str) -> None: ...
