"""Mooncake's numbers in the contract's words."""

import pytest

from kveik.store.base import MISS, REASONS, BlockResult, Status
from kveik.store.mooncake_codes import absent, failure, meaning_of, moves_late, of_removal

KNOWN = (-10, -200, -600, -703, -704, -705, -706, -707, -800, -900, -901)


def still(value: bool = True) -> bool:
    return value


@pytest.mark.parametrize("code", [*KNOWN, -1, -12345])
def test_every_number_has_a_known_reason_and_is_named_in_the_words(code: int) -> None:
    result = failure(code, still)

    assert result.status is Status.FAILED
    assert result.reason in REASONS
    assert str(code) in result.detail


@pytest.mark.parametrize(
    ("code", "reason"), [(-200, "no_room"), (-600, "too_large"), (-800, "unavailable"), (-901, "timeout")]
)
def test_numbers_with_a_meaning_of_their_own(code: int, reason: str) -> None:
    assert meaning_of(code).reason == reason


@pytest.mark.parametrize("code", [-800, -900, -901, -12345])
def test_after_a_failed_transfer_or_an_unknown_number_bytes_may_still_move(code: int) -> None:
    assert failure(code, still).buffer_busy
    assert moves_late([4096, code])


@pytest.mark.parametrize("code", [-200, -600, -705, -706])
def test_a_refusal_moves_nothing(code: int) -> None:
    assert not failure(code, still).buffer_busy
    assert not moves_late([code, 0, 4096])


@pytest.mark.parametrize("code", [-703, -704, -707])
def test_what_cannot_be_read_because_it_is_not_there_is_a_miss(code: int) -> None:
    assert absent(code)
    assert not moves_late([code])
    assert of_removal(code) == MISS


def test_a_removal_tells_whether_there_was_anything() -> None:
    assert of_removal(0) == BlockResult(Status.DELETED)
    assert of_removal(-900).status is Status.FAILED
    assert not of_removal(-900).buffer_busy
