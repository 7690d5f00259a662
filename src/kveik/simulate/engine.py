"""The simulated engine as a subject of proofs: engines that share a cache, and engines that deviate.

This only starts :class:`~kveik.simulate.server.SimServer` with a connector, in a thread, so
everything that sees engines only from outside can be tried in milliseconds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from kveik.config import SimEngineSettings
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.server import SimServer
from kveik.simulate.tokenizer import pack_ids


class Hit(NamedTuple):
    """Prompt tokens found in the engine's own cache and, beyond them, in the shared one."""

    local: int
    shared: int


@dataclass
class SimulatedEngine:
    """One engine on loopback, on a free port unless ``port`` is given; use as a context manager.

    ``shared`` is the shared cache: pass the same set to several engines.
    """

    shared: set[bytes] = field(default_factory=set)
    block_tokens: int = 16
    max_model_tokens: int = 2048
    behaviour: Behaviour = field(default_factory=Behaviour)
    port: int = 0
    model: str = "simulated"
    cache_blocks: int = 8192
    prefill_tokens_s: float = 0.0

    def __post_init__(self) -> None:
        settings = SimEngineSettings(
            port=self.port,
            model=self.model,
            block_tokens=self.block_tokens,
            max_model_tokens=self.max_model_tokens,
            cache_blocks=self.cache_blocks,
            prefill_tokens_s=self.prefill_tokens_s,
        )
        self.server = SimServer(settings, record=True, behaviour=self.behaviour, shared=self.shared)

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """The bodies of the completions that it was asked for since its last start."""
        return [json.loads(one.body) for one in self.server.seen.recorded if one.path == "/v1/completions"]

    def restart(self) -> None:
        """Kill -9 and a new start: an empty cache and counters at zero."""
        self.server.crash()
        self.server.restart()

    def forget_local_blocks(self) -> None:
        """Empty the engine's own cache."""
        self.server.call(self.server.app.core.cache.clear)

    def admit(self, prompt: Sequence[int], salt: str) -> Hit:
        """Look up and save the prompt's blocks and count, as one step."""
        admission = self.server.call(lambda: self.server.app.core.admit(pack_ids(prompt), salt))
        return Hit(admission.hit_tokens, admission.shared_tokens)

    def metrics_text(self) -> str:
        """``/metrics`` in Prometheus text."""
        return self.server.call(self.server.app.core.metrics_text)
