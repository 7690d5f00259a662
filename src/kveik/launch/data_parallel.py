"""The arguments that make vLLM servers on one or several nodes one data-parallel group. Pure.

The engine that clients reach (the head) has the API server; entries with ``head`` are its further ranks on other
nodes, headless. vLLM 0.32: ``vllm/entrypoints/cli/serve.py``; ``--headless`` exists for ``vllm serve`` only.
"""

from kveik.errors import ConfigError
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine


def is_headless(engine: LaunchedEngine) -> bool:
    """Whether these are further ranks of another engine: no API server, no port, nothing to announce."""
    return bool(engine.entry.head)


def data_parallel_arguments(engine: LaunchedEngine, spec: FleetSpec) -> list[str]:
    """The arguments of one engine; none where it is a group of its own.

    All ranks on the head's node need no address. Raises :class:`~kveik.errors.ConfigError` where other nodes would
    have to reach the head on loopback.
    """
    entry = engine.entry
    if entry.data_parallel == 1:
        return []
    arguments = ["--data-parallel-size", str(entry.data_parallel)]
    if entry.data_parallel_local == entry.data_parallel:
        return arguments
    arguments += ["--data-parallel-size-local", str(entry.data_parallel_local)]
    arguments += ["--data-parallel-address", _head_address(engine, spec)]
    arguments += ["--data-parallel-rpc-port", str(entry.rpc_port)]
    if is_headless(engine):
        arguments = ["--headless", *arguments, "--data-parallel-start-rank", str(engine.start_rank)]
    return arguments


def groups_over_nodes(spec: FleetSpec, node: str) -> dict[str, tuple[str, ...]]:
    """The groups that have ranks on this node and on others: the parts of each that are here, its head first."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(engine.group for engine in spec.engines_of(node)):
        members = [engine for engine in spec.engines if engine.group == name]
        if {engine.entry.node for engine in members} != {node}:
            here = [engine for engine in members if engine.entry.node == node]
            groups[name] = tuple(engine.name for engine in sorted(here, key=is_headless))
    return groups


def _head_address(engine: LaunchedEngine, spec: FleetSpec) -> str:
    head = next(known for known in spec.engines if known.name == engine.group)
    addresses = {node.name: node.address for node in spec.nodes}
    address = addresses[head.entry.node]
    others = {addresses[known.entry.node] for known in spec.engines if known.group == head.name} - {address}
    if _is_loopback(address) and not all(map(_is_loopback, others)):
        raise ConfigError(
            f"node {head.entry.node} has the address {address}, which the other nodes of engine {head.name} cannot "
            "reach: set its address in [[nodes]]"
        )
    return address


def _is_loopback(address: str) -> bool:
    return address in {"localhost", "::1"} or address.startswith("127.")
