"""``kveik cache warm``: send prompts through the fleet, so that their blocks are there before the working day."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kveik.agent.client import AgentClient
from kveik.byte_size import size_text
from kveik.cli.fleet_access import DEFAULT_CONFIG
from kveik.cli.fsck import Ticker, agent_settings, config_file
from kveik.clock import Deadline
from kveik.config import RouterSettings, load
from kveik.engine.client import EngineClient
from kveik.engine.warming import Warming, WarmProgress, WarmRequest, read_prompts, read_requests
from kveik.errors import AgentError, ConfigError

EPILOG = """\
FILE is a text, which is one prompt (with --lines, each line is one), or JSON Lines (*.jsonl): each line a text, a list
of token ids, or a request with "messages" or "prompt" as for the API; "-" reads JSON Lines from standard input. Each
is sent with max_tokens 1: the prompt is computed and stored, or found in the cache and loaded. What was written to the
cache is told by this node's agent, if it answers.

The key for the router or engine comes from KVEIK_API_KEY.

exit codes:
  0  all were answered
  1  some requests failed
  2  wrong use: the file is empty or no line of it a prompt
  3  neither router nor engine answered
"""

_LOOK_S = 5.0


def add_warm(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "warm",
        help="compute prompts of a file, or load them, before somebody asks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="prompts, see below")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--router", default="", metavar="URL", help="the router to send them through (as configured)")
    where.add_argument("--engine", default="", metavar="URL", help="one engine to send them to")
    parser.add_argument(
        "--model", default="", metavar="NAME", help="model to name in requests that name none (the first)"
    )
    parser.add_argument("--lines", action="store_true", help="each line of a text is a prompt of its own")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="requests under way at a time (1)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="longest wait for one answer (300)")
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"configuration ({DEFAULT_CONFIG} if it is here)")
    parser.add_argument("--socket", default="", metavar="PATH", help="the agent's socket")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.set_defaults(do=_warm)


def _warm(args: argparse.Namespace) -> int:
    if not 1 <= args.concurrency <= 1024:
        raise ConfigError(f"--concurrency is {args.concurrency}, expected 1 to 1024")
    requests = _requests(args.file, lines=args.lines)
    key = os.environ.get("KVEIK_API_KEY", "")
    client = EngineClient(_url(args), read_timeout_s=args.timeout, api_key=key)
    model = args.model or client.model().name
    socket = args.socket or agent_settings(args).socket
    before = _stored(socket)
    ticker = Ticker()
    try:
        result = Warming(
            client, model, concurrency=args.concurrency, tell=lambda progress: ticker.tell(_line(progress))
        ).run(requests)
    finally:
        ticker.end()
    _show(result, before, _stored(socket), as_json=args.json)
    return 0 if result.done == result.requests else 1


def _requests(file: str, *, lines: bool) -> Sequence[WarmRequest]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    structured = file == "-" or Path(file).suffix in (".jsonl", ".ndjson")
    try:
        requests = read_requests(text) if structured else read_prompts(text, whole=not lines)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    if not requests:
        raise ConfigError(f"{file} holds no prompt")
    return requests


def _url(args: argparse.Namespace) -> str:
    if args.engine or args.router:
        return str(args.engine or args.router)
    settings = load(RouterSettings, file=config_file(args), environ=os.environ)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _stored(socket: str) -> dict[str, int] | None:
    """What the agent has counted so far; None where none answers."""
    try:
        client = AgentClient.connect(socket, role="cache", deadline_s=_LOOK_S, prefault=False)
        try:
            counters: dict[str, int] = client.stats(Deadline.after(_LOOK_S))["counters"]
        finally:
            client.close()
    except AgentError:
        return None
    return counters


def _line(progress: WarmProgress) -> str:
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.done} of {progress.requests} answered{failed}, {progress.prompt_tokens} prompt tokens"


def _show(result: WarmProgress, before: dict[str, int] | None, after: dict[str, int] | None, *, as_json: bool) -> None:
    known = before is not None and after is not None
    stored = {
        what: after.get(f"arena.put_{what}", 0) - before.get(f"arena.put_{what}", 0)
        for what in ("blocks", "bytes")
        if before is not None and after is not None
    }
    if as_json:
        document: dict[str, Any] = {
            "requests": result.requests,
            "answered": result.done,
            "failed": list(result.failures),
            "prompt_tokens": result.prompt_tokens,
            "cached_tokens": result.cached_tokens,
            "computed_tokens": result.computed_tokens,
            "stored": stored if known else None,
            "seconds": round(result.seconds, 3),
        }
        print(json.dumps(document, indent=1))
        return
    print(
        f"{result.done} of {result.requests} answered in {result.seconds:.1f} s: {result.prompt_tokens} prompt tokens,"
        f" {result.cached_tokens} of them already there, {result.computed_tokens} computed"
    )
    if result.done and result.silent == result.done:
        print("no answer told of cached tokens: there were none, or engines lack --enable-prompt-tokens-details")
    if known:
        print(f"this node's agent stored {stored['blocks']} blocks, {size_text(stored['bytes'])}, meanwhile")
    for failure in result.failures[:10]:
        print(f"failed: {failure}", file=sys.stderr)
