"""What runs on one node: processes in the order of their start, their files, and what must be there before. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kveik.profiles.catalog import Option, Variable

#: Where a process finds the files that were written for it.
INSIDE = "/etc/kveik-launch"
#: Stands for the folder of the written files until a form says where that is.
HERE = "@HERE@"


@dataclass(frozen=True, slots=True)
class Ready:
    """How to know that a process does its work: its port is open, or ``path`` answers over HTTP."""

    host: str
    port: int
    within_s: int
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a node.

    ``command``: its first words; ``options``: the rest, each with a reason. ``mounts``: paths of the machine, and
    whether read only. ``devices``: it computes on the accelerators, or copies to them. ``docker``: more words for
    ``docker run``. ``before``: files that are sourced first. ``libraries``: joins ``LD_LIBRARY_PATH``.
    """

    name: str
    title: str
    image: str
    command: tuple[str, ...]
    ready: Ready
    options: tuple[Option, ...] = ()
    variables: tuple[Variable, ...] = ()
    mounts: Mapping[str, bool] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    devices: bool = False
    docker: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    libraries: str = ""

    @property
    def words(self) -> list[str]:
        """The whole command."""
        return [*self.command, *(word for name, value, _ in self.options for word in (name, value) if word)]

    @property
    def container_words(self) -> list[str]:
        """The command as a container runs it, after the files that only an interactive shell of the image reads."""
        if not self.before and not self.libraries:
            return self.words
        sourced = [f'. "{file}"' for file in self.before]
        if self.libraries:
            sourced.append(f'export LD_LIBRARY_PATH="{self.libraries}:${{LD_LIBRARY_PATH:-}}"')
        return ["bash", "-c", "; ".join([*sourced, 'exec "$@"']), "bash", *self.words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: ``files`` (name: text) for all its processes, and what a start looks at first.

    ``built_image``: one that is made from ``dockerfile``; both empty where the image has all.
    """

    number: int
    title: str
    address: str
    interface: str
    processes: tuple[Process, ...]
    files: Mapping[str, str]
    device_files: tuple[str, ...]
    folders: tuple[str, ...]
    plain_files: tuple[str, ...]
    in_containers: bool
    built_image: str
    dockerfile: str
    warnings: tuple[str, ...]
    source: str

    @property
    def head(self) -> tuple[str, ...]:
        """Lines that a file begins with: what it is, where it comes from, and what to know first."""
        return (self.title, f"Sources: {self.source}.", *(f"Note: {warning}." for warning in self.warnings))
