"""Answers follow from the text before them, so a cut one can be continued."""

import pytest

from kveik.simulate.drafts import Draft


def text(draft: Draft) -> str:
    """The whole answer, word by word."""
    parts = []
    while not draft.ended:
        (word,) = draft.grow()
        parts.append(word)
    assert draft.grow() == []
    return b"".join(parts).decode()


def test_words_are_the_same_one_by_one_or_all_at_once() -> None:
    for stops in ((), (text(Draft(b"x", 0, 20, "length"))[41:44],)):
        whole = Draft(b"x", 0, 20, "length", stops).rest()
        assert whole == text(Draft(b"x", 0, 20, "length", stops))
        draft = Draft(b"x", 0, 20, "length", stops)
        assert b"".join(draft.grow(7) + draft.grow(100)).decode() == whole


def test_who_continues_from_a_cut_answer_gets_the_same_words() -> None:
    whole = text(Draft(b"Tell me.", 0, 20, "length"))
    for cut in range(0, 80, 4):
        rest = Draft(b"Tell me." + whole[:cut].encode(), 0, 20 - cut // 4, "length")
        assert whole[:cut] + text(rest) == whole


def test_another_text_or_another_choice_gives_another_answer() -> None:
    answers = {text(Draft(context, n, 8, "stop")) for context in (b"a", b"b", b"a ") for n in range(3)}
    assert len(answers) == 9


@pytest.mark.parametrize(("start", "length"), [(9, 3), (8, 4), (0, 4), (30, 2), (3, 1)])
def test_an_answer_ends_before_a_stop_string(start: int, length: int) -> None:
    whole = text(Draft(b"x", 0, 20, "length"))
    stop = whole[start : start + length]
    at = whole.index(stop)
    draft = Draft(b"x", 0, 20, "length", ["never", stop])
    assert text(draft) == whole[:at]
    assert (draft.finish, draft.stopped_by) == ("stop", stop)
    assert draft.limit == max(1, -(-at // 4))


def test_of_several_stop_strings_the_first_in_the_text_counts() -> None:
    whole = text(Draft(b"x", 0, 20, "length"))
    draft = Draft(b"x", 0, 20, "length", [whole[41:44], whole[21:24]])
    assert text(draft) == whole[: whole.index(whole[21:24])]


def test_a_stop_string_that_never_comes_changes_nothing() -> None:
    draft = Draft(b"x", 0, 20, "length", ["0", ""])
    assert text(draft) == text(Draft(b"x", 0, 20, "length"))
    assert (draft.finish, draft.stopped_by) == ("length", None)


def test_the_chosen_token_is_the_best_of_different_candidates() -> None:
    draft = Draft(b"x", 0, 3, "length")
    draft.grow()
    candidates = draft.candidates(20, noise=0.5)
    assert len(candidates) == 20
    assert next(iter(candidates)) == draft.token_id()
    values = list(candidates.values())
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(0.2)
