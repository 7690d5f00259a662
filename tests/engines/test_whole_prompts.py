"""A prompt that ends with a block, loaded to its end: only its last token is computed, and again equals a cold run."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engine import Engine

LENGTH = 640  # five engine blocks


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma3"])
def test_a_hit_of_the_whole_prompt_equals_a_cold_run(
    name: str, start_engine: Callable[..., Engine], agent: Any, tokens: Callable[[int, int], list[int]]
) -> None:
    extra = {**agent.extra, "whole_prompt_hits": True}
    with start_engine(name, extra=extra, core=0) as writer, start_engine(name, extra=extra, core=1) as reader:
        prompt = tokens(LENGTH, 21)
        (cold,) = writer.generate(prompt)
        (external,) = reader.generate(prompt)
        assert (cold["cached"], external["cached"]) == (0, LENGTH)
        assert external["ids"] == cold["ids"]
        assert external["logprobs"] == pytest.approx(cold["logprobs"], abs=1e-4)
        reader.generate(tokens(20, 22), tokens=2)  # counters travel with steps
        assert reader.counter("kveik_connector_tokens_used") == LENGTH
        assert reader.counter("vllm:external_prefix_cache_hits") == LENGTH
        assert reader.counter("kveik_connector_read_back_mismatches") == 0
