"""The latest requests as the router saw them."""

import json

import msgspec

from kveik.clock import FakeClock
from kveik.router.records import RequestRecord
from kveik.router.request_book import RequestBook, RoutedRequest


def record(name: str, **given: object) -> RequestRecord:
    return RequestRecord(name, "POST", "/v1/completions", **given)


def test_the_latest_requests_come_first_with_what_was_expected_and_what_came() -> None:
    clock = FakeClock()
    book = RequestBook(8, clock)
    book(record("a", engine="e0", reason="prefix", expected_cached_tokens=512, expected_prompt_tokens=600))
    clock.advance(2)
    book(record("b", engine="e1", exact=True, cached_tokens=384, prompt_tokens=600))
    rows = [msgspec.convert(row, RoutedRequest) for row in json.loads(json.dumps(book.document()))]
    assert [(row.request_id, row.engine, row.exact) for row in rows] == [("b", "e1", True), ("a", "e0", False)]
    assert (rows[0].cached_tokens, rows[1].cached_tokens, rows[1].expected_cached_tokens) == (384, -1, 512)
    assert rows[0].ended_s - rows[1].ended_s == 2


def test_only_so_many_are_kept_and_none_where_none_are_wanted() -> None:
    few, none = RequestBook(2), RequestBook(0)
    for number in range(4):
        few(record(str(number)))
        none(record(str(number)))
    assert [row["request_id"] for row in few.document()] == ["3", "2"]
    assert none.document() == []
    assert repr(few) == "RequestBook(2 of 2)"
