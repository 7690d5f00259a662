"""The whole list of the doctor's checks, and the page that explains them."""

import re
from pathlib import Path

from kveik.diagnose.all_checks import ALL_CHECKS
from kveik.doctor.checks import CHECKS, chosen_checks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"


def test_every_check_has_a_name_of_its_own_a_question_and_a_limit() -> None:
    assert len({check.name for check in ALL_CHECKS}) == len(ALL_CHECKS)
    assert set(CHECKS) < set(ALL_CHECKS)
    for check in ALL_CHECKS:
        assert check.question.endswith("?"), check.name
        assert 0 < check.limit_s <= 300, check.name


def test_those_that_stand_above_the_doctor_are_chosen_like_the_others() -> None:
    assert [check.name for check in chosen_checks(["options"], "", ALL_CHECKS)] == ["options"]
    machine = {check.name for check in chosen_checks([], "machine", ALL_CHECKS)}
    assert {"start", "ports", "devices", "memory", "huge-pages"} <= machine


def test_the_page_has_a_row_for_every_check_with_its_group() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\w+) \|", PAGE.read_text(encoding="utf8"), re.MULTILINE))
    assert rows == {check.name: check.group for check in ALL_CHECKS}
