"""Every kind of break has words and a remedy, and the page about it names them all."""

from pathlib import Path

import pytest

from kveik.router.break_kinds import KINDS, BreakKind

PAGE = Path(__file__).resolve().parents[3] / "docs" / "prefixes.md"


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_kind_says_what_was_seen_and_what_to_do(kind: BreakKind) -> None:
    assert kind.meaning
    assert not kind.meaning.endswith(".")
    assert kind.remedy.endswith(".")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_page_tells_of_each_kind_in_the_same_words(kind: BreakKind) -> None:
    assert f"| {kind.meaning} | {kind.remedy} |" in PAGE.read_text(encoding="utf8")
