"""The known answer: rounding passes, garbage does not, and one engine alone is not right against two."""

import math
import stat
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from kveik.watchdog.probe import Reply
from kveik.watchdog.reference import BOUND_NATS, CONFIRMED, Judgement, References, plain_fault

#: Four tokens; at the third, two are nearly as likely.
TOP = (
    {7: -0.1, 8: -3.0, 9: -4.0},
    {5: -0.4, 6: -2.9, 1: -5.0},
    {3: -0.69, 4: -0.70, 2: -6.0},
    {11: -0.2, 12: -2.5, 13: -6.0},
)
GOOD = Reply("abcd", (7, 5, 3, 11), (-0.1, -0.4, -0.69, -0.2), TOP)
#: Another model's: the same prompt goes on otherwise.
OTHER = Reply("wxyz", (70, 50, 30, 20), (-1.0, -1.0, -1.0, -1.0), ({70: -1.0}, {50: -1.0}, {30: -1.0}, {20: -1.0}))
THIRD = Reply("....", (0, 0, 0, 0), (-0.5, -0.5, -0.5, -0.5), ({0: -0.5},) * 4)


def rounded(reply: Reply, by: Sequence[float]) -> Reply:
    """The same answer with each position's log probabilities moved."""
    logprobs = tuple(value + d for value, d in zip(reply.logprobs, by, strict=True))
    top = tuple({token: value + d for token, value in one.items()} for one, d in zip(reply.top, by, strict=True))
    return replace(reply, logprobs=logprobs, top=top)


def parted(reply: Reply, position: int, token: int, logprob: float) -> Reply:
    """The answer that parts from the known one at a position, and goes its own way from there."""
    tokens = (*reply.token_ids[:position], token, *(99 for _ in reply.token_ids[position + 1 :]))
    logprobs = (*reply.logprobs[:position], logprob, *(-9.0 for _ in reply.logprobs[position + 1 :]))
    return replace(reply, token_ids=tokens, logprobs=logprobs)


class Jury:
    """References with one question in one namespace."""

    def __init__(self, path: Path | None = None, namespace: str = "n") -> None:
        self.references = References(path)
        self._namespace = namespace

    def judge(self, engine: str, reply: Reply) -> Judgement:
        return self.references.judge(engine, reply, question="m", namespace=self._namespace)

    def knows(self, *engines: str, reply: Reply = GOOD) -> "Jury":
        """After these engines gave that answer often enough."""
        for engine in engines:
            for _ in range(CONFIRMED):
                assert self.judge(engine, reply).right
        return self


# -- an answer by itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(""), "the answer is empty"),
        (replace(GOOD, logprobs=(-0.1, math.nan, -0.69, -0.2)), "not finite"),
        (replace(GOOD, logprobs=(-0.1, -math.inf, -0.69, -0.2)), "not finite"),
        (replace(GOOD, logprobs=(-9999.0, -0.4, -0.69, -0.2)), "not finite"),
        (replace(GOOD, logprobs=(0.5, -0.4, -0.69, -0.2)), "above 0"),
    ],
)
def test_some_answers_are_wrong_whatever_is_known(reply: Reply, why: str) -> None:
    assert why in plain_fault(reply)
    judgement = Jury().judge("a", reply)
    assert not judgement.right
    assert why in judgement.why


def test_a_good_first_answer_is_to_be_known_by() -> None:
    jury = Jury()
    assert jury.judge("a", GOOD) == Judgement(True, "an answer to be known by")
    jury.judge("a", GOOD)
    assert jury.judge("a", GOOD) == Judgement(True, "the known answer")


def test_an_engine_that_tells_words_only_is_not_compared() -> None:
    jury = Jury()
    assert jury.judge("a", Reply("six, seven")).right
    assert "without log probabilities" in jury.judge("a", Reply("something else")).why


# -- against the engine's own answers --------------------------------------------------------------


@for_all(st.lists(st.floats(-0.3, 0.1), min_size=4, max_size=4))
def test_rounding_of_any_sixteen_bit_number_passes(by: list[float]) -> None:
    assert Jury().knows("a").judge("a", rounded(GOOD, by)).right


def test_a_nearly_as_likely_token_may_be_taken_and_what_follows_is_another_text() -> None:
    assert Jury().knows("a").judge("a", parted(GOOD, 2, 4, -0.68)).right


def test_a_token_that_was_unlikely_is_wrong() -> None:
    jury = Jury().knows("a")
    judgement = jury.judge("a", parted(GOOD, 0, 8, -0.2))
    assert not judgement.right
    assert "token 8 at position 0 has log probability -0.20, known are -3.00, and -0.10 for token 7" in judgement.why
    assert not jury.judge("a", parted(GOOD, 0, 8, -3.0)).right  # as unlikely as ever, and yet chosen


