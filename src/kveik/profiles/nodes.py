"""From a wish to its nodes. Pure."""

from kveik.profiles.engine_part import engines
from kveik.profiles.node import Node
from kveik.profiles.tier_part import tier_part
from kveik.profiles.wish import Wish


def nodes(wish: Wish) -> tuple[Node, ...]:
    """What each node runs, the first one first: it has what there is only one of."""
    return tuple(_node(wish, number) for number in range(wish.nodes))


def _node(wish: Wish, number: int) -> Node:
    kept = tier_part(wish, number)
    on = wish.hardware
    builds = wish.in_containers and bool(wish.installs)
    where = f"node {number} of {wish.nodes}" if wish.nodes > 1 else "one node"
    return Node(
        number=number,
        title=f"{wish.model.title}; {on.title}; {where}; tier: {wish.tier.title}",
        address=wish.address(number),
        interface=wish.interface(number),
        processes=(*kept.processes, *engines(wish, number, kept)),
        files=kept.files,
        device_files=on.all_device_files if wish.in_containers else (),
        folders=(wish.folder, *(on.folders if wish.in_containers else ()), *_shared(wish)),
        plain_files=on.files if wish.in_containers else (),
        in_containers=wish.in_containers,
        built_image=wish.image if builds else "",
        dockerfile=_dockerfile(wish) if builds else "",
        warnings=wish.warnings,
        source="; ".join(dict.fromkeys((on.source, wish.model.source, wish.tier.source))),
    )


def _shared(wish: Wish) -> tuple[str, ...]:
    return (wish.given.shared_folder,) if wish.given.shared_folder else ()


def _dockerfile(wish: Wish) -> str:
    packages = " ".join(f"'{package}'" for package in wish.installs)
    lines = [
        f"# {wish.base_image} with what the tier {wish.tier.name} needs.",
        f"FROM {wish.base_image}",
        f"RUN python3 -m pip install --no-cache-dir {packages}",
        "",
    ]
    return "\n".join(lines)
