"""Whether the funnel agrees with what vLLM counts."""

from kveik.diagnose.funnel_sums import (
    EXTERNAL_HITS,
    EXTERNAL_QUERIES,
    LOCAL_HITS,
    LOCAL_QUERIES,
    difference,
    expected_counters,
)
from tests.funnels import prompt, told

LOADED = told("loaded", prompt(700), local_tokens=128, load_tokens=512, used_tokens=640, computed_from=640,
              admissions=1, admitted_local_tokens=128, admitted_load_tokens=512)  # fmt: skip


def test_requests_add_to_the_counters_what_vllm_counts_when_it_allocates() -> None:
    waiting, missed = told("waiting", prompt(300), load_tokens=-1), told("missed", prompt(300), admissions=1)
    assert expected_counters([LOADED, missed, waiting]) == {
        LOCAL_QUERIES: 1000,
        LOCAL_HITS: 128,
        EXTERNAL_QUERIES: 872,
        EXTERNAL_HITS: 512,
    }


def test_equal_figures_need_no_words() -> None:
    assert difference(LOADED, 640) == ""


def test_an_answer_without_figures_is_told_with_the_option_that_gives_them() -> None:
    assert "--enable-prompt-tokens-details" in difference(LOADED, -1)


def test_tokens_that_were_promised_and_failed_explain_a_difference() -> None:
    failed = told("failed", prompt(700), load_tokens=640, used_tokens=128, computed_from=128,
                  failed_blocks={"timeout": 4})  # fmt: skip
    assert "what was promised when the load began, 640" in difference(failed, 640)


def test_a_request_that_was_looked_up_twice_explains_a_difference() -> None:
    twice = told("twice", prompt(700), load_tokens=128, used_tokens=128, computed_from=128, admissions=2)
    assert "looked up 2 times" in difference(twice, 640)


def test_what_is_not_explained_is_said_to_be_so() -> None:
    assert "not explained" in difference(LOADED, 17)
