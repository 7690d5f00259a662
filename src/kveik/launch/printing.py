"""A fleet as files for systemd, Kubernetes or compose: the commands that ``kveik up`` runs, kept by somebody else."""

import dataclasses
import getpass
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from kveik.errors import ConfigError
from kveik.launch.compose import compose_text
from kveik.launch.described import DescribedNode
from kveik.launch.fleet_spec import FleetSpec, read_fleet
from kveik.launch.kubernetes import kubernetes_text
from kveik.launch.parts import Here, Tables, describe_node, read_tables
from kveik.launch.systemd import systemd_files
from kveik.supervise.node_folder import node_folder


def _systemd_text(node: DescribedNode) -> str:
    """All units in one text; each begins with a line that names its file."""
    comment = {".rules": "//"}
    files = systemd_files(node).items()
    return "\n".join(f"{comment.get(Path(path).suffix, '#')} file: {path}\n{text}" for path, text in files)


_FORMS: Mapping[str, Callable[[DescribedNode], str]] = {
    "systemd": _systemd_text,
    "kubernetes": kubernetes_text,
    "compose": compose_text,
}
#: What ``kveik up --print`` takes.
KINDS = tuple(_FORMS)


def printed(kind: str, spec: FleetSpec, tables: Tables, here: Here, user: str = "") -> str:
    """The fleet's files. Of several nodes the one that is named, or, for Kubernetes, all of them.

    ``user``: whose processes they will be, empty for who asks. Raises :class:`ConfigError`.
    """
    if kind not in _FORMS:
        raise ConfigError(f"--print is {kind!r}, expected one of {', '.join(_FORMS)}")
    owner = user or getpass.getuser()
    every = kind == "kubernetes" and not spec.settings.node
    names = [node.name for node in spec.nodes] if every else [spec.node.name]
    return "".join(_FORMS[kind](described(_of_node(spec, name), tables, here, owner)) for name in names)


def printed_file(kind: str, config: Path, node: str, here: Here) -> str:
    """The same for a configuration file; ``node`` is empty for its only one. Raises :class:`ConfigError`."""
    spec = read_fleet(config.absolute(), here.environ, {"node": node} if node else None)
    return printed(kind, spec, read_tables(config, here.environ), here)


def described(spec: FleetSpec, tables: Tables, here: Here, user: str) -> DescribedNode:
    """One node as other keepers need it."""
    source = (spec.source or Path("kveik.toml")).absolute()
    return DescribedNode(
        spec=spec,
        parts=describe_node(spec, tables, here),
        tables=tables,
        kveik=(here.python, "-m", "kveik.cli.main"),
        folder=os.fspath(source.parent),
        state_folder=str(node_folder(spec.settings, spec.node.name, here.environ).root),
        user=user,
        device=here.device,
    )


def _of_node(spec: FleetSpec, node: str) -> FleetSpec:
    return dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, node=node))
