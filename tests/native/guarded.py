"""Tensors right beside a page that nobody may touch, and processes that are allowed to die of touching it."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

SIDES = ["before", "after"]  # where the memory of a tensor lies: right before or right after a forbidden page
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
_FORBIDDEN = 0  # PROT_NONE


def guarded(tensor: Tensor, side: str) -> Tensor:
    """The same numbers and strides in memory that ends where a forbidden page begins, or begins where one ends.

    Nothing lies between: the first and the last element that the strides reach are the first and last of the memory.
    """
    reach = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    count = sum(reach) + 1 if tensor.numel() else 0
    memory = _memory(count * tensor.element_size(), side)
    if not count:
        return tensor
    view = torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
    view.copy_(tensor)
    return view


def _memory(size: int, side: str) -> memoryview:
    inner = (size // mmap.PAGESIZE + 1) * mmap.PAGESIZE
    pages = mmap.mmap(-1, inner + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for page in (start, start + mmap.PAGESIZE + inner):
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        if protect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _FORBIDDEN) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    first = mmap.PAGESIZE + (0 if side == "after" else inner - size)
    return memoryview(pages)[first : first + size]


def ending_of(work: Callable[[Callable[[str], None]], None]) -> str:
    """What became of the work in a process of its own: empty if it was done, else what ended it, and where.

    The work says by the function that it gets what it is about to do.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_leave(work, writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        last = (said.read().splitlines() or ["nothing yet"])[-1]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"{signal.Signals(os.WTERMSIG(status)).name} in {last}"
    return "" if os.WEXITSTATUS(status) == 0 else last


def _work_and_leave(work: Callable[[Callable[[str], None]], None], writing: int) -> None:
    def say(text: str) -> None:
        os.write(writing, (text + "\n").encode())

    faulthandler.disable()  # a signal that is expected needs no traceback
    torch.set_num_threads(1)  # a forked process has no other threads and would wait for them
    try:
        work(say)
    except BaseException as error:
        say(f"{type(error).__name__}: {error}".splitlines()[0])
        os._exit(1)
    os._exit(0)
