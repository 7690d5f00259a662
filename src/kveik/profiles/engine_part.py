"""The engines of a node: ``vllm serve`` with its options, for each rank that this node starts. Pure.

vLLM 0.32 (``vllm/engine/arg_utils.py``): the first node of a data-parallel group serves, the others are headless.
A start rank on the first node, be it 0, would choose another way of balancing, which remote headless ranks do not go
with.
"""

from kveik.engine.kv_transfer import HASH_SEED
from kveik.profiles.catalog import Option, Variable
from kveik.profiles.node import Process, Ready
from kveik.profiles.tier_part import TierPart
from kveik.profiles.wish import RPC_PORT, Wish

_START_S = 3600
_DEVICES = {"ascend": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}


def engines(wish: Wish, node: int, kept: TierPart) -> tuple[Process, ...]:
    """The engines that this node starts: one for its part of a group, or one for each rank of its own."""
    count = 1 if wish.model.group else wish.preset.local
    return tuple(_engine(wish, node, number, kept) for number in range(count))


def _engine(wish: Wish, node: int, number: int, kept: TierPart) -> Process:
    port = wish.given.port + number
    headless = wish.model.group and node > 0
    serving = wish.address(0) if headless else wish.address(node)
    return Process(
        name="engine" if wish.model.group or wish.preset.local == 1 else f"engine-{number}",
        title=_title(wish, node, number),
        image=wish.image,
        command=("vllm", "serve", wish.folder),
        options=_options(wish, node, port, kept.options(node, number), headless=headless),
        variables=_variables(wish, node, number, kept),
        mounts={wish.folder: True, **kept.engine_mounts},
        files=kept.engine_files,
        devices=True,
        docker=_docker(wish, kept),
        before=wish.hardware.setup,
        libraries=kept.libraries,
        ready=Ready(serving, wish.given.port if headless else port, _START_S, "/health"),
    )


def _options(wish: Wish, node: int, port: int, kept: tuple[Option, ...], *, headless: bool) -> tuple[Option, ...]:
    """All options; the last of each name holds."""
    first = (*_address(wish, port, headless=headless), *_layout(wish, node), *_sizes(wish))
    options = (*first, *wish.model.options, *wish.preset.options, *kept)
    return tuple({option[0]: option for option in options}.values())


def _title(wish: Wish, node: int, number: int) -> str:
    tensor, local = wish.preset.tensor, wish.preset.local
    if not wish.model.group:
        return (
            f"engine {number + 1} of {local} on this node, {tensor} devices" if tensor > 1 else f"engine {number + 1}"
        )
    ranks = local * wish.nodes
    first = node * local
    mine = f"rank {first}" if local == 1 else f"ranks {first} to {first + local - 1}"
    return f"{mine} of {ranks}, {tensor} devices each" if ranks > 1 else f"one rank over {tensor} devices"


def _address(wish: Wish, port: int, *, headless: bool) -> tuple[Option, ...]:
    if headless:
        return (("--headless", "", "the first node answers for the whole group"),)
    # An engine without a key of its own listens to other machines only where there are any.
    host = wish.address(0) if wish.nodes == 1 else "0.0.0.0"  # noqa: S104 (others must reach it)
    return (
        ("--host", host, "keep clients out by a firewall: they come through the router" if wish.nodes > 1 else ""),
        ("--port", str(port), ""),
    )


def _layout(wish: Wish, node: int) -> tuple[Option, ...]:
    served: tuple[Option, ...] = (("--served-model-name", wish.served, "equal on all engines, or nothing is shared"),)
    tensor: tuple[Option, ...] = ()
    if wish.hardware.platform != "cpu":
        tensor = (("--tensor-parallel-size", str(wish.preset.tensor), "devices of a rank"),)
    ranks = wish.preset.local * wish.nodes
    if not wish.model.group or ranks == 1:
        return (*served, *tensor)
    group: tuple[Option, ...] = (
        ("--data-parallel-size", str(ranks), "ranks of the group"),
        ("--data-parallel-size-local", str(wish.preset.local), "of them on this node"),
    )
    if wish.nodes > 1:
        group += (
            ("--data-parallel-address", wish.address(0), "the first node, on all nodes"),
            ("--data-parallel-rpc-port", str(RPC_PORT), ""),
        )
    if node:
        group += (("--data-parallel-start-rank", str(node * wish.preset.local), "never given on the first node"),)
    return (*served, *tensor, *group)


def _sizes(wish: Wish) -> tuple[Option, ...]:
    preset, given = wish.preset, wish.given
    requests = given.requests or preset.requests
    options: tuple[Option, ...] = (
        ("--max-model-len", str(given.context or preset.context), "prompt and answer; `kveik plan` says how many fit"),
        ("--max-num-seqs", str(requests), "requests that a rank computes at once"),
        ("--max-num-batched-tokens", str(max(preset.batch, requests)), "of one step; not below --max-num-seqs"),
    )
    if preset.utilization:
        options += (
            ("--gpu-memory-utilization", f"{preset.utilization:g}", "share of a device for weights and KV cache"),
        )
    return (*options, ("--enable-prompt-tokens-details", "", "answers tell how many of their tokens came from a cache"))


def _variables(wish: Wish, node: int, number: int, kept: TierPart) -> tuple[Variable, ...]:
    named = {one.name: one for one in (*wish.hardware.variables, *wish.model.variables, *wish.preset.variables)}
    named["PYTHONHASHSEED"] = Variable("PYTHONHASHSEED", HASH_SEED, "equal on all engines: block hashes must agree")
    chosen = _DEVICES.get(wish.hardware.platform)
    if chosen and not wish.model.group and wish.preset.local > 1:
        first = number * wish.preset.tensor
        devices = ",".join(str(device) for device in range(first, first + wish.preset.tensor))
        named[chosen] = Variable(chosen, devices, "this engine's own devices")
    if nic := wish.interface(node):
        named |= {one.name: one for one in _network(wish, node, nic)}
    return (*named.values(), *kept.variables)


def _network(wish: Wish, node: int, nic: str) -> tuple[Variable, ...]:
    why = "the interface that owns this node's address"
    common = (Variable("GLOO_SOCKET_IFNAME", nic, why), Variable("TP_SOCKET_IFNAME", nic, why))
    if wish.hardware.platform == "ascend":
        return (
            Variable("HCCL_IF_IP", wish.address(node), "this node"),
            Variable("HCCL_SOCKET_IFNAME", nic, why),
            *common,
        )
    if wish.hardware.platform == "cuda":
        return (Variable("NCCL_SOCKET_IFNAME", nic, why), *common)
    return common


def _docker(wish: Wish, kept: TierPart) -> tuple[str, ...]:
    """Words of hardware, preset and tier; a size of shared memory means nothing where it is the machine's."""
    words = tuple(dict.fromkeys((*wish.hardware.docker, *wish.preset.docker, *kept.docker)))
    return tuple(word for word in words if not (word.startswith("--shm-size") and "--ipc=host" in words))
