"""What breaks prefixes, in words."""

from typing import Any

import msgspec
import pytest

from kveik.diagnose.prefixes import (
    advice,
    age,
    clients_of,
    columns_of,
    joined,
    read_document,
    summary,
    values_of,
    where,
    worth_telling,
)
from kveik.errors import RegistryError
from kveik.router.break_tally import BreakPlace, ClientShare, PrefixesDocument


def place(kind: str = "date", lost: int = 1000, requests: int = 5, **more: object) -> BreakPlace:
    given = BreakPlace(
        "m", kind, "system", "a date changes", "Move it.", requests, lost, 4000, 0.25, (1, 1), (7, 7),
        [ClientShare("team", requests, lost)], "r9", 1000.0,
    )  # fmt: skip
    return msgspec.structs.replace(given, **more)


def document(*places: BreakPlace, tokens: int = 4000) -> PrefixesDocument:
    return PrefixesDocument(
        True, 500.0, 1090.0, 10, 5, tokens, sum(one.lost_tokens for one in places), 3, 4, list(places)
    )


def test_what_a_router_shows_is_read_back() -> None:
    shown = document(place())
    assert read_document(msgspec.to_builtins(shown), "http://r") == shown


def test_what_is_no_such_document_is_refused_with_the_router_s_name() -> None:
    with pytest.raises(RegistryError, match="http://r shows prefixes in a way"):
        read_document({"on": "yes"}, "http://r")


def test_routers_are_joined_by_place() -> None:
    one = document(place(lost=100, messages=(2, 3)), tokens=1000)
    other = document(
        place(
            lost=500,
            tokens=(3, 90),
            last_request="later",
            last_s=1080.0,
            clients=[ClientShare("ada", 1, 450), ClientShare("team", 1, 50)],
        ),
        place("id", lost=300),
        tokens=3000,
    )
    both = joined([one, other])
    assert (both.requests, both.looked_at, both.prompt_tokens, both.lost_tokens) == (20, 10, 4000, 900)
    assert [(found.kind, found.lost_tokens, found.share) for found in both.places] == [
        ("date", 600, 0.15), ("id", 300, 0.075),
    ]  # fmt: skip
    date = both.places[0]
    assert (date.messages, date.tokens, date.requests, date.last_request) == ((1, 3), (3, 90), 10, "later")
    assert (both.since_s, both.now_s) == (500.0, 1090.0)
    assert [(share.client, share.lost_tokens) for share in date.clients] == [("ada", 450), ("team", 150)]


def test_one_router_is_joined_to_itself() -> None:
    assert joined([document(place())]) == document(place())


def test_what_was_seen_once_or_twice_is_not_told() -> None:
    assert worth_telling(document(place(requests=2), place("id", requests=3))) == [place("id", requests=3)]


def test_the_summary_says_how_much_was_looked_at_and_lost() -> None:
    assert summary(document(place())) == (
        "in the last 10 min 5 of 10 answered requests were looked at (50%): of 4,000 prompt tokens 1,000 (25.0%) stood "
        "behind something that changed"
    )
    assert summary(PrefixesDocument(True)) == "no request was looked at yet"
    assert summary(PrefixesDocument(False)) == "prefixes are not looked at: router.explain_prompts is 0"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "system prompt, message 1, at token 7"),
        ({"part": "tool", "messages": (0, 0)}, "tools, at token 7"),
        (
            {"part": "user", "messages": (2, 9), "tokens": (40, 1200)},
            "a user's message, message 2 to 9, at token 40 to 1,200",
        ),
        ({"part": "critic", "messages": (0, 3)}, "critic, message 1 to 3, at token 7"),
    ],
)
def test_a_place_is_named(more: dict[str, Any], expected: str) -> None:
    assert where(place(**more)) == expected


def test_a_row_has_what_where_whose_and_how_much() -> None:
    assert columns_of(place()) == (
        "a date changes", "system prompt, message 1, at token 7", "m", "5", "1,000", "25.0%", "team (1,000)",
    )  # fmt: skip


def test_of_many_clients_the_first_are_named() -> None:
    many = [ClientShare(name, 1, lost) for name, lost in (("a", 50), ("b", 40), ("", 30), ("d", 20), ("e", 10))]
    assert clients_of(place(clients=many)) == "a (50), b (40), unknown (30) and 2 more"


def test_advice_names_the_remedy_and_a_request_that_shows_it() -> None:
    assert advice([place(), place(excerpt="It is 06:25")], 1090.0) == [
        "1. Move it. (last seen 90 s ago in request r9)",
        "2. Move it. (last seen 90 s ago in request r9; there: 'It is 06:25')",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-3.0, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7300.0, "2 h"), (86400.0, "24 h"), (200_000.0, "2 days")],
)
def test_ages_are_said_in_the_unit_that_fits(seconds: float, expected: str) -> None:
    assert age(seconds) == expected


def test_programs_get_everything_and_who_did_not_answer() -> None:
    values = values_of(document(place()), ["no router at x"])
    assert values["routers_away"] == ["no router at x"]
    assert values["places"][0]["clients"] == [{"client": "team", "requests": 5, "lost_tokens": 1000}]
