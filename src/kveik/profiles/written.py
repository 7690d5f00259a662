"""The files of a launch in one of the three forms, and how they are written."""

from collections.abc import Callable, Mapping
from pathlib import Path

from kveik.errors import ConfigError
from kveik.profiles.compose_form import compose_files
from kveik.profiles.node import Node
from kveik.profiles.nodes import nodes
from kveik.profiles.shell_form import shell_files
from kveik.profiles.systemd_form import systemd_files
from kveik.profiles.wish import Wish

FORMS: Mapping[str, Callable[[Node], dict[str, str]]] = {
    "shell": shell_files,
    "compose": compose_files,
    "systemd": systemd_files,
}


def launch_files(wish: Wish, form: str) -> dict[str, str]:
    """All files, named below one folder: ``node-0/start.sh`` and so on. Raises :class:`ConfigError`."""
    if form not in FORMS:
        raise ConfigError(f"--form is {form!r}, expected one of {', '.join(FORMS)}")
    return {
        f"node-{node.number}/{name.lstrip('/')}": text
        for node in nodes(wish)
        for name, text in FORMS[form](node).items()
    }


def as_text(files: Mapping[str, str]) -> str:
    """All files one after the other, each after a line with its name."""
    return "\n".join(f"# file: {name}\n{text}" for name, text in files.items())


def write(files: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """Write the files below a folder; scripts can be run. The paths.

    Raises :class:`ConfigError`, before anything is written, if a file is there that differs and ``force`` is not given.
    """
    wanted = {folder / name: text for name, text in files.items()}
    other = [path for path, text in wanted.items() if path.exists() and path.read_text("utf8") != text]
    if other and not force:
        raise ConfigError(f"{other[0]} is there and differs: name another --output, or replace it with --force")
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return list(wanted)
