"""A node as systemd units: one a process, in order, brought back when it ends. Pure."""

from kveik.launch.systemd import UNIT_FOLDER, quoted
from kveik.profiles.docker_words import container_name, docker_options
from kveik.profiles.node import HERE, INSIDE, Node, Process

_TARGET = "kveik-launch.target"
_DOCKER = "/usr/bin/docker"


def systemd_files(node: Node) -> dict[str, str]:
    """Paths on the node, and texts."""
    files = {f"{INSIDE}/{name}": text for name, text in node.files.items()}
    if node.dockerfile:
        files[f"{INSIDE}/Dockerfile"] = node.dockerfile
    names = [_unit_name(process) for process in node.processes]
    files[f"{UNIT_FOLDER}/{_TARGET}"] = "\n".join(
        [
            *(f"# {line}" for line in node.head),
            "[Unit]",
            f"Description={_plain(node.title)}",
            f"Wants={' '.join(names)}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )
    before = ""
    for process in node.processes:
        files[f"{UNIT_FOLDER}/{_unit_name(process)}"] = _unit(node, process, before)
        before = _unit_name(process)
    return files


def _unit(node: Node, process: Process, before: str) -> str:
    order = [
        "network-online.target",
        *(["docker.service"] if node.in_containers else []),
        *([before] if before else []),
    ]
    lines = [
        *(f"# {one.name}: {one.why}" for one in process.variables if one.why),
        *(f"# {name}: {why}" for name, _, why in process.options if why),
        "[Unit]",
        f"Description={_plain(process.title)}",
        f"PartOf={_TARGET}",
        f"After={' '.join(order)}",
        f"Wants={' '.join(order)}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        *(_container(node, process) if node.in_containers else _bare(process)),
        "Restart=on-failure",
        "RestartSec=10",
        f"TimeoutStartSec={process.ready.within_s}",
        "TimeoutStopSec=90",
        "LimitNOFILE=1048576",
        "",
    ]
    return "\n".join(lines)


def _container(node: Node, process: Process) -> list[str]:
    name = container_name(process)
    options = [word.replace(HERE, INSIDE) for word in docker_options(node, process)]
    lines = []
    if process.image and process.image == node.built_image:
        lines.append(f"ExecStartPre={quoted([_DOCKER, 'build', f'--tag={process.image}', INSIDE])}")
    # What a crash of the machine left would keep its name.
    lines.append(f"ExecStartPre=-{quoted([_DOCKER, 'rm', '--force', name])}")
    lines.append(f"ExecStart={quoted([_DOCKER, 'run', '--rm', *options, process.image, *process.container_words])}")
    lines.append(f"ExecStop={quoted([_DOCKER, 'stop', '--time=60', name])}")
    return lines


def _bare(process: Process) -> list[str]:
    settings = [f"{one.name}={one.value}" for one in process.variables]
    return [f"ExecStart={quoted(['/usr/bin/env', *settings, *process.words])}"]


def _unit_name(process: Process) -> str:
    return f"kveik-launch-{process.name}.service"


def _plain(text: str) -> str:
    return text.replace("%", "%%")
