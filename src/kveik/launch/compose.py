"""A compose file for one node of a fleet. Pure.

All services use the machine's network and shared memory, so that commands, ports and the arena are those of `kveik up`.
Compose restarts what ended by itself; a hung engine is restarted by the watchdog, which needs docker's socket for that.
"""

import math
from typing import Any

from kveik.launch.described import DescribedNode, command_of, health_url
from kveik.launch.in_container import (
    CONFIG_FOLDER,
    PYTHON,
    device_files,
    image_of,
    in_container,
    mounts_of,
    variables_of,
)
from kveik.launch.yaml_text import Block, yaml_text
from kveik.supervise.part import Part


def compose_text(node: DescribedNode) -> str:
    """The file."""
    services: dict[str, Any] = {}
    for part in node.parts:
        services[part.name] = _service(node, part)
        if part.kind == "engine":
            for number, command in enumerate(node.registrations(part)):
                name = f"register-{part.name}" + (f"-{number + 1}" if number else "")
                services[name] = _registration(node, part, command)
    document: dict[str, Any] = {"name": f"kveik-{node.fleet}", "services": services}
    if node.of_kind("watchdog"):
        restarts = {part.name: _restart_command(node, part) for part in node.of_kind("engine")}
        document["configs"] = {"watchdog": {"content": Block(node.watchdog_file(restarts).replace("$", "$$"))}}
    return f"{_HEAD}{yaml_text(document)}"


_HEAD = """\
# A compose file by `kveik up --print compose`. Set the images: the engines' has vLLM and Kveik, with one Python.
# The watchdog restarts a sick engine by docker, for which it needs docker's command in its image and the daemon's
# socket. Whoever has that socket owns the machine: without it, the watchdog only isolates and reports.
"""


def _service(node: DescribedNode, part: Part) -> dict[str, Any]:
    command = command_of(part)
    if part.kind == "watchdog":
        command = [*node.kveik, "watchdog", "--config", f"{CONFIG_FOLDER}/watchdog.toml", "--node", node.node]
    service: dict[str, Any] = {
        "image": image_of(node, part.kind),
        "command": _escaped(in_container(node, command)),
        "environment": {name: value.replace("$", "$$") for name, value in variables_of(part).items()},
        "working_dir": node.folder,
        "network_mode": "host",
        "pid": "host",
        "init": True,
        "volumes": [f"{outside}:{inside}{':ro' if fixed else ''}" for outside, inside, fixed in mounts_of(node, part)],
        "stop_grace_period": f"{math.ceil(part.stop_grace_s)}s",
        # What ended by itself comes back; an engine that cannot start does not try for ever.
        "restart": "on-failure:10" if part.kind == "engine" else "always",
    }
    if part.kind == "engine":
        service.update(_engine_only(node, part))
    if part.kind == "watchdog":
        service["configs"] = [{"source": "watchdog", "target": f"{CONFIG_FOLDER}/watchdog.toml"}]
        service["volumes"].append("/var/run/docker.sock:/var/run/docker.sock")
    if health := _health(part):
        service["healthcheck"] = health
    return service


def _engine_only(node: DescribedNode, part: Part) -> dict[str, Any]:
    more: dict[str, Any] = {
        "ipc": "host",
        "depends_on": {agent.name: {"condition": "service_healthy"} for agent in node.of_kind("agent")},
    }
    if node.device == "ascend":
        more["devices"] = [f"{file}:{file}" for file in device_files(node, part)]
    if node.device == "cuda":
        wanted = {"driver": "nvidia", "capabilities": ["gpu"]}
        given = node.devices(part)
        wanted |= {"device_ids": given} if given else {"count": "all"}
        more["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
    if node.device == "cpu" and node.cores(part):
        more["cpuset"] = node.cores(part)
    return more


def _registration(node: DescribedNode, part: Part, command: list[str]) -> dict[str, Any]:
    return {
        "image": image_of(node, "router"),
        "command": _escaped(in_container(node, command)),
        "working_dir": node.folder,
        "network_mode": "host",
        "init": True,
        "volumes": [f"{node.folder}:{node.folder}:ro"],
        # Ends before the engine does, and so takes it out of the routers before it stops answering.
        "depends_on": {part.name: {"condition": "service_started", "restart": False}},
        "restart": "always",
        "stop_grace_period": "10s",
    }


def _health(part: Part) -> dict[str, Any]:
    url = health_url(part)
    if url:
        asks = f"import urllib.request as r; r.urlopen('{url}', timeout=5)"
    elif part.readiness.kind == "socket":
        asks = f"import socket as s; s.socket(s.AF_UNIX).connect('{part.readiness.target}')"
    else:
        return {}
    return {
        "test": ["CMD", PYTHON, "-c", asks.replace("$", "$$")],
        "start_period": f"{math.ceil(part.start_s)}s",
        "start_interval": "1s",
        "interval": "10s",
        "timeout": "6s",
        "retries": 3,
    }


def _restart_command(node: DescribedNode, part: Part) -> list[str]:
    containers = [f"kveik-{node.fleet}-{one.name}-1" for one in node.same_group(part)]
    return ["docker", "restart", "--time=1", *containers]


def _escaped(words: list[str]) -> list[str]:
    return [word.replace("$", "$$") for word in words]
