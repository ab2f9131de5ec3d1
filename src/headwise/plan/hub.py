"""Small JSON files of models on the hub: one attempt, a few seconds, nothing but the file that was asked for.

What lies in the hub's local cache is taken from there. The hub's own client would try again for half a minute where
there is no network, and would fetch a file of any size.
"""

from __future__ import annotations

import re
from typing import Any

from headwise.plan.errors import PlanError
from headwise.plan.strict_json import MOST_BYTES, parse_object, read_object

__all__ = ["is_hub_id", "read_hub_object"]

PATIENCE = 5.0  # seconds to connect, and for each piece of an answer
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_STATUS = {
    401: "no public model of that name, or one for users who are logged in; check the spelling, or run: hf auth login",
    403: "the hub gives it to users who accepted its terms; accept them and run: hf auth login",
}


def is_hub_id(name: str) -> bool:
    """Whether ``name`` has the form of a hub id, ``org/name`` or ``name``."""
    return _HUB_ID.fullmatch(name) is not None and len(name) <= 200 and ".." not in name and "--" not in name


def read_hub_object(hub_id: str, name: str) -> dict[str, Any] | None:
    """The JSON object in file ``name`` of a model on the hub; None: the model has no such file.

    Raises:
        PlanError: the hub can't be reached or doesn't give it, or the file holds no object.
    """
    import huggingface_hub

    cached = huggingface_hub.try_to_load_from_cache(hub_id, name)
    if isinstance(cached, str):
        return read_object(cached)
    data = _fetched(hub_id, name)
    return None if data is None else parse_object(data, f"{hub_id}/{name}")


def _fetched(hub_id: str, name: str) -> bytes | None:
    """The bytes of a file, no more of them than a JSON file may have; None: there is none."""
    try:
        return _asked(hub_id, name)
    except (PlanError, MemoryError):
        raise
    except Exception as error:  # whatever the client of this version raises for a network that fails
        raise PlanError(
            f"{hub_id}: no such folder or file, not in the local cache of the hub, and the hub can't be reached; check "
            "the spelling and the connection, or give a config.json"
        ) from error


def _asked(hub_id: str, name: str) -> bytes | None:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    options: dict[str, Any] = {"headers": build_hf_headers(), "timeout": PATIENCE, "follow_redirects": True}
    with get_session().stream("GET", hf_hub_url(hub_id, name), **options) as answer:
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            why = _STATUS.get(answer.status_code, f"the hub answers with status {answer.status_code}")
            raise PlanError(f"{hub_id}: can't read {name}: {why}")
        return _at_most(MOST_BYTES + 1, answer)


def _at_most(most: int, answer: Any) -> bytes:
    data = bytearray()
    for piece in answer.iter_bytes():
        data += piece
        if len(data) >= most:
            break
    return bytes(data[:most])
