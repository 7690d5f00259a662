"""``kveik stats``: what the node's agent holds and has done."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from kveik.agent.client import AgentClient
from kveik.byte_size import size_text
from kveik.clock import Deadline
from kveik.errors import KveikError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "exit codes:\n  0  shown\n  3  no agent answered: the message says why"
    parser.add_argument("--socket", default="", metavar="PATH", help="the agent's socket (in the runtime directory)")
    parser.add_argument("--json", action="store_true", help="print the whole state as one JSON document")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="how long to wait for the agent (5)")


def run(args: argparse.Namespace) -> int:
    """Ask the agent and print."""
    deadline = Deadline.after(args.timeout)
    try:
        client = AgentClient.connect(args.socket, role="stats", deadline_s=args.timeout, prefault=False)
        try:
            state = client.stats(deadline)
        finally:
            client.close()
    except KveikError as error:
        print(f"kveik stats: {error}", file=sys.stderr)
        return 3
    if args.json:
        print(json.dumps(state, indent=1))
        return 0
    console = Console()
    for table in tables(state):
        console.print(table)
    return 0


def tables(state: Mapping[str, Any]) -> list[Table]:
    """The state as tables: the agent, its tiers, namespaces, connections and counters."""
    arena = state["arena"]
    overview = _table(f"agent {state['agent_id']}, up {state['uptime_s']:.0f} s", "arena", "")
    for name, value in arena.items():
        shown = size_text(value) if name.endswith("bytes") and isinstance(value, int) else str(value)
        overview.add_row(name.replace("_", " "), shown)
    return [
        overview,
        _rows("tiers", state["tiers"], ("name", "state", "blocks", "bytes", "capacity_bytes", "read_only", "breaker")),
        *_outages(state["tiers"]),
        *_roll_call(state["tiers"]),
        _rows("namespaces", state["namespaces"], ("label", "digest", "blocks", "bytes")),
        _rows("connections", state["connections"], ("role", "label", "pid", "leases")),
        _rows("counters", [{"name": n, "count": c} for n, c in state["counters"].items()], ("name", "count")),
    ]


def _outages(tiers: list[Mapping[str, Any]]) -> list[Table]:
    """Why a tier is fenced, and when tiers were out and what that cost; nothing if none ever was."""
    fences = [{"what": f"{tier['name']} tier fenced: {tier['fence']}"} for tier in tiers if tier.get("fence")]
    outages = [{"what": outage["text"]} for tier in tiers for outage in tier.get("outages", ())]
    return [_rows("outages", fences + outages, ("what",))] if fences or outages else []


def _roll_call(tiers: list[Mapping[str, Any]]) -> list[Table]:
    """Which nodes this one sees in each shared tier; nothing if none is shared."""
    seen = [
        {"tier": tier["name"], **entry}
        for tier in tiers
        if tier.get("roll_call")
        for entry in tier["roll_call"]["nodes"]
    ]
    return [_rows("roll call", seen, ("tier", "node", "presence", "told"))] if seen else []


def _rows(title: str, entries: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> Table:
    table = _table(title, *(column.replace("_", " ") for column in columns))
    for entry in entries:
        table.add_row(*(size_text(entry[name]) if name.endswith("bytes") else str(entry[name]) for name in columns))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table
