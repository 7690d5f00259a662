"""``kveik demo``: a fleet of two real engines with one cache; what that saves, and that it survives a kill."""

import argparse
import datetime
import importlib.util
import json
import sys
from pathlib import Path

from rich.console import Console

from kveik.bench import report
from kveik.bench.demo import Demonstrated, DemoPlan, demonstrate
from kveik.bench.machine import Machine, this_machine
from kveik.bench.workload import DEMO_LENGTHS
from kveik.cli.progress import progress_printer
from kveik.errors import KveikError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model's folder")
    parser.add_argument(
        "--engine-python", default=sys.executable, metavar="PATH", help="a Python that has vLLM and Kveik (this one)"
    )
    parser.add_argument(
        "--lengths", type=_lengths, default=DEMO_LENGTHS, metavar="N,N", help="prompt lengths in tokens"
    )
    parser.add_argument("--output", type=Path, default=Path("build/demo"), metavar="DIR", help="for plot and JSON")


def run(args: argparse.Namespace) -> int:
    """Demonstrate: 0 when all answers are equal and none failed, 1 when not, 3 when it could not be carried out."""
    say = progress_printer(sys.stdout)
    machine = this_machine()
    say(f"measuring on {machine}")
    plan = DemoPlan(
        model=args.model.resolve(),
        engine_python=args.engine_python,
        folder=(args.output / "fleet").resolve(),
        lengths=args.lengths,
    )
    try:
        found = demonstrate(plan, say)
    except KveikError as error:
        print(f"kveik demo: {error}", file=sys.stderr)
        return 3
    files = _write(found, args.output, machine, plan.model.name)
    say(f"written: {', '.join(map(str, files))}")
    Console().print(report.table(found.rows))
    print(report.conclusion(found.rows))
    print(report.survived(found.outage))
    return 0 if found.fine else 1


def _write(found: Demonstrated, folder: Path, machine: Machine, model: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC)
    results = folder / "ttft.json"
    results.write_text(json.dumps(report.document(found, machine, model, date), indent=1) + "\n", encoding="utf8")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed here", file=sys.stderr)
        return [results]
    from kveik.bench import plot

    plot.draw(found.rows, folder / "ttft.png", machine, model, date)
    return [results, folder / "ttft.png"]


def _lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers with commas") from None
    if lengths[0] < 2:
        raise argparse.ArgumentTypeError("prompts have at least 2 tokens")
    return lengths
