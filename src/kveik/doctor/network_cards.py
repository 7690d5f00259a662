"""The network cards of this machine, and how variables of HCCL, NCCL and Gloo name them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Card:
    """One network card: its addresses, and whether it is up."""

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True


def look_at_cards() -> dict[str, Card]:
    """All cards by name; none if they cannot be listed."""
    with contextlib.suppress(psutil.Error, OSError):
        states = psutil.net_if_stats()
        return {
            name: Card(
                name,
                tuple(one.address.partition("%")[0] for one in found if one.family.name in {"AF_INET", "AF_INET6"}),
                up=name not in states or states[name].isup,
            )
            for name, found in psutil.net_if_addrs().items()
        }
    return {}


def own_addresses(cards: Mapping[str, Card] | None = None) -> frozenset[str]:
    """All addresses of this machine, and the names of itself."""
    found = {address for card in (cards or look_at_cards()).values() for address in card.addresses}
    return frozenset({*found, "localhost", "127.0.0.1", "::1"})


def cards_named(text: str, cards: Sequence[str], *, exact: bool) -> list[str]:
    """The cards that a variable such as ``NCCL_SOCKET_IFNAME`` chooses, of those that are there.

    ``exact``: its words are whole names, as for Gloo; else beginnings of names, as for NCCL and HCCL, unless the text
    begins with ``=``. ``^`` chooses all others.
    """
    others = text.startswith("^")
    body = text.removeprefix("^")
    whole = exact or body.startswith("=")
    words = [word for part in body.removeprefix("=").split(",") if (word := part.strip())]

    def fits(card: str) -> bool:
        return any(card == word if whole else card.startswith(word) for word in words)

    return [card for card in cards if fits(card) != others]
