"""A node as a compose file. Pure."""

from typing import Any

from kveik.launch.yaml_text import Block, yaml_text
from kveik.profiles.docker_words import container_name, system_folders
from kveik.profiles.node import INSIDE, Node, Process

#: Where nothing else is known: to be replaced by whoever builds images.
_CPU_IMAGE = "kveik-vllm-cpu:latest"


def compose_files(node: Node) -> dict[str, str]:
    """``compose.yaml`` and, where an image has to be built, its ``Dockerfile``."""
    document: dict[str, Any] = {
        "name": f"kveik-launch-{node.number}",
        "services": {process.name: _service(node, process, before) for before, process in _with_before(node)},
    }
    if node.files:
        document["configs"] = {name: {"content": Block(_dollars(text))} for name, text in node.files.items()}
    head = "".join(f"# {line}\n" for line in node.head)
    files = {"compose.yaml": head + yaml_text(document)}
    return {**files, "Dockerfile": node.dockerfile} if node.dockerfile else files


def _with_before(node: Node) -> list[tuple[Process | None, Process]]:
    return list(zip((None, *node.processes), node.processes, strict=False))


def _service(node: Node, process: Process, before: Process | None) -> dict[str, Any]:
    words = process.container_words if node.in_containers else process.words
    service: dict[str, Any] = {
        "image": process.image or _CPU_IMAGE,
        "container_name": container_name(process),
        "command": [_dollars(word) for word in words],
        # The image's own entry point would get the command as its arguments.
        "entrypoint": [],
        "init": True,
        "restart": "unless-stopped",
        "environment": {one.name: _dollars(one.value) for one in process.variables},
    }
    if process.image and process.image == node.built_image:
        service["build"] = {"context": ".", "dockerfile": "Dockerfile"}
    service |= _docker(process.docker)
    if process.devices and node.device_files:
        service["devices"] = [f"{device}:{device}" for device in node.device_files]
    if volumes := _volumes(node, process):
        service["volumes"] = volumes
    if process.files:
        service["configs"] = [{"source": name, "target": f"{INSIDE}/{name}"} for name in process.files]
    if before is not None:
        service["depends_on"] = [before.name]
    return service


def _volumes(node: Node, process: Process) -> list[str]:
    fixed = (*system_folders(node, process), *node.plain_files) if process.devices else ()
    own = [f"{path}:{path}{':ro' if read_only else ''}" for path, read_only in process.mounts.items()]
    return [*(f"{path}:{path}:ro" for path in fixed), *own]


def _docker(words: tuple[str, ...]) -> dict[str, Any]:
    """The same as services say it."""
    said: dict[str, Any] = {}
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        match name:
            case "net":
                said["network_mode"] = value
            case "ipc" | "pid":
                said[name] = value
            case "shm-size":
                said["shm_size"] = value
            case "cap-add":
                said["cap_add"] = [value]
            case "ulimit":
                limit, _, size = value.partition("=")
                said["ulimits"] = {limit: int(size)}
            case "gpus":
                wanted = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
                said["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
            case _:
                raise AssertionError(f"no way to say {word} in a compose file")
    return said


def _dollars(text: str) -> str:
    return text.replace("$", "$$")
