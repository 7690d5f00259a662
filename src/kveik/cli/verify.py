"""``kveik verify``: prove on real engines that a hit from the shared cache gives what a cold run gives."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from kveik.agent.tiers import tier_names
from kveik.cli.progress import progress_printer
from kveik.config import AgentSettings, load, load_stores
from kveik.engine.client import EngineClient, warm_up
from kveik.errors import ConfigError, EngineError, KveikError, VerifyError
from kveik.verify import report
from kveik.verify.legs import Leg, Mode
from kveik.verify.prompts import LANGUAGES
from kveik.verify.proof import Say, Subject
from kveik.verify.testbed import DTYPE_BYTES
from kveik.verify.trial import Outcome, TrialOptions, prove, prove_started

HOLDS, DOES_NOT_HOLD, WRONG_USE, NOT_CARRIED_OUT = 0, 1, 2, 3

EPILOG = """\
exit codes:
  0  every leg was carried out (but for those left out with --skip) and holds
  1  something does not hold: do not serve from this cache
  2  wrong use: unknown or contradicting arguments
  3  the proof could not be carried out: an engine is away, busy or lacks what a leg needs
"""

_SKIPPABLE = ("local", "reset", "other", "restart", "read-back")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    what = parser.add_argument_group("engines: either running ones or our own")
    what.add_argument("--engine", metavar="URL", action="append", default=[], help="a running engine; once or twice")
    what.add_argument("--restart-command", metavar="CMD", help="shell command that kills -9 and restarts the first one")
    what.add_argument("--start", action="store_true", help="start an agent and two engines, and stop them again")
    what.add_argument(
        "--nodes", type=int, choices=(1, 2), default=1, help="with --start: 2 gives each engine an agent of its own"
    )
    what.add_argument(
        "--store-config",
        type=Path,
        metavar="FILE",
        help="with --start: TOML file whose sections [mooncake], [yuanrong], [redis] or [agent] name the stores "
        "of the agents; default: a folder",
    )
    what.add_argument("--model", type=Path, metavar="DIR", help="with --start: the model's folder")
    what.add_argument("--engine-python", metavar="PATH", help="with --start: a Python that has vLLM and Kveik")
    how = parser.add_argument_group("what to do")
    how.add_argument(
        "--dtype", choices=sorted(DTYPE_BYTES), default="", help="of the engine; default: ask it, or float32"
    )
    how.add_argument(
        "--lengths", type=_lengths, default=(), metavar="N,N", help="prompt lengths; default: around edges"
    )
    how.add_argument("--language", choices=LANGUAGES, action="append", help="of the prompts; default: all")
    how.add_argument("--mode", choices=[mode.value for mode in Mode], action="append", help="default: both")
    how.add_argument("--skip", choices=_SKIPPABLE, action="append", default=[], help="leave out a leg or a check")
    how.add_argument("--answer-tokens", type=int, default=16, metavar="N", help="length of each answer (16)")
    how.add_argument("--block-tokens", type=int, default=0, metavar="N", help="hit unit; default: ask the engine")
    how.add_argument("--window-tokens", type=int, default=0, metavar="N", help="sliding window, to test around it")
    how.add_argument("--seed", type=int, default=1, metavar="N", help="of the prompts (1)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead of the table")
    # For tests: the connector damages what it saves, under a valid checksum.
    parser.add_argument("--plant-fault", default="", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Carry out the proof and print it; the exit code says what came of it."""
    say = progress_printer()
    try:
        outcome = _prove(args, say)
    except ConfigError as error:
        print(f"kveik verify: {error}", file=sys.stderr)
        return WRONG_USE
    except KveikError as error:
        print(f"kveik verify: the proof could not be carried out: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if args.json:
        print(json.dumps(report.document(outcome.verdict, outcome.about), indent=1, ensure_ascii=False))
    else:
        # A file or pipe has no width; the table needs this much.
        Console(width=None if sys.stdout.isatty() else report.WIDTH).print(report.table(outcome.verdict))
    return HOLDS if outcome.verdict.holds else DOES_NOT_HOLD


def _prove(args: argparse.Namespace, say: Say) -> Outcome:
    options = TrialOptions(
        dtype=args.dtype,
        lengths=args.lengths,
        languages=tuple(args.language or LANGUAGES),
        modes=tuple(Mode(mode) for mode in dict.fromkeys(args.mode or [mode.value for mode in Mode])),
        skipped=tuple(leg for leg in Leg if leg.value in args.skip),
        read_back="read-back" not in args.skip,
        answer_tokens=args.answer_tokens,
        block_tokens=args.block_tokens,
        window_tokens=args.window_tokens,
        seed=args.seed,
    )
    _check_use(args, options)
    if args.start:
        return prove_started(
            args.model.resolve(),
            args.engine_python,
            sys.executable,
            options,
            say,
            plant_fault=args.plant_fault,
            nodes=args.nodes,
            store_config=args.store_config.resolve() if args.store_config else None,
        )
    subjects = [_subject(f"engine {number}", url) for number, url in enumerate(args.engine, 1)]
    first = subjects[0]
    if args.restart_command:
        first = Subject(first.name, first.client, first.model, lambda: _restart(first, args.restart_command))
    return prove(first, subjects[1] if len(subjects) > 1 else None, options, say)


def _check_use(args: argparse.Namespace, options: TrialOptions) -> None:
    if args.start == bool(args.engine):
        raise ConfigError("give either --engine URL (once or twice) or --start")
    if args.start and not (args.model and args.engine_python):
        raise ConfigError("--start needs --model and --engine-python")
    if args.start and (args.restart_command or "read-back" in args.skip):
        raise ConfigError("--restart-command and --skip read-back are for running engines")
    if not args.start and (args.nodes > 1 or args.store_config):
        raise ConfigError("--nodes and --store-config are for --start")
    if args.store_config:
        _check_stores(args.store_config)
    if len(args.engine) > 2:
        raise ConfigError(f"{len(args.engine)} engines given, expected one or two")
    if args.plant_fault and not args.start:
        raise ConfigError("--plant-fault needs --start")
    if options.answer_tokens < 1:
        raise ConfigError(f"--answer-tokens is {options.answer_tokens}, expected at least 1")
    if not any(leg.external for leg in options.legs):
        raise ConfigError("every leg that uses the shared cache is left out: nothing could be proved")


def _check_stores(file: Path) -> None:
    """Raises ConfigError for a file without any store, before engines are started for it."""
    agent = load(AgentSettings, file=file)
    if not tier_names(agent, load_stores(file=file)):
        raise ConfigError(
            f"--store-config {file} names no store: set mooncake.master, yuanrong.worker, redis.address "
            "or agent.filesystem"
        )


def _subject(name: str, url: str) -> Subject:
    client = EngineClient(url)
    return Subject(name, client, client.model().name)


def _restart(subject: Subject, command: str, timeout_s: float = 600.0) -> None:
    """Run the user's restart command and wait for a real inference. Raises VerifyError."""
    done = subprocess.run(["/bin/sh", "-c", command], check=False)
    if done.returncode != 0:
        raise VerifyError(f"the restart command ended with code {done.returncode}")
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            warm_up(subject.client, subject.model)
            return
        except EngineError as error:
            if time.monotonic() > until_s:
                raise VerifyError(
                    f"{subject.name} does not serve {timeout_s:g} s after its restart: {error}"
                ) from error
            time.sleep(0.5)


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(int(part) for part in text.split(","))
    if min(lengths) < 2:
        raise argparse.ArgumentTypeError("prompts have at least 2 tokens")
    return lengths
