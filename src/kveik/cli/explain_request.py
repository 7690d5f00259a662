"""``kveik explain request``: why one request found no more in the cache than it did."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kveik.agent.client import AgentClient
from kveik.agent.funnel import RequestFunnel
from kveik.agent.protocol import FoundRequests
from kveik.cli.fleet_access import DEFAULT_CONFIG, Access, open_access
from kveik.cli.fsck import agent_settings
from kveik.clock import Deadline
from kveik.config import ConnectorSettings
from kveik.diagnose.funnel import used_tokens
from kveik.diagnose.funnel_report import Explained, chosen, explain, rows_of, values_of
from kveik.diagnose.request_ids import client_id
from kveik.errors import AgentError, ConfigError, KveikError
from kveik.router.request_book import RoutedRequest

HELP = "why one request found no more in the cache: its way from the prompt to the tokens that were used"

EPILOG = f"""\
  kveik explain request ID        the id that the client sent or got as X-Request-Id, or that of the answer
  kveik explain request --last 20 the latest requests: how many of their tokens were used

The engines of this node are asked through its agent, the routers over their addresses: those of --config, or of
{DEFAULT_CONFIG} if it is here. A request that another node's engine computed is explained there.

exit codes:
  0  explained
  1  no such request is remembered
  2  wrong use: a setting is not valid
  3  the node's agent did not answer
"""

EXPLAINED, NOT_REMEMBERED, WRONG_USE, AWAY = 0, 1, 2, 3
_ANSWER_S = 10.0
_WIDTH = 120


@dataclass(slots=True)
class Seen:
    """What agent and routers remember."""

    found: FoundRequests
    routed: list[RoutedRequest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="the request's id")
    parser.add_argument("--last", type=int, default=0, metavar="N", help="list the latest N instead")
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"configuration ({DEFAULT_CONFIG} if it is here)")
    parser.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    parser.add_argument("--router", action="append", default=[], metavar="URL", help="a router (as configured)")
    parser.add_argument("--token-file", default="", metavar="FILE", help="file with the routers' admission token")
    parser.add_argument("--socket", default="", metavar="PATH", help="the agent's socket (as configured)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Ask, explain, print."""
    if bool(args.id) == bool(args.last) or args.last < 0:
        print("kveik explain request: give an ID, or --last with a number above 0", file=sys.stderr)
        return WRONG_USE
    try:
        seen = look(args)
    except ConfigError as error:
        print(f"kveik explain request: {error}", file=sys.stderr)
        return WRONG_USE
    except KveikError as error:
        print(f"kveik explain request: {error}", file=sys.stderr)
        return AWAY
    for note in seen.notes:
        print(f"note: {note}", file=sys.stderr)
    return _list(seen, args.last, as_json=args.json) if args.last else _one(seen, args.id, as_json=args.json)


def look(args: argparse.Namespace) -> Seen:
    """Ask the agent and the routers. Raises :class:`ConfigError`, and :class:`AgentError` if no agent answers."""
    access = _access(args)
    seen = Seen(ask(args.socket or _socket(args, access)))
    if access is not None:
        try:
            seen.routed = [msgspec.convert(row, RoutedRequest) for row in access.routers.requests()]
        except (KveikError, msgspec.ValidationError) as error:
            seen.notes.append(f"no router told of its requests: {error}")
    return seen


def ask(socket: str) -> FoundRequests:
    """The latest requests of the node's engines. Raises :class:`AgentError`."""
    client = AgentClient.connect(socket, role="explain", deadline_s=_ANSWER_S, prefault=False)
    try:
        if not client.takes("FindRequests"):
            raise AgentError("this agent keeps no record of requests: it is of an earlier version")
        return client.find_requests(Deadline.after(_ANSWER_S))
    finally:
        client.close()


def _access(args: argparse.Namespace) -> Access | None:
    """The fleet, if one is named or configured here; a socket alone needs none."""
    if args.router or args.config or (DEFAULT_CONFIG.is_file() and not args.socket):
        return open_access(args, os.environ)
    return None


def _socket(args: argparse.Namespace, access: Access | None) -> str:
    configured = agent_settings(args).socket
    if configured or access is None or access.folder is None or not access.folder.agent_socket.exists():
        return configured
    return str(access.folder.agent_socket)


# -- one ------------------------------------------------------------------------------------------


def _one(seen: Seen, asked: str, *, as_json: bool) -> int:
    records = chosen(seen.found.requests, asked)
    routed = next((row for row in seen.routed if row.request_id == asked), None)
    if not records:
        print(f"kveik explain request: {_unknown(seen, asked, routed)}", file=sys.stderr)
        return NOT_REMEMBERED
    explained = [explain(record, seen.found.requests, seen.found.namespaces, routed) for record in records]
    if as_json:
        print(json.dumps({"requests": [values_of(one) for one in explained]}, indent=1))
        return EXPLAINED
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for one in explained:
        _show(console, one)
    return EXPLAINED


def _unknown(seen: Seen, asked: str, routed: RoutedRequest | None) -> str:
    if routed is None:
        return (
            f"no request {asked} is remembered here: the agent keeps the latest {len(seen.found.requests)}; "
            "agent.funnel_requests says how many it may keep"
        )
    if routed.outcome != "ok" and not routed.engine:
        return f"the router sent {asked} to no engine ({routed.outcome}, HTTP {routed.status}: {routed.reason})"
    return (
        f"the router sent {asked} to {routed.engine}, of which this node's agent has no record: ask on its node; or "
        f"the engine runs without Kveik, or keeps no records (connector.funnel_requests is "
        f"{ConnectorSettings().funnel_requests} by default)"
    )


def _show(console: Console, one: Explained) -> None:
    record = one.record
    ago_s = max(0.0, time.time() - record.began_s)
    console.print(
        f"request {client_id(record.request_id)} at {record.engine or 'an engine'} (pid {record.engine_pid}), "
        f"{ago_s:.0f} s ago: {used_tokens(record)} of {record.prompt_tokens} prompt tokens came from a cache",
        highlight=False, markup=False,
    )  # fmt: skip
    table = Table("stage", "tokens", "lost", "what is counted")
    table.columns[1].justify = table.columns[2].justify = "right"
    for row in rows_of(one):
        table.add_row(*row)
    console.print(table)
    console.print(one.cause.sentence, highlight=False, markup=False)
    for note in one.notes:
        console.print(f"- {note}", highlight=False, markup=False)


# -- many -----------------------------------------------------------------------------------------


def _list(seen: Seen, count: int, *, as_json: bool) -> int:
    records: Sequence[RequestFunnel] = seen.found.requests[-count:]
    explained = [explain(record, seen.found.requests, seen.found.namespaces) for record in records]
    if as_json:
        print(json.dumps({"requests": [values_of(one) for one in explained]}, indent=1))
        return EXPLAINED if records else NOT_REMEMBERED
    if not records:
        print("kveik explain request: the agent remembers no request yet", file=sys.stderr)
        return NOT_REMEMBERED
    table = Table("request", "ago", "prompt", "used", "lost at", "because of")
    table.columns[0].overflow = "fold"
    now_s = time.time()
    for one in reversed(explained):
        record = one.record
        table.add_row(
            client_id(record.request_id),
            f"{max(0.0, now_s - record.began_s):.0f} s",
            str(record.prompt_tokens),
            str(used_tokens(record)),
            one.ate or "-",
            one.cause.code,
        )
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
    return EXPLAINED
