"""What containers of a fleet have in common: images, mounts, device files, and commands with the image's Python. Pure.

Devices and mounts of Ascend as in the guides for Atlas A2 and A3 (vllm-ascend 0.18 to 0.30).
"""

from pathlib import PurePosixPath

from kveik.launch.described import DescribedNode
from kveik.launch.parts import DEVICES_VARIABLE
from kveik.supervise.part import Part

PYTHON = "python3"
CONFIG_FOLDER = "/etc/kveik"
#: To be replaced: nobody knows them but who builds them.
ENGINE_IMAGES = {"cpu": "kveik-vllm-cpu:latest", "cuda": "kveik-vllm-cuda:latest", "ascend": "kveik-vllm-ascend:latest"}
KVEIK_IMAGE = "kveik:latest"
_ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_MOUNTS = (
    "/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)

#: A folder or file of the machine, where it is inside, and whether it is read only.
Mount = tuple[str, str, bool]


def image_of(node: DescribedNode, kind: str) -> str:
    """The image of a part: engines need vLLM and Kveik, all others Kveik with its extra ``router``."""
    return ENGINE_IMAGES[node.device] if kind == "engine" else KVEIK_IMAGE


def in_container(node: DescribedNode, command: list[str]) -> list[str]:
    """The same command with the image's Python: the machine's own has another path."""
    first = PurePosixPath(command[0]).name
    return [PYTHON if first.startswith("python") or command[0] == node.kveik[0] else command[0], *command[1:]]


def variables_of(part: Part) -> dict[str, str]:
    """The environment variables of a part that have a value, without those that choose devices.

    A container sees the devices that it was given and no others, counted from 0.
    """
    chosen = set(DEVICES_VARIABLE.values())
    return {name: value for name, value in part.environment.items() if value is not None and name not in chosen}


def mounts_of(node: DescribedNode, part: Part) -> list[Mount]:
    """What a part sees of the machine: always under the same path, so that configuration and commands hold inside.

    The state folder has sockets and logs, ``/dev/shm`` the arena.
    """
    mounts: list[Mount] = [(node.state_folder, node.state_folder, False), (node.folder, node.folder, True)]
    if part.kind in {"agent", "engine"}:
        mounts.append(("/dev/shm", "/dev/shm", False))  # noqa: S108 (the machine's own)
    if part.kind == "agent" and node.cache_folder:
        mounts.append((node.cache_folder, node.cache_folder, False))
    if part.kind in {"engine", "router"}:
        mounts += [(model, model, True) for model in sorted(node.models)]
    if part.kind == "engine" and node.device == "ascend":
        mounts += [(path, path, True) for path in _ASCEND_MOUNTS]
    return _without_nested(mounts)


def device_files(node: DescribedNode, part: Part) -> list[str]:
    """The device files of an engine on Ascend; with none named, all eight of a machine."""
    numbers = node.devices(part) or [str(number) for number in range(8)]
    return [*(f"/dev/davinci{number}" for number in numbers), *_ASCEND_DEVICES]


def _without_nested(mounts: list[Mount]) -> list[Mount]:
    """Each folder once; writable where anybody needs it so."""
    kept: dict[str, Mount] = {}
    for mount in mounts:
        before = kept.get(mount[0])
        kept[mount[0]] = mount if before is None else (mount[0], mount[1], before[2] and mount[2])
    return list(kept.values())
