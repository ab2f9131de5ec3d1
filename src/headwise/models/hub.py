"""Whether the model hub can be reached, and what lies in its local cache.

Without a network the hub's client tries again for about twenty seconds before it looks at its cache. One short attempt
to connect tells the same at once; nothing global is changed for those who are online.
"""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies

__all__ = ["answers", "has_safetensors"]

PATIENCE = 2.0  # seconds for looking up the name and connecting
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def answers() -> bool:
    """Whether the hub takes a connection within two seconds. False where the client is set to offline mode
    (``HF_HUB_OFFLINE``), True behind a proxy, where only the proxy could tell."""
    import huggingface_hub

    if huggingface_hub.is_offline_mode():
        return False
    if {"https", "http", "all"} & getproxies().keys():
        return True
    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    return _connects(address.hostname or "", address.port or (443 if address.scheme == "https" else 80))


def _connects(host: str, port: int) -> bool:
    connected = threading.Event()
    finished = threading.Event()

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
            connected.set()
        except OSError:
            pass
        finally:
            finished.set()

    # In a thread, since looking up a name knows no time limit; as a daemon, so that Python's end need not wait for it.
    threading.Thread(target=attempt, daemon=True).start()
    finished.wait(PATIENCE)
    return connected.is_set()


def has_safetensors(hub_id: str, online: bool) -> bool:
    """Whether a model of the hub has weights as safetensors, over there or (not ``online``) in the local cache."""
    import huggingface_hub

    if online:
        return any(huggingface_hub.file_exists(hub_id, file) for file in _WEIGHTS)
    return any(isinstance(huggingface_hub.try_to_load_from_cache(hub_id, file), str) for file in _WEIGHTS)
