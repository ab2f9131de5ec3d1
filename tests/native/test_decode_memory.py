"""The native decode kernel next to memory that must not be touched: the system ends the program that does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.native.decoding import built

pytestmark = [built, pytest.mark.skipif(sys.platform != "linux", reason="the pages are guarded in the way of Linux")]

# Keys and values end exactly where a forbidden page begins, and pages in front of a window are forbidden as well.
PROGRAM = """
import ctypes
import mmap

import torch

from headwise import native

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


def forbid(address, length):
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def guarded(keys, width, dtype, unread=0):
    '''Random numbers [1, 1, keys, width] that end at a forbidden page; those of the first keys are forbidden too.'''
    size = keys * width * dtype.itemsize
    room = (size + PAGE - 1) // PAGE * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    tensor = torch.frombuffer(memory, dtype=dtype, count=keys * width, offset=room - size).view(1, 1, keys, width)
    tensor.copy_(torch.randn(tensor.shape))
    start = tensor.data_ptr() + size - room
    forbid(start + room, PAGE)
    hidden = (room - size + unread * width * dtype.itemsize) // PAGE * PAGE
    if hidden:
        forbid(start, hidden)
    kept.append(memory)
    return tensor


def call(key, value, heads, **options):
    query = torch.randn(1, heads, 1, key.shape[3]).to(key.dtype)
    output = torch.full((1, heads, 1, value.shape[3]), torch.nan, dtype=key.dtype)
    offsets = [key.shape[2] - 1]
    native.decode_attention(query, key, value, output, offsets=offsets, scale=0.1, isa=isa, **options)
    assert output.isfinite().all()


kept = []
for isa in native.instruction_sets():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for width, value_width in ((1, 3), (7, 33), (31, 17), (64, 127), (65, 230)):
            for keys in (1, 5, 67):
                key, value = guarded(keys, width, dtype), guarded(keys, value_width, dtype)
                for heads in (1, 3, 4, 7, 8):
                    call(key, value, heads)
        key, value = guarded(3001, 64, dtype, unread=2000), guarded(3001, 48, dtype, unread=2000)
        call(key, value, 5, left=[1000] * 5, right=[0] * 5)
        if TOO_FAR:
            call(key, value, 5, left=[1000] * 4 + [2500], right=[0] * 5)
print("untouched")
"""


def run(too_far: bool) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("TOO_FAR", str(too_far))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_nothing_beyond_the_last_key_and_outside_the_windows_is_touched() -> None:
    result = run(too_far=False)
    assert result.stdout == "untouched\n", f"ended with {result.returncode}: {result.stderr}"


def test_a_window_that_reaches_into_a_forbidden_page_ends_the_program() -> None:
    """Otherwise the test above could not fail."""
    result = run(too_far=True)
    assert result.returncode < 0
    assert result.stdout == ""
