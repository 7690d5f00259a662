"""The list of checks, and choosing from it."""

import pytest

from kveik.doctor.checks import CHECKS, chosen_checks
from kveik.errors import ConfigError


def test_every_check_asks_a_question_has_a_group_and_a_limit() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.question.endswith("?")
        assert check.group
        assert 0 < check.limit_s <= 300


def test_checks_are_chosen_by_name_by_group_or_all() -> None:
    assert chosen_checks([]) == list(CHECKS)
    assert [check.name for check in chosen_checks(["versions"])] == ["versions"]
    assert chosen_checks(["versions"], "software") == chosen_checks(["versions"])


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no check 'weather', expected some of versions, environment, answers"):
        chosen_checks(["weather"])
    with pytest.raises(ConfigError, match="no group 'sky'"):
        chosen_checks([], "sky")
