"""What a round of probing means, and when a tier is fenced and let in again."""

import pytest

from kveik.store.base import MISS, BlockResult, Status, failed
from kveik.store.probe_verdict import Finding, ProbeCourse, Verdict, of_get, of_put, together

PERIOD_S = 15.0
HIT, STORED = BlockResult(Status.HIT, 8192), BlockResult(Status.STORED, 8192)
CORRUPT = BlockResult(Status.CORRUPT, reason="checksum", detail="payload checksum differs")


def course() -> ProbeCourse:
    return ProbeCourse(PERIOD_S, due_s=PERIOD_S)


def after(*verdicts: Verdict, breaker_open: bool = False) -> ProbeCourse:
    found = course()
    for verdict in verdicts:
        found = found.after(Finding(verdict), 100.0, breaker_open=breaker_open)
    return found


@pytest.mark.parametrize(
    ("result", "same", "verdict"),
    [
        (HIT, True, Verdict.SOUND),
        (HIT, False, Verdict.OTHER_BYTES),
        (CORRUPT, False, Verdict.OTHER_BYTES),
        (MISS, False, Verdict.NOT_SERVED),
        (failed("timeout"), False, Verdict.SLOW),
        (failed("unavailable"), False, Verdict.FAILING),
        (failed("not_open"), False, Verdict.UNKNOWN),
    ],
)
def test_a_read_tells_what_it_tells(result: BlockResult, same: bool, verdict: Verdict) -> None:
    assert of_get(result, same, Verdict.NOT_SERVED).verdict is verdict


@pytest.mark.parametrize("reason", ["read_only", "no_room", "busy"])
def test_a_tier_that_takes_no_puts_is_not_blamed_for_it(reason: str) -> None:
    found = of_put(failed(reason))
    assert found is not None
    assert found.verdict is Verdict.UNKNOWN


def test_a_canary_that_was_stored_has_to_be_read() -> None:
    assert of_put(STORED) is None
    assert of_put(BlockResult(Status.EXISTS)) is None


def test_a_finding_is_told_in_words() -> None:
    assert Finding(Verdict.NOT_SERVED).words == "it acknowledges puts and does not serve them"
    assert of_get(CORRUPT, False, Verdict.NOT_SERVED).words == (
        "it serves other bytes than were put: payload checksum differs"
    )


@pytest.mark.parametrize(
    ("earlier", "new", "both"),
    [
        (Verdict.UNKNOWN, Verdict.SOUND, Verdict.SOUND),
        (Verdict.SOUND, Verdict.UNKNOWN, Verdict.SOUND),
        (Verdict.EMPTIED, Verdict.SOUND, Verdict.EMPTIED),
        (Verdict.EMPTIED, Verdict.NOT_SERVED, Verdict.NOT_SERVED),
        (Verdict.SOUND, Verdict.OTHER_BYTES, Verdict.OTHER_BYTES),
        (Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.UNKNOWN),
    ],
)
def test_of_two_canaries_the_worse_one_counts(earlier: Verdict, new: Verdict, both: Verdict) -> None:
    assert together(Finding(earlier), Finding(new)).verdict is both


def test_two_bad_rounds_in_a_row_fence_and_two_good_ones_let_in() -> None:
    assert after(Verdict.NOT_SERVED).fence == ""
    assert after(Verdict.NOT_SERVED, Verdict.SOUND, Verdict.NOT_SERVED).fence == ""
    assert after(Verdict.NOT_SERVED, Verdict.OTHER_BYTES).fence == Verdict.OTHER_BYTES.value
    assert after(Verdict.SLOW, Verdict.SLOW, Verdict.SOUND).fence == Verdict.SLOW.value
    assert after(Verdict.SLOW, Verdict.SLOW, Verdict.SOUND, Verdict.SOUND).fence == ""
    assert after(Verdict.SLOW, Verdict.SLOW, Verdict.SOUND, Verdict.SLOW, Verdict.SOUND).fence != ""


def test_an_empty_tier_is_fenced_at_once_because_it_is_seen_only_once() -> None:
    assert after(Verdict.EMPTIED).fence == Verdict.EMPTIED.value
    assert after(Verdict.EMPTIED, Verdict.SOUND, Verdict.SOUND).fence == ""


def test_what_nobody_could_learn_changes_nothing() -> None:
    assert after(Verdict.SLOW, Verdict.UNKNOWN, Verdict.SLOW).fence != ""
    assert after(Verdict.UNKNOWN, Verdict.UNKNOWN) == course().after(Finding(Verdict.UNKNOWN), 100.0)


def test_while_the_breaker_is_open_only_lies_count() -> None:
    assert after(Verdict.SLOW, Verdict.FAILING, Verdict.SLOW, breaker_open=True).fence == ""
    assert after(Verdict.NOT_SERVED, Verdict.NOT_SERVED, breaker_open=True).fence != ""


def test_a_suspect_is_probed_more_often_and_fenced_within_a_minute() -> None:
    assert after(Verdict.SOUND).due_s == 100.0 + PERIOD_S
    assert after(Verdict.SLOW).due_s == 100.0 + PERIOD_S / 3
    assert after(Verdict.SLOW, Verdict.SLOW).due_s == 100.0 + PERIOD_S / 3
    # The period before, a first round up to its deadline of 5 s, a pause, a second such round.
    assert PERIOD_S + 5.0 + PERIOD_S / 3 + 5.0 < 60


def test_the_first_reason_of_a_fence_stands() -> None:
    assert after(Verdict.NOT_SERVED, Verdict.NOT_SERVED, Verdict.SLOW).fence == Verdict.NOT_SERVED.value
