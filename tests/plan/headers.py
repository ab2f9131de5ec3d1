"""GGUF files of a few kilobytes, written by the package gguf or byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

__all__ = ["MINIMAL", "bare", "pair", "tensor", "text", "write"]

# What every architecture needs.
MINIMAL: dict[str, Any] = {
    "block_count": 3,
    "embedding_length": 96,
    "context_length": 2048,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
}


def write(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> Path:
    """A file of ``architecture`` with ``values`` under its keys."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        key = name if name.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, array in (tensors or {"token_embd.weight": np.zeros((2, 32), np.float32)}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value: str | bytes, order: str = "<") -> bytes:
    """A text as GGUF holds it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(order + "Q", len(data)) + data


def pair(key: str, kind: int, value: bytes, order: str = "<") -> bytes:
    """A key of metadata with its value."""
    return text(key, order) + struct.pack(order + "I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int, order: str = "<") -> bytes:
    """What a header says of one tensor."""
    dimensions = struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape)
    return text(name, order) + dimensions + struct.pack(order + "IQ", kind, offset)


def bare(*pairs: bytes, tensors: tuple[bytes, ...] = (), data: int = 0, version: int = 3, order: str = "<") -> bytes:
    """A whole file; ``data`` bytes follow the header."""
    counts = struct.pack(order + "IQQ", version, len(tensors), len(pairs))
    header = b"GGUF" + counts + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)
