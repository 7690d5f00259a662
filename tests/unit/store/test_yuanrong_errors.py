"""The texts of openYuanrong's errors, as the real client gives them, and what they mean."""

import pytest

from kveik.store.base import REASONS
from kveik.store.yuanrong_errors import _MEANINGS, Meaning, trouble_of


@pytest.mark.parametrize(
    ("code", "meaning", "reason"),
    [
        ("Key not found", Meaning.ABSENT, ""),
        ("Object already exist error", Meaning.PRESENT, ""),
        ("Runtime error", Meaning.LOST, ""),
        ("RPC unavailable", Meaning.FAILED, "unavailable"),
        ("RPC deadline exceeded", Meaning.FAILED, "timeout"),
        ("Client worker disconnect", Meaning.FAILED, "unavailable"),
        ("Out of memory", Meaning.FAILED, "no_room"),
        ("Invalid parameter", Meaning.FAILED, "io_error"),
        ("A code of a later version", Meaning.FAILED, "io_error"),
    ],
)
def test_each_code_has_one_meaning(code: str, meaning: Meaning, reason: str) -> None:
    trouble = trouble_of(f"code: [{code}], msg: [something at line 12]")
    assert (trouble.meaning, trouble.reason) == (meaning, reason)


def test_case_and_spaces_of_a_code_do_not_matter() -> None:
    assert trouble_of("code:[ KEY NOT FOUND ]").meaning is Meaning.ABSENT


def test_a_text_without_a_code_is_a_failure_of_its_own_words() -> None:
    trouble = trouble_of("The buffer is None,\n  please create it first.")
    assert (trouble.meaning, trouble.reason) == (Meaning.FAILED, "io_error")
    assert trouble.detail == "The buffer is None, please create it first."


def test_long_words_are_cut_for_people() -> None:
    assert len(trouble_of("x" * 5000).detail) == 203


def test_all_reasons_are_known_ones_and_given_for_failures_alone() -> None:
    for meaning, reason in _MEANINGS.values():
        assert (reason in REASONS) == (meaning is Meaning.FAILED)
