"""The routers that are compared: Kveik's, and those of others that ``scripts/peers.py`` has installed."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.machine import ROOT
from benchmarks.native import chat_body, on_core, wait_ready
from kveik.engine.process import ServerProcess, free_port

PEERS = ROOT / ".kveik" / "peers"
COMPILED = ROOT / ".kveik" / "compiled"
START_S = 60.0
#: A router is left alone for so long after its first answer.
SETTLE_S = 1.0

#: Makes a command from the port, the engines' addresses and a folder for files.
Command = Callable[[int, Sequence[str], Path], list[str]]


@dataclass(frozen=True)
class RouterKind:
    """One way to run one router. ``looks_at_cache``: its policy sends prompts where their prefixes are.

    ``made_by`` installs it.
    """

    name: str
    command: Command
    executable: Path
    looks_at_cache: bool = True
    made_by: str = "scripts/peers.py"

    @property
    def installed(self) -> bool:
        """Whether it can be run here."""
        return self.executable.exists()


def _kveik(*options: str, folder_of_code: Path | None = None) -> Command:
    code = [] if folder_of_code is None else ["env", f"PYTHONPATH={folder_of_code}"]

    def command(port: int, engines: Sequence[str], folder: Path) -> list[str]:
        config = folder / f"router-{port}.toml"
        config.write_text("\n".join(f'[[engines]]\nurl = "{url}"\n' for url in engines), encoding="utf8")
        files = [
            "--registry-file",
            str(folder / f"fleet-{port}.json"),
            "--prefix-file",
            str(folder / f"prefixes-{port}"),
        ]
        ours = [*code, sys.executable, "-m", "kveik.cli.main", "router", "--config", str(config), "--port", str(port)]
        return [*ours, *files, *options]

    return command


def _rust(start: Sequence[str], policy: str, *options: str) -> Command:
    """All three of them have the flags of their common ancestor."""

    def command(port: int, engines: Sequence[str], _: Path) -> list[str]:
        address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        workers = ["--policy", policy, "--worker-urls", *engines, "--worker-startup-check-interval", "1"]
        return [*start, *address, *workers, *options]

    return command


def _bin(peer: str, name: str) -> Path:
    return PEERS / peer / "bin" / name


_VLLM, _SGLANG, _SMG = _bin("vllm-router", "vllm-router"), _bin("sglang-router", "python"), _bin("smg", "smg")
_SGLANG_START = (str(_SGLANG), "-m", "sglang_router.launch_router")
_SMG_OPTIONS = ("--log-level", "warn", "--disable-tokenizer-autoload", "--max-concurrent-requests", "0")

KVEIK = "Kveik"
KVEIK_COMPILED = "Kveik compiled"
KVEIK_LOGGING = "Kveik with access log"
KINDS = (
    RouterKind(KVEIK, _kveik(), Path(sys.executable)),
    RouterKind(
        KVEIK_COMPILED, _kveik(folder_of_code=COMPILED), COMPILED / "kveik", made_by="scripts/compiled_router.py"
    ),
    RouterKind(KVEIK_LOGGING, _kveik("--access-log", os.devnull), Path(sys.executable)),
    RouterKind(
        "vllm-router round robin", _rust([str(_VLLM)], "round_robin", "--log-level", "warning"), _VLLM,
        looks_at_cache=False,
    ),
    RouterKind("vllm-router", _rust([str(_VLLM)], "cache_aware", "--log-level", "warning"), _VLLM),
    RouterKind("sglang-router", _rust(_SGLANG_START, "cache_aware", "--log-level", "warn"), _SGLANG),
    RouterKind("smg", _rust([str(_SMG), "launch"], "cache_aware", *_SMG_OPTIONS), _SMG),
)  # fmt: skip
#: Kveik with other policies than its default.
POLICIES = tuple(
    RouterKind(f"{KVEIK} {policy}", _kveik("--policy", policy), Path(sys.executable), looks_at_cache=False)
    for policy in ("least-load", "round-robin", "prefix-hash")
)
#: Peers that no package registry has; they would have to be built from their repositories.
NOT_PACKAGED = ("production-stack",)


def chosen(names: Sequence[str], say: Callable[[str], None], known: Sequence[RouterKind] = KINDS) -> list[RouterKind]:
    """The routers of these names (all without any) that are installed; says which are not."""
    kinds = []
    for kind in known:
        if names and kind.name not in names:
            continue
        if kind.installed:
            kinds.append(kind)
        else:
            say(f"{kind.name} is left out: {kind.executable} does not exist ({kind.made_by} makes it)")
    for name in NOT_PACKAGED if not names else ():
        say(f"{name} is left out: it is not in the package index")
    return kinds


def version_of(kind: RouterKind) -> str:
    """The installed version of a peer; empty for Kveik, whose version stands with the machine."""
    if not kind.executable.is_relative_to(PEERS):
        return ""
    peer = kind.executable.relative_to(PEERS).parts[0]
    code = f"import importlib.metadata as m; print(m.version({peer!r}))"
    python = str(PEERS / peer / "bin" / "python")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class RunningRouter:
    """One router in front of some engines. A context manager; started again, it has the same port and files."""

    def __init__(self, kind: RouterKind, engines: Sequence[str], folder: Path, core: int | None = None) -> None:
        self.kind = kind
        self.port = free_port()
        command = [*on_core(core), *kind.command(self.port, engines, folder)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        log = folder / f"{kind.name.replace(' ', '-')}-{self.port}.log"
        self._server = ServerProcess(kind.name, command, environment, log)

    def __enter__(self) -> Self:
        self.start()
        time.sleep(SETTLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace_s=5.0)

    def start(self) -> float:
        """Start and wait for the first answered request; seconds until then."""
        self._server.start()
        return wait_ready(self._server, self._serves, START_S)

    def stop(self) -> None:
        """End it as an operator would, by SIGTERM."""
        self._server.stop(grace_s=5.0)

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        return self._server.processor_s()

    def memory_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(int(process.memory_info().rss) for process in self._server.processes)

    def _serves(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        asked = urllib.request.Request(url, chat_body(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
