"""A simulated engine: vLLM's HTTP interface and counters over a made-up, deterministic model.

It keeps a prefix cache of its own and may share another one with other simulated engines, so
everything that sees engines only from outside can be tried in milliseconds, also with an engine
that misbehaves (:class:`Behaviour`). It is a stand-in for the interface, never for the model.
"""

import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from kveik.engine.metrics import CONNECTOR_PREFIX

VOCABULARY = 32_000
TOP = 20


@dataclass
class Behaviour:
    """How the engine deviates from a good one. Plain attributes: tests change them while it runs."""

    development_mode: bool = True
    has_connector: bool = True
    reports_cached_tokens: bool = True
    wrong_after_shared_hit: bool = False  # another answer, while all counters look right
    rounding_after_hit: float = 0.0  # added to log probabilities after any hit, as bfloat16 does
    whole_prompt_hits: bool = False  # the shared cache serves a prompt to its end where that ends a block
    ignores_shared_cache: bool = False  # as if each lookup passed its deadline
    mismatched_blocks: int = 0  # of each load, reported by the connector
    failed_blocks: int = 0  # of each load
    compares_blocks: bool = True
    drops_saves: bool = False
    foreign_tokens: int = 0  # prompt tokens counted for somebody else's request
    busy: int = 0
    breaks_stream_after: int = -1  # tokens; negative: never
    refuses_resets: int = 0  # how often /reset_prefix_cache says no before it says yes


@dataclass
class _Hit:
    local: int = 0
    shared: int = 0


