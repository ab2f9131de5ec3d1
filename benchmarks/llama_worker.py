"""The side of `llama.py` that has llama.cpp: a process that decodes when told to and says how long it took.

It runs under whatever Python has `llama_cpp`, which need not be that of headwise; nothing else is imported. The first
line that it reads is a JSON object with the GGUF file, the tokens, the contexts and the threads; each further one names
a context and how many tokens to decode there. It answers every line with one.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

CHUNK = 512


def filled(llama_cpp: Any, file: str, tokens: list[int], threads: int) -> Any:
    """The model behind all tokens but the last: flash attention, keys and values in float16 as is the default."""
    options = {"n_ctx": len(tokens) + 1, "n_batch": CHUNK, "n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(file, flash_attn=True, verbose=False, **options)
    model.eval(tokens[:-1])
    return model


def decode(model: Any, token: int) -> Any:
    """The logits behind one more token, which is taken back."""
    model.eval([token])
    model.n_tokens -= 1  # the next one is written over it
    return model._ctx.get_logits()  # this waits until they are there


def seconds_of(model: Any, token: int, count: int) -> float:
    """Time of one token, after one that is not timed: what ran before has other things in the caches."""
    decode(model, token)
    start = time.perf_counter()
    for _ in range(count):
        decode(model, token)
    return (time.perf_counter() - start) / count


def main() -> None:
    llama_cpp = importlib.import_module("llama_cpp")
    given = json.loads(sys.stdin.readline())
    tokens, contexts = given["tokens"], given["contexts"]
    models = {str(n): filled(llama_cpp, given["file"], tokens[: n + 1], given["threads"]) for n in contexts}
    logits = {name: list(decode(model, tokens[int(name)])[: model.n_vocab()]) for name, model in models.items()}
    print(json.dumps({"version": llama_cpp.__version__, "logits": logits}), flush=True)
    for line in sys.stdin:
        context, count = line.split()
        print(seconds_of(models[context], tokens[int(context)], int(count)), flush=True)


if __name__ == "__main__":
    main()
