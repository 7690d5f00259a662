"""What a prompt can have from the prompts before it."""

from collections.abc import Sequence

from kveik.bench.reuse import STEP_TOKENS, Reusable, Span, reusable

START = tuple(range(100, 164))


def reusable_tokens(prompts: Sequence[tuple[int, ...]], spans: Sequence[Span]) -> list[int]:
    """Of requests that do not overlap both bounds are the same."""
    found = reusable(prompts, spans)
    assert all(one.earlier == one.possible for one in found)
    return [one.earlier for one in found]


def test_the_first_prompt_has_nothing_to_reuse_and_the_next_ones_what_is_the_same_at_their_start() -> None:
    prompts = [(*START, *range(40)), (*START, *range(500, 540)), tuple(range(900, 1000))]
    assert reusable_tokens(prompts, [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]) == [0, 64, 0]


def test_it_is_the_order_of_sending_that_counts() -> None:
    prompts = [(*START, 1), (*START, 2)]
    assert reusable_tokens(prompts, [(2.0, 3.0), (0.0, 1.0)]) == [64, 0]


def test_a_prompt_that_waits_in_the_engine_can_have_what_was_sent_after_it() -> None:
    prompts = [(*START, 1), (*START, 2)]
    assert reusable(prompts, [(0.0, 9.0), (1.0, 2.0)]) == [Reusable(0, 64), Reusable(64, 64)]


def test_somebody_must_have_computed_each_start_whoever_it_was() -> None:
    """Requests that all overlap: each may have been given it by another one, but not all of them."""
    prompts = [(*START, n) for n in range(5)]
    for sent_s in ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0] * 5, [4.0, 3.0, 2.0, 1.0, 0.0]):
        found = reusable(prompts, [(sent, 9.0) for sent in sent_s])
        assert sum(one.earlier for one in found) == 4 * 64
        assert {one.possible for one in found} == {64}


def test_equal_prompts_reuse_all_whole_steps_but_never_themselves() -> None:
    prompt = (*START, 1, 2, 3)
    assert reusable_tokens([prompt, prompt], [(0.0, 1.0), (2.0, 3.0)]) == [0, len(prompt) // STEP_TOKENS * STEP_TOKENS]


def test_equal_tokens_after_another_start_are_no_reuse() -> None:
    prompts = [(1, *START), (2, *START)]
    assert reusable_tokens(prompts, [(0.0, 1.0), (2.0, 3.0)]) == [0, 0]


def test_a_request_that_failed_neither_gives_nor_takes() -> None:
    prompts = [START, START, START]
    assert reusable_tokens(prompts, [None, (1.0, 2.0), None]) == [0, 0, 0]


def test_the_last_of_many_finds_the_longest_start_whoever_sent_it() -> None:
    prompts = [START[:32] + (7,) * 32, START, START[:48] + (8,) * 16, (*START, 5)]
    spans = [(float(n), n + 0.5) for n in range(4)]
    assert reusable_tokens(prompts, spans) == [0, 32, 48, 64]