@dataclass
class SimulatedEngine:
    """One engine on a free port of loopback; use as a context manager.

    ``shared`` is the shared cache: pass the same set to several engines.
    """

    shared: set[bytes] = field(default_factory=set)
    block_tokens: int = 16
    max_model_tokens: int = 2048
    dtype: str = "float32"
    behaviour: Behaviour = field(default_factory=Behaviour)

    def __post_init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self._lock = threading.Lock()
        self._local: set[bytes] = set()
        self._counts: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def restart(self) -> None:
        """What kill -9 and a new start leave: an empty cache and counters at zero."""
        with self._lock:
            self._local.clear()
            self._counts.clear()

    def forget_local_blocks(self) -> None:
        """Empty the engine's own cache."""
        with self._lock:
            self._local.clear()

    # -- the engine ----------------------------------------------------------------------------

    def tokenize(self, text: str) -> list[int]:
        """One token a word, and one a character where there are no spaces; 1 begins every prompt."""
        pieces = [piece for word in text.split() for piece in (word if not word.isascii() else [word])]
        return [1, *(_number(piece.encode()) % (VOCABULARY - 10) + 10 for piece in pieces)]

    def admit(self, prompt: Sequence[int], salt: str) -> _Hit:
        """Look up and save the prompt's blocks and count, as one step."""
        keys = self._keys(prompt, salt)
        usable = keys[: (len(prompt) - 1) // self.block_tokens]
        with self._lock:
            local = _leading(usable, self._local)
            reachable = self.shared if self.behaviour.has_connector and not self.behaviour.ignores_shared_cache else ()
            loadable = keys if self.behaviour.whole_prompt_hits and local < len(usable) else usable
            hit = _Hit(local * self.block_tokens, _leading(loadable[local:], reachable) * self.block_tokens)
            self._count(len(prompt), hit, len(keys) - local)
            self._local.update(keys)
            if not self.behaviour.drops_saves:
                self.shared.update(keys)
        return hit

    def step(self, tokens: Sequence[int], hit: _Hit) -> dict[int, float]:
        """The best candidates after these tokens, best first, with log probabilities."""
        wrong = b"wrong" if self.behaviour.wrong_after_shared_hit and hit.shared else b""
        chooser = random.Random(_number(repr(list(tokens)).encode() + wrong))
        noise = self.behaviour.rounding_after_hit if hit.local or hit.shared else 0.0
        ids = chooser.sample(range(10, VOCABULARY), TOP)
        return {token: -0.3 - 0.4 * rank + noise for rank, token in enumerate(ids)}

    def _keys(self, prompt: Sequence[int], salt: str) -> list[bytes]:
        keys, parent = [], salt.encode()
        for end in range(self.block_tokens, len(prompt) + 1, self.block_tokens):
            parent = hashlib.sha256(parent + repr(prompt[end - self.block_tokens : end]).encode()).digest()
            keys.append(parent)
        return keys

    def _count(self, tokens: int, hit: _Hit, new_blocks: int) -> None:
        behaviour = self.behaviour
        loaded = hit.shared // self.block_tokens
        self._counts["vllm:prompt_tokens_total"] += tokens + behaviour.foreign_tokens
        by_source = {
            "local_compute": tokens - hit.local - hit.shared,
            "local_cache_hit": hit.local,
            "external_kv_transfer": hit.shared,
        }
        for source, amount in by_source.items():
            self._counts[f'vllm:prompt_tokens_by_source_total{{source="{source}"}}'] += amount
        if not behaviour.has_connector:
            return
        dropped = new_blocks if behaviour.drops_saves else 0
        ours = {
            "tokens_used_total": hit.shared,
            'loaded_blocks_total{tier="arena"}': loaded,
            'load_failures_total{reason="timeout"}': behaviour.failed_blocks if loaded else 0,
            "read_back_blocks_total": loaded if behaviour.compares_blocks else 0,
            "read_back_mismatches_total": behaviour.mismatched_blocks if loaded else 0,
            "saved_blocks_total": new_blocks - dropped,
            'save_dropped_blocks_total{reason="no_room"}': dropped,
            'lookups_total{outcome="deadline"}': int(behaviour.ignores_shared_cache),
        }
        for name, amount in ours.items():
            self._counts[CONNECTOR_PREFIX + name] += amount

    # -- the interface -------------------------------------------------------------------------

    def metrics_text(self) -> str:
        """``/metrics`` in Prometheus text."""
        with self._lock:
            lines = [f"{name} {value}" for name, value in self._counts.items()]
        lines += [
            f"vllm:num_requests_running {self.behaviour.busy}",
            f'vllm:cache_config_info{{block_size="{self.block_tokens}"}} 1',
        ]
        if self.behaviour.has_connector:
            lines += [f"{CONNECTOR_PREFIX}attached 1", f"{CONNECTOR_PREFIX}pinned_blocks 0"]
        return "\n".join(lines) + "\n"

    def server_config(self) -> dict[str, Any]:
        """The part of vLLM's configuration that matters outside."""
        extra = {"read_back_every": int(self.behaviour.compares_blocks)}
        return {
            "model_config": {"dtype": f"torch.{self.dtype}", "max_model_len": self.max_model_tokens},
            "cache_config": {"block_size": self.block_tokens, "kv_cache_size_tokens": 1 << 20},
            "kv_transfer_config": {"kv_connector_extra_config": extra} if self.behaviour.has_connector else None,
        }

    def completion_events(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one streamed completion, without the closing ``[DONE]``."""
        prompt = list(body["prompt"])
        hit = self.admit(prompt, str(body.get("cache_salt") or ""))
        tokens = list(prompt)
        for _ in range(int(body["max_tokens"])):
            candidates = self.step(tokens, hit)
            chosen = next(iter(candidates))
            tokens.append(chosen)
            choice: dict[str, Any] = {"index": 0, "text": f" {chosen}", "token_ids": [chosen]}
            if body.get("logprobs"):
                top = {f"token_id:{token}": value for token, value in candidates.items()}
                choice["logprobs"] = {"token_logprobs": [candidates[chosen]], "top_logprobs": [top]}
            yield {"choices": [choice]}
        usage: dict[str, Any] = {"prompt_tokens": len(prompt)}
        if self.behaviour.reports_cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": hit.local + hit.shared}
        yield {"choices": [], "usage": usage}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(_Handler):
            simulated = engine

        return Handler


class _Handler(BaseHTTPRequestHandler):
    """vLLM's routes, as far as they are needed."""

    simulated: SimulatedEngine

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        engine = self.simulated
        if path == "/health":
            self._send(200, b"")
        elif path == "/metrics":
            self._send(200, engine.metrics_text().encode())
        elif path == "/v1/models":
            self._send_json({"data": [{"id": "simulated", "max_model_len": engine.max_model_tokens}]})
        elif path == "/server_info" and engine.behaviour.development_mode:
            self._send_json({"vllm_config": engine.server_config()})
        else:
            self._send(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        engine = self.simulated
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if path == "/tokenize":
            self._send_json({"tokens": engine.tokenize(body["prompt"])})
        elif path == "/reset_prefix_cache" and engine.behaviour.development_mode:
            self._send_json({"success": self._reset()})
        elif path == "/v1/completions":
            engine.requests.append(body)
            self._complete(body)
        else:
            self._send(404, b'{"detail":"Not Found"}')

    def _reset(self) -> bool:
        engine = self.simulated
        if engine.behaviour.refuses_resets > 0:
            engine.behaviour.refuses_resets -= 1
            return False
        engine.forget_local_blocks()
        return True

    def _complete(self, body: Mapping[str, Any]) -> None:
        if len(body["prompt"]) + int(body["max_tokens"]) > self.simulated.max_model_tokens:
            self._send(400, b'{"error":{"message":"maximum context length exceeded"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number, event in enumerate(self.simulated.completion_events(body)):
            if number == self.simulated.behaviour.breaks_stream_after:
                return
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_json(self, document: Mapping[str, Any]) -> None:
        self._send(200, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def _leading(keys: Sequence[bytes], present: set[bytes] | tuple[()]) -> int:
    """How many of the first keys are present without a gap."""
    return next((index for index, key in enumerate(keys) if key not in present), len(keys))
