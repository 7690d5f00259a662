"""``kveik breakeven``: from which prompt length on loading beats computing, for each tier, and what that saved."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kveik.agent.client import AgentClient
from kveik.bench.breakeven import LENGTHS, Crossing, EngineCurves, Gain, document, engines, gains
from kveik.clock import Deadline
from kveik.errors import KveikError

EPILOG = """\
A cache may cost more than it saves. Figures from a fleet: a prefix of 2,000 tokens took 30 s to read from a slow NFS
mount and 5 s to compute again; elsewhere hits went from 4.4 to 6.7 s where computing went from 7.5 to 27.2 s as prompts
grew. Where the two meet depends on the tier, the model and the load, so engines and agent measure both all the time:
reads of each tier by their size, and the engine's steps by their tokens and by what these attend to. An engine loads
what that says is faster, and computes the rest (connector.load_choice).

The table gives for each prompt length the seconds to compute it and to load it from each tier, as learned, and for each
tier the length from which on loading is faster: as expected, and between best and worst (one standard deviation of
both). Saved are engine-seconds of computing that loads made unnecessary, less the time they took; lost is where they
took longer. Both count from the agent's start.

An engine tells the agent what it learned together with its lookups: ask again after it had some long prompts.

exit codes:
  0  shown
  1  nothing was learned yet: no engine has computed and looked up enough
  2  wrong use
  3  could not be done: no agent answered, or the plot could not be written; the message says why
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--socket", default="", metavar="PATH", help="the agent's socket (in the runtime directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curves of the first engine into this file")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="how long to wait for the agent (5)")


def run(args: argparse.Namespace) -> int:
    """Ask the agent, compute and print."""
    try:
        state = _state(args.socket, args.timeout)
    except KveikError as error:
        print(f"kveik breakeven: {error}", file=sys.stderr)
        return 3
    known = engines(state)
    if args.json:
        print(json.dumps(document(state), indent=1))
    else:
        console = Console()
        for table in [*map(curve_table, known), *([gain_table(gains(state))] if gains(state) else [])]:
            console.print(table)
    if not known:
        print("kveik breakeven: no engine of this agent has learned enough yet; ask again later", file=sys.stderr)
        return 1
    return 0 if args.plot is None else _plot(known[0], args.plot)


def _state(socket: str, timeout_s: float) -> dict[str, Any]:
    client = AgentClient.connect(socket, role="breakeven", deadline_s=timeout_s, prefault=False)
    try:
        return client.stats(Deadline.after(timeout_s))
    finally:
        client.close()


def _plot(engine: EngineCurves, file: Path) -> int:
    try:
        from kveik.bench.breakeven_plot import draw
    except ImportError:
        print("kveik breakeven: --plot needs matplotlib: pip install 'kveik[plot]'", file=sys.stderr)
        return 3
    try:
        draw(engine, file)
    except OSError as error:
        print(f"kveik breakeven: cannot write {file}: {error.strerror}", file=sys.stderr)
        return 3
    print(f"drawn: {file}", file=sys.stderr)
    return 0


def curve_table(engine: EngineCurves) -> Table:
    """Seconds by prompt length, and where loading begins to pay."""
    table = Table(title=f"{engine.label}, process {engine.pid}", title_justify="left")
    for header in ("prompt", "computed", *(f"from {tier}" for tier in engine.loads)):
        table.add_column(header, justify="right")
    for tokens in LENGTHS:
        cold_s = engine.compute.at(tokens)
        loads = [_seconds(curve.at(tokens), mark=curve.at(tokens) < cold_s) for curve in engine.loads.values()]
        table.add_row(f"{tokens:,}", _seconds(cold_s), *loads)
    table.add_section()
    table.add_row("pays from", "", *(crossing_text(found) for found in engine.crossings().values()))
    spreads = [f"±{100 * curve.sigma:.0f} %" for curve in engine.loads.values()]
    table.add_row("uncertain by", f"±{100 * engine.compute.sigma:.0f} %", *spreads)
    return table


def crossing_text(found: Crossing) -> str:
    """A crossing for people."""
    if found.tokens is None:
        return "never" if found.low is None else f"never; at best {found.low:,}"
    if found.high is not None and found.high <= LENGTHS[0]:
        return "any length"
    high = "never" if found.high is None else f"{found.high:,}"
    low = f"{found.low:,}" if found.low is not None else "?"
    return f"{found.tokens:,} ({low} to {high})"


def gain_table(found: list[Gain]) -> Table:
    """What the cache was worth, by tier."""
    table = Table(title="engine-seconds since the agent's start", title_justify="left")
    for header in ("tier", "tokens loaded", "saved", "lost", "in all"):
        table.add_column(header, justify="left" if header == "tier" else "right")
    for gain in found:
        net_s = gain.saved_s - gain.lost_s
        table.add_row(gain.tier, f"{gain.tokens:,}", f"{gain.saved_s:.1f} s", f"{gain.lost_s:.1f} s", f"{net_s:+.1f} s")
    return table


def _seconds(seconds: float, *, mark: bool = False) -> str:
    text = f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"[green]{text}[/green]" if mark else text
