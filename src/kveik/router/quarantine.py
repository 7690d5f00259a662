"""Requests that engines died of: refused until somebody releases them. Pure; time is passed in.

An engine that dies takes all its requests with it, so each of them is a suspect. One that is
answered by another engine is cleared; one that a second engine dies with is refused from then on.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

import xxhash

#: The death of one engine ends all its requests at about the same time, also several of the same content.
ONE_DEATH_S = 2.0
#: Suspects are forgotten after so long, quarantined requests are not.
SUSPECT_S = 600.0
KEPT_MAX = 1000


def fingerprint(target: bytes, body: bytes) -> str:
    """A short name of a request's content."""
    return xxhash.xxh3_64_hexdigest(target.partition(b"?")[0] + b"\0" + body)


@dataclass(slots=True)
class Suspect:
    """A request that ran when engines died: which ones, and when the last one did."""

    engines: list[str] = field(default_factory=list)
    last_s: float = 0.0
    quarantined: bool = False
    model: str = ""


class Quarantine:
    """``suspects`` by fingerprint. ``kills``: engines after which a request is refused; 0: never."""

    def __init__(self, kills: int) -> None:
        self._kills = kills
        self.suspects: OrderedDict[str, Suspect] = OrderedDict()

    def __len__(self) -> int:
        return len(self.suspects)

    def __repr__(self) -> str:
        held = sum(suspect.quarantined for suspect in self.suspects.values())
        return f"Quarantine({held} refused, {len(self.suspects) - held} suspects)"

    def died_with(self, name: str, engine: str, model: str, now_s: float) -> bool:
        """An engine died while it ran this request; True if the request is refused from now on."""
        if self._kills == 0:
            return False
        self._forget_old(now_s)
        suspect = self.suspects.setdefault(name, Suspect(model=model))
        if engine not in suspect.engines or now_s - suspect.last_s > ONE_DEATH_S:
            suspect.engines.append(engine)
            suspect.last_s = now_s
        self.suspects.move_to_end(name)
        suspect.quarantined = suspect.quarantined or len(suspect.engines) >= self._kills
        return suspect.quarantined

    def answered(self, name: str) -> None:
        """An engine has answered this request: it was not the one."""
        suspect = self.suspects.get(name)
        if suspect is not None and not suspect.quarantined:
            del self.suspects[name]

    def refuses(self, name: str) -> str:
        """Why this request is refused, in words; empty if it is not."""
        suspect = self.suspects.get(name)
        if suspect is None or not suspect.quarantined:
            return ""
        engines = ", ".join(suspect.engines)
        return (
            f"{len(suspect.engines)} engines ({engines}) died while they ran this request, so it is not sent to "
            f"another one; an operator can release it: POST /fleet/quarantine/{name}/release"
        )

    def release(self, name: str) -> bool:
        """Let a request through again; False if there is none of that name."""
        return self.suspects.pop(name, None) is not None

    def listing(self) -> list[dict[str, object]]:
        """What is refused, as plain values."""
        return [
            {"request": name, "model": suspect.model, "engines": suspect.engines}
            for name, suspect in self.suspects.items()
            if suspect.quarantined
        ]

    def _forget_old(self, now_s: float) -> None:
        for name, suspect in list(self.suspects.items()):
            old = now_s - suspect.last_s > SUSPECT_S and not suspect.quarantined
            if old or len(self.suspects) >= KEPT_MAX:
                del self.suspects[name]
