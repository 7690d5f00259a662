"""One part of a node as it should run: a value, made by whoever describes the fleet."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from kveik.pulse import VARIABLE

#: In the order in which they start. They end in the opposite order, but for engines, which end after the router.
KINDS = ("etcd", "agent", "engine", "router", "watchdog")
#: Parts of one kind end together, and kinds one after the other.
END_ORDER = ("watchdog", "router", "engine", "agent", "etcd")


class Readiness(msgspec.Struct, frozen=True):
    """How it is found out that a part does its work.

    ``inference``: one real token of ``model`` from the engine at the address ``target``; ``http``: ``target`` is
    answered with 200; ``socket``: somebody accepts connections at the Unix socket ``target``; ``running``: it runs
    for ``for_s`` seconds.
    """

    kind: Literal["inference", "http", "socket", "running"]
    target: str = ""
    model: str = ""
    for_s: float = 0.0


class Variant(msgspec.Struct, frozen=True):
    """One way to start a part. ``mode``: of an engine, how far its model is compiled."""

    command: tuple[str, ...]
    mode: str = ""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One process, with its children, that a supervisor keeps.

    ``variants``: the wanted way to start it, then what is tried if that fails before it was ever ready.
    ``environment``: what is set beyond the supervisor's own; a variable with the value None is left out.
    ``facts``: what it reads from files, so that a change there counts as a change of the part.
    ``start_s``: longest time from process to readiness. ``stop_grace_s``: from SIGTERM to SIGKILL. ``pulse``: file
    that its loop touches (:mod:`kveik.pulse`, told by its environment), empty if it has none; it is ended after
    ``hung_s`` without a touch.
    """

    name: str
    kind: str
    variants: tuple[Variant, ...]
    log: Path
    readiness: Readiness
    environment: Mapping[str, str | None] = {}
    facts: str = ""
    url: str = ""
    start_s: float = 60.0
    stop_grace_s: float = 15.0
    pulse: str = ""
    hung_s: float = 0.0

    @property
    def digest(self) -> str:
        """Equal for two descriptions if a part that runs by the one need not be restarted for the other."""
        told = msgspec.json.encode((self.kind, self.variants, self.readiness, self.facts), order="sorted")
        environment = msgspec.json.encode(dict(self.environment), order="sorted")
        return hashlib.blake2b(told + environment, digest_size=8).hexdigest()

    def full_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of its process."""
        merged = {**inherited, **self.environment, VARIABLE: self.pulse or None}
        return {name: value for name, value in merged.items() if value is not None}
