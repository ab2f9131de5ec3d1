"""The least time of a step: reading against multiplying, and which one decides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headwise import native
from headwise.plan import devices
from headwise.plan.answers import plan_architecture
from headwise.plan.devices import DEVICES, Device, device_named
from headwise.plan.errors import PlanError
from headwise.plan.pairs import decode_pairs
from headwise.plan.request import Request
from headwise.plan.roofline import bytes_read
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Chunk, Grows, Window
from tests.plan.made import grouped, latent, model, recurrent

SLOW = Device("slow", bandwidth=1_000, flops=3_000, source="a test")


def planned(made, device=SLOW, *, weights=None, **asked):
    return plan_architecture(made, Request(**asked), runtime_named("logical"), device=device, weights=weights)


def test_multi_query_attention_does_more_with_each_byte_than_multi_head():
    """With one KV head for H heads: 2·H·D FLOPs each for scores and values, for 2·D elements of two bytes."""
    told = [planned(model(grouped(0, 6, groups, 11, 17)), context=101).roofline for groups in (6, 2, 1)]
    assert [each.intensity for each in told] == [1.0, 3.0, 6.0]
    assert [each.bound for each in told] == ["memory", "memory", "arithmetic"]
    bytes_of_one = 101 * 2 * 11 * 2
    assert [each.cache_bytes for each in told] == [6 * bytes_of_one, 2 * bytes_of_one, bytes_of_one]
    assert told[0].attention_seconds == 6 * bytes_of_one / 1_000
    assert told[2].attention_seconds == 4 * 6 * 11 * 101 / 3_000


def test_a_step_reads_all_weights_or_says_that_it_does_not_know_them():
    made = model(grouped(0, 6, 2, 11, 17))
    assert planned(made, context=101).roofline.step_seconds is None
    told = planned(made, weights=7_000_001, context=101, batch=3).roofline
    assert told.step_seconds == (7_000_001 + 3 * 101 * 2 * 2 * 11 * 2) / 1_000
    ranked = planned(made, weights=7_000_001, context=101, batch=3, tp=2).roofline
    assert ranked.weight_bytes == 3_500_001
    assert ranked.cache_bytes == told.cache_bytes // 2
    assert ranked.step_flops == told.step_flops / 2
    fast = planned(made, Device("reader", 10**15, 3_000, ""), weights=7, context=101).roofline
    assert fast.step_seconds == fast.step_flops / 3_000
    assert fast.step_flops == planned(made, context=101).decode.total.visible


def test_an_unknown_flop_rate_leaves_the_reading():
    told = planned(model(grouped(0, 6, 1, 11, 17)), Device("reader", 1_000, None, ""), context=101).roofline
    assert told.bound is told.as_dict()["bound"] is None  # without the rate it can't be known
    assert told.attention_seconds == told.cache_bytes / 1_000


def test_what_is_held_elsewhere_is_read_all_the_same():
    made = model(grouped(0, 6, 2, 11, 17), grouped(1, 6, 2, 11, 17, owner=0))
    request = Request(101)
    assert bytes_read(made, request) == 2 * bytes_read(model(made.layers[0]), request)
    assert planned(made, context=101).total == bytes_read(model(made.layers[0]), request)


def test_windows_and_chosen_keys_are_read_as_far_as_they_are_seen():
    assert bytes_read(model(grouped(0, 6, 2, 11, 17, Window(5))), Request(101)) == 5 * 2 * 2 * 11 * 2
    layer = latent(0, 6, 23, 5, 7, 13, 17)
    chosen = replace(layer, attentions=(replace(layer.attentions[0], extent=Window(4)),))
    assert bytes_read(model(chosen), Request(101)) == 4 * 28 * 2
    assert bytes_read(model(recurrent(0)), Request(101)) == (3 * 7 + 77) * 2


@pytest.mark.parametrize("extent", [Grows(), Window(5), Chunk(7), Chunk(1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_read_is_what_the_last_token_sees(extent, batch):
    """Not what has to be held: behind the end of a chunk nearly all of it is dropped."""
    made = model(grouped(0, 6, 2, 11, 17, extent))
    for context in range(30):
        seen = decode_pairs(extent, context).visible
        assert bytes_read(made, Request(context, batch)) == batch * seen * 2 * 2 * 11 * 2
        if context:
            told = planned(made, context=context, batch=batch)
            assert told.roofline.cache_bytes <= told.total
            assert told.roofline.attention_flops == batch * seen * 6 * 4 * 11


def test_a_chunk_of_llama_4_is_read_as_far_as_it_got():
    layers = [grouped(index, 40, 8, 128, 5120, Grows() if index % 4 == 3 else Chunk(8192)) for index in range(48)]
    assert bytes_read(model(*layers), Request(20_000)) == 36 * 3_616 * 4_096 + 12 * 20_000 * 4_096 == 1_516_240_896


def test_latent_attention_is_timed_in_its_absorbed_form():
    told = planned(model(latent(0, 6, 23, 5, 7, 13, 17)), context=101).roofline
    assert told.attention_flops == 2 * 6 * 101 * (28 + 23)
    assert told.intensity == 2 * 6 * (28 + 23) / (28 * 2)


def test_nothing_to_read_takes_no_time():
    told = planned(model(grouped(0, 6, 2, 11, 17, causal=False)), context=101).roofline
    assert (told.intensity, told.attention_seconds) == (None, 0)


def test_presets_are_sorted_and_say_who_published_them():
    assert list(DEVICES) == sorted(DEVICES)
    for device in DEVICES.values():
        assert any(maker in device.source for maker in ("NVIDIA", "AMD", "Google"))
        assert 10 < device.ridge < 1_000
    assert device_named("H100-SXM").bandwidth == 3_350 * 10**9
    assert device_named("h100-sxm").flops == 1_979 * 10**12 // 2


def test_an_unknown_device_is_refused():
    message = (
        f"--device: expected here or one of {', '.join(DEVICES)}, got 'abacus'; others by --bandwidth and --flop-rate"
    )
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        device_named("abacus")


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_here_is_measured(monkeypatch):
    measure = native.read_bandwidth
    monkeypatch.setattr(native, "read_bandwidth", lambda threads: measure(threads, buffer_bytes=1 << 20, repeats=3))
    device = device_named("here", threads=1)
    assert device.bandwidth > 10**8
    assert device.flops > 10**8
    assert device.source.startswith("measured: median of 3 reads of 1 MiB, 1 thread; median of 5 products of 1024 x")
    assert device.source.endswith(" float32 matrices, narrower types may be faster")


def test_here_without_the_compiled_part_is_refused(monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: False)
    with pytest.raises(PlanError, match=r"^--device here: expected the compiled part of headwise, .*--bandwidth$"):
        devices.measured_here()
