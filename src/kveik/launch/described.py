"""A node's parts as files for another keeper describe them: systemd, Kubernetes or compose instead of ``kveik up``.

What they run is what ``kveik up`` runs, since it comes from the same parts. Three timers have to be in order, or
requests are lost: routers stop sending first; then the engine ends what it has within its ``--shutdown-timeout``; only
after that it may be killed. Pure.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import PurePosixPath

from kveik.config import RouterSettings, WatchdogSettings
from kveik.launch.addresses import announcements, router_urls
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine
from kveik.launch.machine import parse_cpu_list
from kveik.launch.parts import Tables
from kveik.supervise.part import Part

#: Between the end of one timer and the next one's, for what neither counts.
MARGIN_S = 10.0
#: How long a node's router is still found after it was told to end: who sends there has to notice.
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """One node: its parts, and what is needed to run them elsewhere.

    ``kveik``: the command line that runs Kveik's commands. ``folder``: of the configuration file, where its relative
    paths begin. ``user``: whose processes they are. ``device``: ``cpu``, ``cuda`` or ``ascend``.
    """

    spec: FleetSpec
    parts: tuple[Part, ...]
    tables: Tables
    kveik: tuple[str, ...]
    folder: str
    state_folder: str
    user: str
    device: str = "cpu"

    @property
    def node(self) -> str:
        """The node's name."""
        return self.spec.node.name

    @property
    def plain_node(self) -> str:
        """The same as a part of names."""
        return plain(self.node)

    @property
    def router(self) -> RouterSettings:
        """The ``[router]`` settings."""
        return self.tables.router

    @property
    def watchdog(self) -> WatchdogSettings:
        """The ``[watchdog]`` settings."""
        return self.tables.watchdog

    @property
    def router_urls(self) -> tuple[str, ...]:
        """Where the fleet's routers are."""
        return router_urls(self.spec, self.router, self.watchdog)

    @property
    def cache_folder(self) -> str:
        """The folder of the filesystem tier; empty: none."""
        return self.tables.agent.filesystem

    @property
    def models(self) -> frozenset[str]:
        """The folders of the node's models."""
        engines = self.spec.engines_of(self.node)
        return frozenset(engine.settings.model for engine in engines if engine.settings.model)

    @property
    def fleet(self) -> str:
        """The fleet's name as a part of names: letters, digits and dashes."""
        return plain(self.spec.settings.name)

    def of_kind(self, kind: str) -> list[Part]:
        """The parts of a kind, in order."""
        return [part for part in self.parts if part.kind == kind]

    def devices(self, part: Part) -> list[str]:
        """The devices that an engine was given."""
        return [text for text in self._engine(part).entry.devices.split(",") if text.strip()]

    def group(self, part: Part) -> str:
        """What an engine is restarted with: the name of the engine that has the API server."""
        return self._engine(part).group

    def same_group(self, part: Part) -> list[Part]:
        """The parts of the same group on this node, the engine itself first."""
        others = [other for other in self.of_kind("engine") if other is not part]
        return [part, *(other for other in others if self.group(other) == self.group(part))]

    def cores(self, part: Part) -> str:
        """The cores that an engine was given."""
        return self._engine(part).entry.cores

    def core_count(self, part: Part) -> int:
        """How many cores that is; 0: not said."""
        return len(parse_cpu_list(self.cores(part)))

    def kv_bytes(self, part: Part) -> int:
        """The size of an engine's own KV cache; 0: not said."""
        return self._engine(part).settings.kv_cache_bytes

    def registrations(self, part: Part) -> list[list[str]]:
        """The commands that keep an engine registered, one for each router that has a fleet of its own.

        Routers that share a registry are told once. Ranks without an API server are not registered.
        """
        words = next((known for known in announcements(self.spec, self.node) if known.engine_id == part.name), None)
        if words is None:
            return []
        urls = self.router_urls[:1] if self.router.registry else self.router_urls
        more = [f"--{name}={value}" for name, value in (("events", words.events), ("replay", words.replay)) if value]
        labels = [f"--label={name}={value}" for name, value in words.labels.items()]
        token = [f"--token-file={self.router.admission_token_file}"] if self.router.admission_token_file else []
        named = [f"--engine={words.url}", f"--engine-id={part.name}", *more, *labels, *token]
        return [[*self.kveik, "register", f"--router={url}", *named] for url in urls]

    def watchdog_file(self, restarts: dict[str, list[str]]) -> str:
        """A configuration for the watchdog alone: the engines to look at, and the command that restarts each."""
        fleet = dataclasses.replace(
            self.spec.settings, node=self.node, state_folder=str(PurePosixPath(self.state_folder).parent)
        )
        watchdog = dataclasses.replace(self.watchdog, routers=",".join(self.router_urls))
        text = "# For the watchdog: engines that Kveik did not start, and how each is restarted.\n"
        for name, settings in (("fleet", fleet), ("watchdog", watchdog), ("router", self.router)):
            if lines := _differing(settings):
                text += f"\n[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())
        text += f'\n[[nodes]]\nname = {json.dumps(self.node)}\naddress = "{self.spec.node.address}"\n'
        for words in announcements(self.spec, self.node):
            restart = json.dumps(restarts[words.engine_id], ensure_ascii=False)
            text += (
                f'\n[[engines]]\nurl = "{words.url}"\nengine_id = {json.dumps(words.engine_id)}\nrestart = {restart}\n'
            )
        return text

    def _engine(self, part: Part) -> LaunchedEngine:
        return next(engine for engine in self.spec.engines if engine.name == part.name)


def command_of(part: Part) -> list[str]:
    """What starts a part in the wanted way."""
    return list(part.variants[0].command)


def health_url(part: Part) -> str:
    """An address that is answered with 200 as soon as the part works; empty if it has none.

    A server that answers is not yet one that computes: what gets requests is decided by routers, who ask for a token.
    """
    if part.readiness.kind == "inference":
        return f"{part.readiness.target.rstrip('/')}/health"
    return part.readiness.target if part.readiness.kind == "http" else ""


def title(node: DescribedNode, part: Part) -> str:
    """What a part is, for people."""
    named = part.kind if part.name == part.kind else f"{part.kind} {part.name}"
    return f"Kveik {named} of fleet {node.fleet}"


def drain_wait_s(node: DescribedNode) -> float:
    """How long an engine is drained before it is told to end: less than it then has itself."""
    return 0.9 * node.spec.settings.drain_s


def plain(name: str) -> str:
    """A name of letters, digits and dashes, as DNS has them."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return kept.strip("-")[:50] or "kveik"


def _differing(settings: object) -> dict[str, str]:
    """The settings that are not as by default, as TOML."""
    assert dataclasses.is_dataclass(settings)
    lines = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            lines[field.name] = json.dumps(value, ensure_ascii=False)
    return lines
