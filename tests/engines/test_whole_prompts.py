"""A prompt that ends with a block: loaded to its end, or split as the engine's own cache does."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engine import Engine

LENGTH, BLOCK = 640, 128


@pytest.mark.long
def test_without_whole_prompt_hits_both_caches_split_a_prompt_at_the_same_token(
    start_engine: Callable[..., Engine], agent: Any, tokens: Callable[[int, int], list[int]]
) -> None:
    extra = {**agent.extra, "whole_prompt_hits": False}
    with start_engine("tiny-qwen3", extra=extra, core=0) as engine:
        prompt = tokens(LENGTH, 21)
        (cold,), (local,) = engine.generate(prompt), engine.generate(prompt)
        engine.reset()
        (external,) = engine.generate(prompt)
        assert (cold["cached"], local["cached"], external["cached"]) == (0, LENGTH - BLOCK, LENGTH - BLOCK)
        assert external["ids"] == local["ids"] == cold["ids"]
        assert external["logprobs"] == pytest.approx(local["logprobs"], abs=1e-6)
        assert engine.settle("kveik_connector_tokens_used", 1) == LENGTH - BLOCK


def test_the_last_block_alone_is_computed_not_loaded(
    start_engine: Callable[..., Engine], agent: Any, tokens: Callable[[int, int], list[int]]
) -> None:
    """The engine's own hit reaches as far as it can: one more block is not worth a load."""
    with start_engine("tiny-qwen3", extra=agent.extra, core=0) as engine:
        prompt = tokens(LENGTH, 22)
        engine.generate(prompt)
        engine.wait_saved()
        (local,) = engine.generate(prompt)
        assert local["cached"] == LENGTH - BLOCK
        engine.generate(tokens(20, 23), tokens=2)  # counters travel with steps
        assert engine.counter("kveik_connector_tokens_used") == 0
        engine.reset()
        (external,) = engine.generate(prompt)
        assert external["cached"] == LENGTH
        assert engine.settle("kveik_connector_tokens_used", 1) == engine.counter("vllm:external_prefix_cache_hits")
