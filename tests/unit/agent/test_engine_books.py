"""What engines tell of themselves is kept as long as it is true, and what they gained for good."""

from kveik.agent.engine_books import EngineBooks
from kveik.agent.protocol import EngineRates, TierGain


def rates(**gains: TierGain) -> EngineRates:
    return EngineRates(prefill=[0.01, 1e-4, 0.0], prefill_sigma=0.1, prefill_steps=5, step_tokens=2048, gains=gains)


def test_gains_of_all_engines_and_messages_add_up() -> None:
    books = EngineBooks()
    books.told("a", rates(arena=TierGain(100, 2.0, 0.0)))
    books.told("a", rates(arena=TierGain(50, 1.0, 0.0), filesystem=TierGain(10, 0.0, 0.5)))
    books.told("b", rates(arena=TierGain(1, 0.0, 0.25)))
    assert books.gains() == {
        "arena": {"tokens": 151, "saved_s": 3.0, "lost_s": 0.25},
        "filesystem": {"tokens": 10, "saved_s": 0.0, "lost_s": 0.5},
    }


def test_gains_stay_when_an_engine_goes_and_its_rates_do_not() -> None:
    books = EngineBooks()
    books.told("a", rates(arena=TierGain(100, 2.0, 0.0)))
    books.ended("a")
    books.ended("never there")
    assert books.latest("a") is None
    assert books.gains()["arena"]["saved_s"] == 2.0
    assert "0 engines" in repr(books)


def test_the_latest_word_is_shown_as_plain_values() -> None:
    books = EngineBooks()
    books.told("a", rates())
    told = books.latest("a")
    assert told is not None
    assert told["prefill"] == [0.01, 1e-4, 0.0]
    assert "gains" not in told


def test_an_engine_that_learned_nothing_has_nothing_to_show() -> None:
    books = EngineBooks()
    books.told("a", EngineRates())
    assert books.latest("a") is None
    assert books.latest("b") is None