def test_a_token_outside_the_candidates_is_wrong() -> None:
    judgement = Jury().knows("a").judge("a", parted(GOOD, 1, 77, -0.1))
    assert not judgement.right
    assert "77 is not among its 3 likeliest" in judgement.why


@for_all(st.integers(0, 3), st.floats(BOUND_NATS + 0.01, 20.0))
def test_log_probabilities_that_are_far_off_are_wrong(position: int, by: float) -> None:
    moved = [0.0] * 4
    moved[position] = -by
    assert not Jury().knows("a").judge("a", rounded(GOOD, moved)).right


def test_a_wrong_answer_is_not_learned() -> None:
    jury = Jury().knows("a")
    assert not any(jury.judge("a", OTHER).right for _ in range(20))
    assert jury.judge("a", GOOD).right


def test_a_first_answer_that_was_the_wrong_one_does_not_bind_an_engine() -> None:
    jury = Jury()
    assert jury.judge("a", OTHER).right
    assert not jury.judge("a", GOOD).right
    jury.knows("a")
    assert not jury.judge("a", OTHER).right


def test_an_engine_that_answers_otherwise_each_time_is_never_right() -> None:
    jury = Jury()
    answers = [jury.judge("a", reply).right for reply in (GOOD, OTHER, THIRD) * 5]
    assert answers == [True] + [False] * 14


# -- against other engines -------------------------------------------------------------------------


def test_garbage_from_the_start_is_seen_where_two_engines_agree() -> None:
    jury = Jury().knows("a", "b")
    judgement = jury.judge("c", THIRD)
    assert not judgement.right
    assert "a, b, of the same model and namespace, answer otherwise" in judgement.why


def test_one_against_one_condemns_neither() -> None:
    jury = Jury().knows("a")
    judgement = jury.judge("b", THIRD)
    assert judgement.right
    assert "taken for right, though a, of the same model and namespace, answer otherwise" in judgement.why
    assert jury.judge("a", GOOD).right


def test_the_third_engine_decides_between_two() -> None:
    jury = Jury().knows("a").knows("b", reply=THIRD)
    assert jury.judge("c", GOOD).right
    assert not jury.judge("b", THIRD).right
    assert jury.judge("a", GOOD).right


def test_an_engine_that_comes_to_answer_as_others_is_well() -> None:
    jury = Jury().knows("a", "b")
    assert not jury.judge("c", THIRD).right
    assert jury.judge("c", GOOD).right


def test_other_models_and_namespaces_are_others() -> None:
    references = References()
    for engine in ("a", "b"):
        assert references.judge(engine, GOOD, question="m", namespace="n").right
    assert references.judge("c", OTHER, question="m", namespace="of bfloat16").right
    assert references.judge("c", OTHER, question="another", namespace="n").right


def test_without_a_namespace_only_one_run_of_one_engine_is_compared() -> None:
    jury = Jury(namespace="").knows("a", "b")
    assert jury.judge("c", THIRD).right
    assert not jury.judge("a", OTHER).right
    jury.references.forget("a")
    assert jury.judge("a", OTHER).right


# -- kept ------------------------------------------------------------------------------------------


def test_what_was_learned_outlives_the_watchdog(tmp_path: Path) -> None:
    path = tmp_path / "state" / "answers.json"
    Jury(path).knows("a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Jury(path)
    again.references.forget("a")  # as after each start of the engine
    assert again.judge("a", GOOD) == Judgement(True, "the known answer")
    assert not again.judge("a", OTHER).right


def test_nothing_is_written_for_an_answer_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    jury = Jury(path).knows("a")
    path.unlink()
    jury.judge("a", GOOD)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version":1,"answers":{"m in n":[{"token_ids":"x"}]}}', b"\xff"])
def test_a_file_that_is_not_understood_is_learned_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(content)
    assert Jury(path).judge("a", GOOD).right
    assert "learned again" in caplog.text
    assert Jury(path).knows("a").judge("a", GOOD).right


def test_a_file_of_another_version_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(b'{"version":9,"answers":{}}')
    assert Jury(path).judge("a", GOOD).right


def test_a_folder_that_cannot_be_written_is_told_and_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert Jury(tmp_path / "file" / "answers.json").judge("a", GOOD).right
    assert "cannot write the known answers" in caplog.text


def test_numbers_that_json_has_not_do_not_spoil_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    strange = replace(GOOD, top=({**TOP[0], 9: -math.inf}, *TOP[1:]))
    Jury(path).judge("a", strange)
    assert Jury(path).judge("a", strange).right


def test_engines_eyes_may_share_it(tmp_path: Path) -> None:
    jury = Jury(tmp_path / "answers.json")
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda name=name: found.extend(jury.judge(name, GOOD).right for _ in range(20)))
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80
