"""Network cards, and variables that name them."""

import pytest

from kveik.doctor.network_cards import Card, cards_named, look_at_cards, own_addresses

CARDS = ["lo", "eth0", "eth1", "bond0", "bond0.5"]


@pytest.mark.parametrize(
    ("text", "exact", "chosen"),
    [
        ("eth0", True, ["eth0"]),
        ("eth", True, []),
        ("eth", False, ["eth0", "eth1"]),
        ("bond0", False, ["bond0", "bond0.5"]),
        ("=bond0", False, ["bond0"]),
        ("^lo,eth", False, ["bond0", "bond0.5"]),
        ("^=bond0", False, ["lo", "eth0", "eth1", "bond0.5"]),
        ("eth0, eth1", True, ["eth0", "eth1"]),
        ("ib0", False, []),
    ],
)
def test_a_variable_chooses_cards(text: str, exact: bool, chosen: list[str]) -> None:
    assert cards_named(text, CARDS, exact=exact) == chosen


def test_this_machine_has_a_loopback_card() -> None:
    cards = look_at_cards()
    assert any("127.0.0.1" in card.addresses for card in cards.values())
    assert "127.0.0.1" in own_addresses()


def test_own_addresses_are_those_of_all_cards() -> None:
    cards = {"a": Card("a", ("10.0.0.1", "fe80::1")), "b": Card("b")}
    assert own_addresses(cards) == {"10.0.0.1", "fe80::1", "127.0.0.1", "::1", "localhost"}
