"""Breaks are counted by model, kind and part, and by client."""

from kveik.router.break_tally import CLIENTS_MAX, OTHERS, PLACES_MAX, BreakTally
from kveik.router.prompt_memory import Found, Looked


def looked(
    lost: int = 100,
    kind: str = "date",
    *,
    label: str = "system",
    client: str = "a",
    model: str = "m",
    index: int = 0,
    at: int = 5,
    request: str = "r",
) -> Looked:
    found = Found(kind, label, index, at, lost) if lost else None
    return Looked(model, client, request, 1000, found)


def test_the_greatest_loss_comes_first_with_its_share_of_all_tokens() -> None:
    tally = BreakTally()
    tally.add([looked(100), looked(300, "id"), looked(0), looked(0)])
    places = tally.document(1, 2).places
    assert [(place.kind, place.lost_tokens, place.share) for place in places] == [
        ("id", 300, 0.075),
        ("date", 100, 0.025),
    ]
    assert places[0].meaning == "an id, a nonce or a hash changes"
    assert places[0].remedy


def test_one_place_tells_where_it_was_seen_first_and_last_and_by_whom() -> None:
    tally = BreakTally(5.0)
    tally.add(
        [
            looked(10, label="user", index=4, at=90, client="a"),
            looked(50, label="user", index=2, at=40, client="b", request="last"),
        ],
        77.0,
    )
    assert (tally.document(0, 0, 80.0).since_s, tally.document(0, 0, 80.0).now_s) == (5.0, 80.0)
    (place,) = tally.document(0, 0).places
    assert place.last_s == 77.0
    assert (place.messages, place.tokens, place.requests, place.last_request) == ((3, 5), (40, 90), 2, "last")
    assert [(share.client, share.requests, share.lost_tokens) for share in place.clients] == [
        ("b", 1, 50),
        ("a", 1, 10),
    ]


def test_a_place_outside_of_messages_has_no_number() -> None:
    tally = BreakTally()
    tally.add([looked(label="tool", index=-1)])
    assert tally.document(0, 0).places[0].messages == (0, 0)


def test_requests_without_a_break_count_as_looked_at() -> None:
    tally = BreakTally()
    tally.requests = 5
    tally.add([looked(0), looked(0)])
    document = tally.document(7, 8)
    assert (document.on, document.requests, document.looked_at, document.prompt_tokens) == (True, 5, 2, 2000)
    assert (document.remembered_prompts, document.memory_bytes, document.places) == (7, 8, [])


def test_very_many_clients_and_places_are_counted_together() -> None:
    tally = BreakTally()
    tally.add(looked(client=f"c{number}") for number in range(CLIENTS_MAX + 10))
    (place,) = tally.document(0, 0).places
    assert len(place.clients) == CLIENTS_MAX + 1
    assert (place.clients[0].client, place.clients[0].requests) == (OTHERS, 10)
    tally.add(looked(model=f"m{number}") for number in range(PLACES_MAX + 10))
    assert len(tally.document(0, 0).places) == PLACES_MAX + 1


def test_tokens_lost_are_counted_by_model_and_kind_for_metrics() -> None:
    tally = BreakTally()
    tally.add([looked(10), looked(20), looked(5, "id", model="n")])
    assert tally.lost == {("m", "date"): 30, ("n", "id"): 5}


def test_it_says_how_much_it_counted() -> None:
    tally = BreakTally()
    tally.requests = 3
    tally.add([looked()])
    assert repr(tally) == "BreakTally(1 of 3 requests, 1 places)"
