"""Requests of different lengths: what is reserved in vain, and what a shared beginning saves."""

from typing import Any

import pytest

from kveik.errors import ConfigError
from kveik.profiles.figure import Figure
from kveik.profiles.lengths import blocks_alone, blocks_sharing, mix, sharing, waste


def of(figures: tuple[Figure, ...], name: str) -> Any:
    return next(figure.value for figure in figures if figure.name == name)


def test_a_mix_is_the_same_every_time_and_within_its_bounds() -> None:
    assert mix("uniform:10-1000") == mix("uniform:10-1000")
    for text in ("uniform:10-1000", "exponential:10-1000:180"):
        found = mix(text)
        assert len(found) == 100
        assert min(found) >= 10
        assert max(found) <= 1000
    assert mix("5,7,9") == [5, 7, 9]


@pytest.mark.parametrize(
    "text", ["", "a,b", "uniform:10", "exponential:10-100", "exponential:10-100:0", "normal:1-2", "0,5"]
)
def test_a_mix_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="--lengths is"):
        mix(text)


def test_reserving_for_the_longest_wastes_most_and_blocks_waste_little() -> None:
    figures = waste(mix("exponential:10-1000:180"), 16, 1000)
    assert 75 < of(figures, "unused if reserved ahead") < 85
    assert of(figures, "unused in blocks") < 5
    assert of(figures, "requests in the same memory") > 4


def test_larger_blocks_waste_more() -> None:
    found = mix("uniform:10-1000")
    wasted = [of(waste(found, block), "unused in blocks") for block in (16, 128, 256)]
    assert wasted == sorted(wasted)


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(ConfigError, match="--block-tokens is 0"):
        waste([10], 0)
    with pytest.raises(ConfigError, match="but one has 10"):
        waste([10], 16, 5)
    with pytest.raises(ConfigError, match="--shared-tokens is -1"):
        sharing([10], -1, 16)


def test_thirty_percent_shared_by_fifty_save_less_than_thirty_percent() -> None:
    figures = sharing([1000] * 50, 304, 16)
    assert of(figures, "blocks, each for itself") == 3150
    assert of(figures, "blocks, beginning shared") == 2219
    assert of(figures, "saved by sharing") == pytest.approx(29.6, abs=0.05)
    assert of(figures, "can be saved at most") == pytest.approx(29.8, abs=0.05)


def test_only_whole_blocks_are_shared_and_never_a_prompts_last_token() -> None:
    assert blocks_sharing([64, 64], 31, 16) == 8 - 1
    assert blocks_sharing([64, 64], 64, 16) == 8 - 3
    assert blocks_sharing([16, 16], 16, 16) == 2
    assert blocks_sharing([10, 20, 30], 0, 16) == blocks_alone([10, 20, 30], 16) == 5
