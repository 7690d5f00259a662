"""Prompts have exact lengths, are reproducible and sit where caches go wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import VerifyError
from kveik.verify.prompts import LANGUAGES, boundary_lengths, build_prompt, build_prompts, text_of


def characters(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@given(st.sampled_from(LANGUAGES), st.integers(2, 500), st.integers(0, 50))
def test_a_prompt_has_exactly_the_tokens_asked_for(language: str, tokens: int, seed: int) -> None:
    prompt = build_prompt(characters, language, tokens, seed)
    assert prompt.tokens == tokens
    assert prompt.name == f"{language}-{tokens}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_same_seed_gives_the_same_text_and_another_seed_another(language: str) -> None:
    assert text_of(language, 5, seed=1) == text_of(language, 5, seed=1)
    assert text_of(language, 5, seed=1) != text_of(language, 5, seed=2)


def test_chinese_text_is_chinese_and_english_is_ascii() -> None:
    assert text_of("en", 50, 1).isascii()
    assert not any(character.isascii() for character in text_of("zh", 50, 1))


def test_prompts_of_different_lengths_share_no_prefix() -> None:
    prompts = build_prompts(characters, LANGUAGES, [100, 101, 200], seed=1)
    assert len({prompt.token_ids[:30] for prompt in prompts}) == len(prompts) == 6


def test_a_tokenizer_that_gives_too_few_tokens_is_an_error_not_a_loop() -> None:
    with pytest.raises(VerifyError, match="expected 100"):
        build_prompt(lambda text: (1,), "en", 100, 1)


@given(st.sampled_from([16, 128, 256]), st.sampled_from([0, 128, 512, 1024]), st.integers(100, 8192))
def test_lengths_are_ordered_and_within_the_limit(block: int, window: int, limit: int) -> None:
    lengths = boundary_lengths(block, window, limit)
    assert lengths == sorted(set(lengths))
    assert all(2 <= length <= limit for length in lengths)


def test_lengths_lie_on_both_sides_of_each_boundary() -> None:
    lengths = boundary_lengths(128, 512, 8192)
    for boundary in (128, 512):
        assert {boundary - 1, boundary, boundary + 1} <= set(lengths)
    assert 512 + 128 + 1 in lengths
