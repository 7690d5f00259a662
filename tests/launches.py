"""Every launch that the catalogue allows, for tests that hold each of them to something."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kveik.errors import ConfigError
from kveik.profiles import catalog
from kveik.profiles.wish import Given, Wish, wish

FOLDER = "/mnt/kv"


@dataclass(frozen=True)
class Combination:
    """One of hardware, model and tier, and the numbers of nodes to try."""

    hardware: str
    model: str
    tier: str

    def wish(self, nodes: int, **more: Any) -> Wish:
        addresses = [f"10.0.0.{number + 1}" for number in range(nodes)] if nodes > 1 else []
        shared = FOLDER if self.tier in {"ucm", "kveik"} else ""
        return wish(
            self.hardware, self.model, self.tier, Given(nodes=nodes, addresses=addresses, shared_folder=shared, **more)
        )


def combinations() -> Iterator[Combination]:
    """All of them, whether they can be launched or not."""
    for hardware in catalog.names("hardware"):
        for model in catalog.names("models"):
            for tier in catalog.names("tiers"):
                yield Combination(hardware, model, tier)


def launchable(counts: tuple[int, ...] = (1, 2, 4)) -> Iterator[Wish]:
    """What can be launched, on each of these numbers of nodes."""
    for one in combinations():
        for count in counts:
            try:
                yield one.wish(count)
            except ConfigError:
                continue


def smallest() -> Iterator[Wish]:
    """What can be launched, each on the fewest nodes that it can."""
    seen = set()
    for found in launchable():
        key = (found.hardware.name, found.model.name, found.tier.name)
        if key not in seen:
            seen.add(key)
            yield found
