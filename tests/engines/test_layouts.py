"""Every kind of KV cache group on a real engine: a hit from the shared cache equals a cold run.

Two engines, each with an own process: the first computes and saves, the second has never seen the
prompts. In float32 tokens must be equal and log probabilities equal to rounding; models that exist
in bfloat16 only are compared with the engine's own prefix cache hit, which splits the prompt the
same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.engine import Engine

Tokens = Callable[[int, int], list[int]]


@dataclass(frozen=True)
class Layout:
    """A model and what a hit on it looks like."""

    model: str
    dtype: str
    lengths: tuple[int, ...]
    block: int
    tolerance: float


LAYOUTS = [
    Layout("tiny-qwen3", "float32", (300, 640, 641, 1400), 128, 1e-4),
    Layout("tiny-qwen3moe", "float32", (300, 1400), 128, 1e-4),
    Layout("tiny-gemma3", "float32", (300, 640, 641, 1400), 128, 1e-4),
    Layout("tiny-gptoss", "bfloat16", (300, 1400), 128, 1e-4),
    Layout("tiny-qwen3next", "bfloat16", (600, 1400), 256, 1e-4),
]


def logprobs_differ(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(abs(a - b) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))


#: The others have one each of what layouts differ in; these differ from tiny-qwen3 in what is no KV, and from
#: tiny-gemma3 in its type alone.
LONG = ("tiny-qwen3moe", "tiny-gptoss")


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.long] if one.model in LONG else []) for one in LAYOUTS],
    ids=[one.model for one in LAYOUTS],
)
def pair(request: pytest.FixtureRequest, start_engine: Callable[..., Engine], agent: Any) -> Any:
    layout: Layout = request.param
    writer = start_engine(layout.model, dtype=layout.dtype, extra=agent.extra, core=0)
    reader = start_engine(layout.model, dtype=layout.dtype, extra=agent.extra, core=1)
    yield layout, writer.wait_ready(), reader.wait_ready()
    writer.kill()
    reader.kill()


def test_another_engines_hit_equals_a_cold_run(pair: Any, tokens: Tokens) -> None:
    layout, writer, reader = pair
    for seed, length in enumerate(layout.lengths):
        prompt = tokens(length, seed)
        (cold,) = writer.generate(prompt)
        (local,) = writer.generate(prompt)
        writer.wait_saved()
        (external,) = reader.generate(prompt)
        expected_hit = length // layout.block * layout.block
        assert (cold["cached"], external["cached"]) == (0, expected_hit), reader.connector_counters()
        reference = cold if layout.dtype == "float32" else local
        assert external["ids"] == reference["ids"]
        assert logprobs_differ(external, reference) <= layout.tolerance
    assert reader.settle("kveik_connector_read_back_blocks", 1) > 0
    assert reader.counter("kveik_connector_read_back_mismatches") == 0


def test_tokens_used_agree_with_vllms_own_count(pair: Any, tokens: Tokens) -> None:
    _layout, _writer, reader = pair
    reader.generate(tokens(20, 99), tokens=2)
    assert reader.counter("kveik_connector_tokens_used") == reader.counter("vllm:external_prefix_cache_hits")
    assert reader.counter("kveik_connector_tokens_used") > 0


def test_a_longer_prompt_hits_its_known_prefix(pair: Any, tokens: Tokens) -> None:
    layout, writer, reader = pair
    if layout.model == "tiny-qwen3next":
        pytest.skip("states are kept where a prompt ended, so only whole prompts are prefixes; see the next test")
    known = tokens(1100, 7)
    writer.generate(known)
    writer.wait_saved()
    longer = known[:1000] + tokens(200, 8)
    (external,) = reader.generate(longer)
    assert external["cached"] == 1000 // layout.block * layout.block, reader.connector_counters()
    (cold,) = reader.generate(longer, salt="cold")
    if layout.dtype == "float32":
        assert external["ids"] == cold["ids"]
        assert logprobs_differ(external, cold) <= layout.tolerance


def test_generated_text_is_in_the_cache_too(pair: Any, tokens: Tokens) -> None:
    layout, writer, reader = pair
    if layout.model == "tiny-qwen3next":
        pytest.skip("vLLM hands over states of prompts only")
    prompt = tokens(250, 11)
    (answer,) = writer.generate(prompt, tokens=40)
    writer.wait_saved()
    next_turn = prompt + answer["ids"] + tokens(50, 12)
    (external,) = reader.generate(next_turn)
    assert external["cached"] == (250 + 40) // layout.block * layout.block, reader.connector_counters()
