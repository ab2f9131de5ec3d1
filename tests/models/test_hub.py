"""Models of the hub without a network, and what the hub says in one line."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import transformers

from headwise.errors import UserError
from headwise.models import hub
from headwise.models.refusal import one_line, refusing
from tests.models.refusals import refusal


@pytest.mark.parametrize("source", ["nope", "org/nope"])
def test_a_hub_id_without_a_network_fails_at_once(source, monkeypatch):
    """The client of the hub alone would try again for twenty seconds."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    start = time.monotonic()
    assert refusal(source) == (
        f"{source}: cannot read the config: no local folder, and neither in the local cache nor to be had from the hub "
        "(offline, or no answer within two seconds); check the spelling and the connection, or give a local folder"
    )
    assert time.monotonic() - start < 5


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.fixture
def quiet_hub(monkeypatch) -> Iterator[socket.socket]:
    """Something that takes connections where the hub should be."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_the_hub_answers_if_it_takes_a_connection(quiet_hub, monkeypatch):
    import huggingface_hub

    assert hub.answers()
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    assert not hub.answers()


def test_behind_a_proxy_only_the_proxy_could_tell(quiet_hub, monkeypatch):
    quiet_hub.close()
    assert not hub.answers()
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert hub.answers()


def test_a_hub_that_does_not_answer_is_given_up_on(quiet_hub, monkeypatch):
    monkeypatch.setattr(hub, "PATIENCE", 0.05)
    release = threading.Event()

    def silence(*_: object, **__: object) -> None:
        release.wait(60)
        raise TimeoutError

    monkeypatch.setattr(hub.socket, "create_connection", silence)
    start = time.monotonic()
    assert not hub.answers()
    assert time.monotonic() - start < 5
    release.set()


@pytest.mark.parametrize(("online", "where"), [(True, "on the hub"), (False, "in the local cache of the hub")])
def test_a_model_of_the_hub_without_safetensors(online, where, monkeypatch, llama_folder):
    """transformers would have had it converted over there."""
    import huggingface_hub

    config = transformers.AutoConfig.from_pretrained(llama_folder)
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr(hub, "answers", lambda: online)
    monkeypatch.setattr(huggingface_hub, "file_exists", lambda *given: asked.append(given))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *given: asked.append(given))
    text = refusal("org/pickled")
    assert text.startswith(f"org/pickled: no safetensors {where}")
    assert "; weights in other formats are pickled, which can run code when opened and are never loaded;" in text
    assert asked == [("org/pickled", "model.safetensors"), ("org/pickled", "model.safetensors.index.json")]


def hub_error(name: str) -> Exception:
    """An error of the hub's client as it would come up inside transformers."""
    import huggingface_hub.errors

    kind = getattr(huggingface_hub.errors, name)
    outer = OSError("several lines\nof advice for programmers")
    outer.__cause__ = kind.__new__(kind)
    return outer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RepositoryNotFoundError", "no local folder, and no public model of that name on the hub; check the spelling"),
        ("GatedRepoError", "the hub gives it to logged-in users who accepted its terms only; log in with"),
        ("LocalEntryNotFoundError", "no local folder, and neither in the local cache nor to be had from the hub"),
        ("OfflineModeIsEnabled", "no local folder, and neither in the local cache nor to be had from the hub"),
    ],
)
def test_what_the_hub_says(name, text):
    with (
        pytest.raises(UserError, match=f"^org/name: cannot read the config: {re.escape(text)}"),
        refusing("org/name", "config"),
    ):
        raise hub_error(name)


def test_one_line_is_of_bearable_length():
    assert one_line(ValueError("first\n   second")) == "first second"
    assert one_line(KeyError("added_tokens")) == "KeyError: 'added_tokens'"
    assert one_line(ValueError("")) == "ValueError"
    assert len(one_line(ValueError("x" * 1000))) == 300


def test_a_lack_of_memory_is_not_the_fault_of_the_checkpoint():
    with pytest.raises(MemoryError), refusing("name", "weights"):
        raise MemoryError
