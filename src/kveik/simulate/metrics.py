"""Counters and histograms of the simulated engine, under vLLM's names."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

_SHORT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LONG_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """A Prometheus histogram: how many values were at most each of ``bounds``."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples as Prometheus text."""
        lines, below = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
        return [*lines, f"{name}_count{{{labels}}} {below}", f"{name}_sum{{{labels}}} {self.total}"]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true of an engine at the moment of asking."""

    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    queried_tokens: int = 0
    hit_tokens: int = 0


@dataclass
class EngineMetrics:
    """What one engine has done since its start. Tokens and seconds."""

    model: str
    block_tokens: int
    cache_blocks: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    foreign_tokens: int = 0  # in no source's count: the totals are off by so many
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.iteration_tokens = Histogram(_TOKENS)
        self.time_to_first_token_s = Histogram(_SHORT_S)
        self.time_in_queue_s = Histogram(_LONG_S)
        self.time_to_end_s = Histogram(_LONG_S)

    def text(self, now: Gauges) -> str:
        """``/metrics`` in Prometheus text."""
        labels = f'engine="0",model_name="{self.model}"'
        lines = ["# HELP vllm:num_requests_running Of a SIMULATED engine: nothing here was computed by a model."]
        for name, value in self._gauges(now).items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {value}"]
        for name, value in self._counters(now).items():
            lines += [f"# TYPE {name} counter", f"{name}_total{{{labels}}} {value}"]
        lines += self._labelled(labels)
        lines += self.iteration_tokens.lines("vllm:iteration_tokens_total", labels)
        lines += self.time_to_first_token_s.lines("vllm:time_to_first_token_seconds", labels)
        lines += self.time_in_queue_s.lines("vllm:request_queue_time_seconds", labels)
        lines += self.time_to_end_s.lines("vllm:e2e_request_latency_seconds", labels)
        return "\n".join(lines) + "\n"

    def _gauges(self, now: Gauges) -> dict[str, float]:
        return {
            "vllm:num_requests_running": now.running,
            "vllm:num_requests_waiting": now.waiting,
            "vllm:kv_cache_usage_perc": now.cache_usage,
        }

    def _counters(self, now: Gauges) -> dict[str, int]:
        return {
            "vllm:prefix_cache_queries": now.queried_tokens,
            "vllm:prefix_cache_hits": now.hit_tokens,
            "vllm:prompt_tokens": self.prompt_tokens + self.foreign_tokens,
            "vllm:prompt_tokens_cached": self.cached_tokens + self.shared_tokens,
            "vllm:generation_tokens": self.generation_tokens,
        }

    def _labelled(self, labels: str) -> list[str]:
        by_source = {
            "local_compute": self.prompt_tokens - self.cached_tokens - self.shared_tokens,
            "local_cache_hit": self.cached_tokens,
            "external_kv_transfer": self.shared_tokens,
        }
        lines = ["# TYPE vllm:prompt_tokens_by_source counter"]
        for source, tokens in by_source.items():
            lines.append(f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {tokens}')
        lines.append("# TYPE vllm:request_success counter")
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {self.finished.get(reason, 0)}'
            for reason in ("abort", "length", "stop")
        ]
        config = f'block_size="{self.block_tokens}",num_gpu_blocks="{self.cache_blocks}"'
        return [*lines, f'vllm:cache_config_info{{engine="0",{config},enable_prefix_caching="True"}} 1']
