"""What can be reused, against the plainest way to find out."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kveik.bench.reuse import STEP_TOKENS, Span, reusable

#: Prompts of a few whole steps from two alphabets, so that many of them begin alike.
PROMPTS = st.lists(
    st.lists(st.integers(0, 1), max_size=5).map(lambda steps: tuple(s for s in steps for _ in range(STEP_TOKENS))),
    max_size=7,
)
MOMENTS = st.integers(0, 6).map(float)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens in common at the start, down to whole steps."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same // STEP_TOKENS * STEP_TOKENS


@given(st.data())
def test_it_is_what_comparing_every_prompt_with_every_other_one_finds(data: st.DataObject) -> None:
    prompts = data.draw(PROMPTS)
    spans: list[Span] = [
        data.draw(st.none() | st.tuples(MOMENTS, MOMENTS).map(lambda pair: (min(pair), max(pair)))) for _ in prompts
    ]
    for number, found in enumerate(reusable(prompts, spans)):
        mine = spans[number]
        earlier = possible = 0
        for other, span in enumerate(spans):
            if mine is None or span is None or other == number:
                continue
            same = shared(prompts[number], prompts[other])
            if (span[0], other) < (mine[0], number):
                earlier = max(earlier, same)
            if (span[0], other) < (mine[1], number):
                possible = max(possible, same)
        assert (found.earlier, found.possible) == (earlier, possible)


@given(PROMPTS)
def test_all_together_reuse_all_but_one_of_each_start(prompts: list[tuple[int, ...]]) -> None:
    spans: list[Span] = [(float(number), 100.0) for number in range(len(prompts))]
    starts = {prompt[:end] for prompt in prompts for end in range(STEP_TOKENS, len(prompt) + 1, STEP_TOKENS)}
    total = sum(len(prompt) for prompt in prompts)
    assert sum(one.earlier for one in reusable(prompts, spans)) == total - STEP_TOKENS * len(starts)
