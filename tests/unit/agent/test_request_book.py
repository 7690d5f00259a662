"""The latest requests of a node's engines."""

from kveik.agent.request_book import RequestBook
from tests.funnels import lacking, prompt, told


def test_requests_are_kept_with_who_told_of_them_in_the_order_in_which_they_began() -> None:
    book = RequestBook(8)
    book.told([told("late", prompt(300), 20.0)], 11, "model")
    book.told([told("early", prompt(300), 10.0)], 12, "model")
    early, late = book.latest()
    assert (early.request_id, early.engine_pid, late.engine) == ("cmpl-early-0-0123abcd", 12, "model")


def test_what_is_told_again_replaces_what_was_told_before() -> None:
    book = RequestBook(8)
    book.told([told("a", prompt(300), ended=False)], 1, "model")
    book.told([told("a", prompt(300), ended=True)], 1, "model")
    (record,) = book.latest()
    assert record.ended


def test_requests_of_two_engines_with_one_name_are_two() -> None:
    book = RequestBook(8)
    for pid in (1, 2):
        book.told([told("0", prompt(300))], pid, "model")
    assert len(book.latest()) == 2


def test_a_missing_block_is_looked_into_once_and_its_fate_is_kept() -> None:
    book = RequestBook(8)
    (record,) = book.told([told("a", prompt(300), missing=lacking(1))], 1, "model")
    record.fate, record.fate_reason, record.fate_age_s = "evicted", "arena", 3.0
    assert book.told([told("a", prompt(300), missing=lacking(1), saved_blocks=2)], 1, "model") == []
    (kept,) = book.latest()
    assert (kept.fate, kept.fate_reason, kept.fate_age_s, kept.saved_blocks) == ("evicted", "arena", 3.0, 2)


def test_another_missing_block_of_the_same_request_is_looked_into() -> None:
    book = RequestBook(8)
    book.told([told("a", prompt(300), missing=lacking(1))], 1, "model")
    assert len(book.told([told("a", prompt(300), missing=lacking(0))], 1, "model")) == 1


def test_only_so_many_are_kept() -> None:
    book = RequestBook(2)
    for number in range(5):
        book.told([told(str(number), prompt(200), float(number))], 1, "model")
    assert [record.began_s for record in book.latest()] == [3.0, 4.0]
    assert repr(book) == "RequestBook(2 of 2)"
