"""Namespaces of requests with an adapter (LoRA).

vLLM's block hashes hold an adapter's name and path, but not its content: another training run saved
to the same path would hit blocks of the one before. So the digest of the adapter's files joins the
namespace of its requests.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kveik.connector.weights import weights_digest
from kveik.errors import KveikError
from kveik.kv.namespace import Namespace

logger = logging.getLogger(__name__)


class Adapter(Protocol):
    """The part of vLLM's LoRARequest that identifies an adapter."""

    @property
    def lora_int_id(self) -> int:
        """vLLM's number for the adapter as this engine loaded it."""
        ...

    @property
    def lora_path(self) -> str:
        """Folder, or hub id."""
        ...


class RequestNamespaces:
    """The namespace digest for each request: the engine's own, or one with the adapter's digest.

    An engine keeps an adapter as it was when it was loaded, so its digest is made once, when the
    first request with it comes, and on a thread of its own; until it is there, requests with
    that adapter have no namespace and neither hit nor are saved.
    """

    def __init__(self, base: Namespace, digest: Callable[[Path], str] = weights_digest) -> None:
        self._base = base
        self._digest = digest
        self._known: dict[tuple[int, str], bytes] = {}

    def of(self, adapter: Adapter | None) -> bytes:
        """16 bytes, or none while they are not known."""
        if adapter is None:
            return self._base.digest
        if getattr(adapter, "load_inplace", False):
            return b""  # reloaded under the same number at any time
        identity = (adapter.lora_int_id, adapter.lora_path)
        if identity not in self._known:
            self._known[identity] = b""
            threading.Thread(target=self._identify, args=identity, name="kveik-adapter", daemon=True).start()
        return self._known[identity]

    def _identify(self, number: int, path: str) -> None:
        try:
            digest = self._digest(Path(path))
        except (KveikError, OSError) as error:
            logger.warning("Kveik does not cache for adapter %s: %s", path, error)
            return
        self._known[number, path] = self._base.with_facts(adapter_digest=digest).digest
