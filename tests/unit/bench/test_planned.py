"""Tokens of prompts: drawn by name, the same for the same seed."""

import pytest

from kveik.bench.planned import Planned, TokenPool, Workload, pool_of
from kveik.errors import ConfigError


def test_the_same_name_and_seed_give_the_same_tokens_and_other_ones_others() -> None:
    pool = TokenPool(range(100), seed=1)
    assert pool.draw("prefix 1", 50) == TokenPool(range(100), seed=1).draw("prefix 1", 50)
    assert pool.draw("prefix 1", 50) != pool.draw("prefix 2", 50)
    assert pool.draw("prefix 1", 50) != TokenPool(range(100), seed=2).draw("prefix 1", 50)
    assert pool.draw("prefix 1", 50) != pool.renamed("a new run").draw("prefix 1", 50)
    assert pool.draw("prefix 1", 20) == pool.draw("prefix 1", 50)[:20]


def test_only_tokens_of_the_pool_are_drawn() -> None:
    assert set(TokenPool([7, *range(20, 40)], seed=1).draw("x", 1000)) <= {7, *range(20, 40)}


def test_too_few_tokens_make_no_pool() -> None:
    with pytest.raises(ConfigError, match="3 different tokens are known, expected at least 16"):
        TokenPool([1, 2, 3, 3], seed=1)


def test_the_pool_of_a_tokenizer_leaves_out_what_stands_before_any_text() -> None:
    def tokenize(text: str) -> list[int]:
        return [2, *(100 + ord(letter) % 64 for letter in text)]

    drawn = set(pool_of(tokenize, 1).draw("x", 2000))
    assert 2 not in drawn
    assert min(drawn) >= 100


def test_a_tokenizer_without_a_first_token_keeps_all() -> None:
    assert len(set(pool_of(lambda text: [ord(letter) % 100 for letter in text], 1).draw("x", 2000))) > 16


def test_a_workload_knows_its_tokens_and_what_a_model_takes() -> None:
    workload = Workload("prefix", [Planned((1,) * 10, 5), Planned((1,) * 20, 5)])
    assert (workload.prompt_tokens, workload.answer_tokens) == (30, 10)
    workload.check_fits(0)
    workload.check_fits(25)
    with pytest.raises(
        ConfigError, match="longest prompt of prefix has 25 tokens with its answer, expected at most 24"
    ):
        workload.check_fits(24)
