"""Requests that engines die of."""

from kveik.router.quarantine import SUSPECT_S, Quarantine, fingerprint

NAME = fingerprint(b"/v1/completions?a=1", b"{}")


def test_a_request_is_refused_after_the_stated_number_of_engines() -> None:
    quarantine = Quarantine(kills=2)
    assert not quarantine.died_with(NAME, "a", "m", 0.0)
    assert quarantine.refuses(NAME) == ""
    assert quarantine.died_with(NAME, "b", "m", 1.0)
    assert "2 engines (a, b) died" in quarantine.refuses(NAME)
    assert quarantine.listing() == [{"request": NAME, "model": "m", "engines": ["a", "b"]}]


def test_a_bystander_that_is_answered_elsewhere_is_cleared() -> None:
    quarantine = Quarantine(kills=2)
    quarantine.died_with(NAME, "a", "m", 0.0)
    quarantine.answered(NAME)
    assert not quarantine.died_with(NAME, "b", "m", 1.0)


def test_an_answer_does_not_release_what_is_refused_but_an_operator_does() -> None:
    quarantine = Quarantine(kills=1)
    quarantine.died_with(NAME, "a", "m", 0.0)
    quarantine.answered(NAME)
    assert quarantine.refuses(NAME)
    assert quarantine.release(NAME)
    assert not quarantine.release(NAME)
    assert quarantine.refuses(NAME) == ""


def test_old_suspicion_is_forgotten_and_quarantine_is_not() -> None:
    quarantine = Quarantine(kills=2)
    held = fingerprint(b"/v1/completions", b"bad")
    quarantine.died_with(held, "a", "m", 0.0)
    quarantine.died_with(held, "b", "m", 0.0)
    quarantine.died_with(NAME, "a", "m", 0.0)
    assert not quarantine.died_with(NAME, "b", "m", SUSPECT_S + 1)
    assert quarantine.refuses(held)


def test_it_can_be_switched_off() -> None:
    quarantine = Quarantine(kills=0)
    assert not any(quarantine.died_with(NAME, engine, "m", 0.0) for engine in "abcdef")


def test_the_query_of_a_target_does_not_hide_a_request() -> None:
    assert fingerprint(b"/v1/completions?x=2", b"{}") == NAME
    assert fingerprint(b"/v1/completions", b"{ }") != NAME
