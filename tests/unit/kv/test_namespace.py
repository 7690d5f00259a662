"""Namespaces: each fact counts, the label does not, and a difference is told in words."""

import pytest

from kveik.errors import ConfigError
from kveik.kv.namespace import REQUIRED_FACTS, Namespace

FACTS = {name: f"some {name}" for name in REQUIRED_FACTS}


def test_equal_facts_give_the_same_digest_in_any_order() -> None:
    one, two = Namespace(FACTS), Namespace(dict(reversed(FACTS.items())))

    assert one.digest == two.digest
    assert len(one.digest) == 16
    assert one == two
    assert hash(one) == hash(two)


def test_the_digest_never_changes_between_releases() -> None:
    assert Namespace(FACTS).digest.hex() == "586a2a219fa83537cd35d8f4cea92b2b"


@pytest.mark.parametrize("name", REQUIRED_FACTS)
def test_each_fact_makes_another_namespace(name: str) -> None:
    assert Namespace(FACTS).with_facts(**{name: "other"}).digest != Namespace(FACTS).digest


def test_a_fact_that_engines_add_makes_another_namespace() -> None:
    assert Namespace(FACTS).with_facts(sliding_window_tokens="512").digest != Namespace(FACTS).digest


def test_the_label_is_for_people_and_no_part_of_the_identity() -> None:
    one, two = Namespace(FACTS, "model in /a"), Namespace(FACTS, "model in /b")

    assert one.digest == two.digest
    assert one == two


def test_values_may_not_run_into_each_other() -> None:
    one = Namespace({**FACTS, "a": 'x","b":"y'})
    two = Namespace({**FACTS, "a": "x", "b": "y"})

    assert one.digest != two.digest


@pytest.mark.parametrize("name", REQUIRED_FACTS)
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_or_empty_fact_is_refused_by_name(name: str, value: str | None) -> None:
    with pytest.raises(ConfigError, match=name):
        Namespace({**FACTS, name: value})  # type: ignore[dict-item]


def test_facts_must_be_text() -> None:
    with pytest.raises(ConfigError, match="must be text: block_count"):
        Namespace({**FACTS, "block_count": 7})  # type: ignore[dict-item]


def test_facts_cannot_be_changed_afterwards() -> None:
    given = dict(FACTS)
    namespace = Namespace(given)
    given["dtype"] = "other"

    assert namespace.facts["dtype"] == "some dtype"
    with pytest.raises(TypeError):
        namespace.facts["dtype"] = "other"  # type: ignore[index]


def test_differences_are_told_fact_by_fact() -> None:
    mine = Namespace(FACTS).with_facts(kv_cache_dtype="bfloat16", extra="1")
    theirs = Namespace(FACTS).with_facts(kv_cache_dtype="float32")

    assert mine.differences(theirs) == ["extra 1 != (absent)", "kv_cache_dtype bfloat16 != float32"]
    assert mine.differences(mine) == []
