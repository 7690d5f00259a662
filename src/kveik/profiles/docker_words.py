"""A process as the words of ``docker run``. Pure."""

from kveik.profiles.node import Node, Process
from kveik.profiles.tier_part import written_at


def container_name(process: Process) -> str:
    """What docker calls it."""
    return f"kveik-{process.name}"


def docker_options(node: Node, process: Process) -> list[str]:
    """Options of ``docker run`` without the image and the command. Each is one word, so that none can take the next."""
    # Some images would take the command for arguments of their own entry point.
    words = [f"--name={container_name(process)}", "--init", "--entrypoint=", *process.docker]
    if process.devices:
        words += [f"--device={device}" for device in node.device_files]
        words += [f"--volume={path}:{path}:ro" for path in (*system_folders(node, process), *node.plain_files)]
    words += [f"--volume={path}:{path}{':ro' if fixed else ''}" for path, fixed in process.mounts.items()]
    words += [f"--volume={written_at(name)}" for name in process.files]
    return [*words, *(f"--env={one.name}={one.value}" for one in process.variables)]


def system_folders(node: Node, process: Process) -> tuple[str, ...]:
    """Folders of drivers and tools: what a start looks for, but for those that the process has for itself."""
    return tuple(
        folder for folder in node.folders if folder not in process.mounts and folder.startswith(("/usr", "/etc"))
    )
