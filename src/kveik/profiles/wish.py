"""What is to be launched, put together and checked before anything is written. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kveik.errors import ConfigError
from kveik.profiles import catalog
from kveik.profiles.catalog import Hardware, Model, Preset, Tier

#: Addresses that belong to nobody (RFC 5737): the scripts refuse to start with them.
PLACEHOLDER = "192.0.2."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
GIB = 1 << 30
#: Where ranks of a group find each other.
RPC_PORT = 13399


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says beyond hardware, model and tier. Empty or 0: as the preset has it."""

    nodes: int = 1
    addresses: Sequence[str] = ()
    interfaces: Sequence[str] = ()
    model_folder: str = ""
    served: str = ""
    image: str = ""
    port: int = 8000
    context: int = 0
    requests: int = 0
    store_gib: int = 64
    shared_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A launch whose parts fit each other."""

    hardware: Hardware
    model: Model
    tier: Tier
    preset: Preset
    given: Given

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.given.nodes

    @property
    def folder(self) -> str:
        """The model's folder, equal on all nodes."""
        return self.given.model_folder or self.model.folder

    @property
    def served(self) -> str:
        """The name under which the model is served."""
        return self.given.served or self.model.served

    @property
    def in_containers(self) -> bool:
        """Whether there is an image to run in."""
        return bool(self.image)

    @property
    def image(self) -> str:
        """The image of engines: the given one, the profile's, or one built from it with what the tier needs."""
        base = self.given.image or self.hardware.image
        return f"kveik-launch/{self.tier.name}:{self.hardware.name}" if base and self.installs else base

    @property
    def base_image(self) -> str:
        """What that image is built from."""
        return self.given.image or self.hardware.image

    @property
    def installs(self) -> tuple[str, ...]:
        """Packages that the image lacks."""
        packages = self.tier.install.get(self.hardware.platform, ())
        return tuple(package.format(wheels=self.hardware.wheels) for package in packages)

    def address(self, node: int) -> str:
        """The node's address as other nodes reach it; loopback where there is only one and none was given."""
        if self.given.addresses:
            return self.given.addresses[node]
        return f"{PLACEHOLDER}{11 + node}" if self.nodes > 1 else "127.0.0.1"

    def interface(self, node: int) -> str:
        """The network interface that owns it; empty for loopback."""
        if self.given.interfaces:
            return self.given.interfaces[node if len(self.given.interfaces) > 1 else 0]
        return "" if self.address(node) == "127.0.0.1" else "eth0"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before relying on it."""
        told = []
        if self.preset.how != "documented":
            told.append("this layout was derived, not taken from a guide: measure before you rely on it")
        if self.nodes > 1 and not self.given.addresses:
            told.append(f"addresses are placeholders ({PLACEHOLDER}x): give --address for each node")
        if self.tier.known_models and self.model.name not in self.tier.known_models:
            told.append(
                f"{self.model.name} is not among the models that this version of {self.tier.name} names; a cache that "
                "hits can still give garbled text: compare a hit with a cold run (kveik verify) before you serve"
            )
        if self.nodes > 1 and self.tier.name == "kveik" and not self.given.shared_folder:
            told.append("each node has a cache of its own: give --shared-folder for one that all nodes use")
        return tuple(told)


def wish(hardware: str, model: str, tier: str, given: Given) -> Wish:
    """Put together what was asked for. Raises :class:`ConfigError` that says what does not fit, and what would."""
    on = catalog.hardware(hardware)
    of = catalog.model(model, on.platform)
    kept = catalog.tier(tier)
    if on.platform not in kept.platforms:
        raise ConfigError(f"tier {tier} runs on {', '.join(kept.platforms)}, and {hardware} is {on.platform}")
    if why := kept.not_for.get(model):
        raise ConfigError(f"tier {tier} is not for {model}: {why}")
    _check(given, kept)
    preset = catalog.preset(of, on, given.nodes)
    engines = range(given.port, given.port + (1 if of.group else preset.local))
    for name, port in {**kept.ports, "ranks": RPC_PORT}.items():
        if port in engines:
            whose = "the group" if name == "ranks" else tier
            raise ConfigError(f"--port {given.port}: an engine would have port {port}, which is {whose}'s ({name})")
    return Wish(hardware=on, model=of, tier=kept, preset=preset, given=given)


def _check(given: Given, tier: Tier) -> None:
    if given.nodes < 1:
        raise ConfigError(f"--nodes is {given.nodes}, expected at least 1")
    for name, values in (("--address", given.addresses), ("--interface", given.interfaces)):
        if values and len(values) != given.nodes and not (name == "--interface" and len(values) == 1):
            raise ConfigError(f"{name} was given {len(values)} times, expected once for each of {given.nodes} nodes")
        for value in values:
            if not _NAME.fullmatch(value):
                raise ConfigError(f"{name} is {value!r}, expected a name or an address")
    if len(set(given.addresses)) < len(given.addresses):
        raise ConfigError("--address names one node twice: each needs its own")
    if given.nodes > 1 and any(value.startswith("127.") or value == "localhost" for value in given.addresses):
        raise ConfigError("--address is loopback, which other nodes cannot reach: give the address of the network card")
    if not 1 <= given.port <= 65535:
        raise ConfigError(f"--port is {given.port}, expected 1 to 65535")
    if given.store_gib < 1:
        raise ConfigError(f"--store-gib is {given.store_gib}, expected at least 1")
    for name, path in (("--model-folder", given.model_folder), ("--shared-folder", given.shared_folder)):
        if path and (not path.startswith("/") or "\n" in path or ":" in path):
            raise ConfigError(f"{name} is {path!r}, expected an absolute path without colons")
    if tier.name == "ucm" and not given.shared_folder:
        raise ConfigError("tier ucm keeps blocks in a folder: give --shared-folder, the same on all nodes")
