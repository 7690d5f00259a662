"""``kveik probe``: try on a running engine whether something really works."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kveik.cli.progress import progress_printer
from kveik.config import WAIT_MAX_S
from kveik.errors import ConfigError, KveikError, ProbeError

if TYPE_CHECKING:
    from kveik.diagnose.cache_probe import Target
    from kveik.doctor.log_file import GrowingLog

EPILOG = """\
It sends a long prompt that nobody sent before, pushes it out of the engine's own cache with unrelated prompts, sends it
again, and says by what was counted where the tokens were lost: not connected, not asked, no answer in time, not stored,
not found, found but nothing usable, not allowed (computing is faster), not loaded, slow, wrong; or that it works.

  kveik probe cache --engine http://127.0.0.1:8000
  kveik probe cache --engine http://a:8000 --engine http://b:8000      filled by the first, asked again on the second
  kveik probe cache --router http://127.0.0.1:8100                     the first two engines behind a router
  kveik probe cache --engine http://127.0.0.1:8000 --log engine.log    with what a connector tells in its log alone

It costs the engine as many tokens as its own cache holds (with two engines just four prompts). Use it while it is
idle: other traffic is noticed and said, but then the numbers are not the probe's alone. Its prompts are nobody else's:
what it leaves in the caches is never a hit for others. A key for the engines comes from KVEIK_ENGINE_API_KEY.

exit codes:
  0  it works: tokens came from the shared cache, sooner than computed, and the answer is the cold one
  1  it does not: the first line says where the tokens were lost
  2  wrong use: unknown or contradicting arguments
  3  it could not be carried out: an engine is away, or its cache cannot be pushed out in time
"""

WORKS, DOES_NOT, WRONG_USE, NOT_DONE = 0, 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("what", choices=["cache"], help="what to try")
    where = parser.add_argument_group("where: one engine, two engines, or those behind a router")
    where.add_argument("--engine", metavar="URL", action="append", default=[], help="an engine; once or twice")
    where.add_argument("--router", metavar="URL", default="", help="a router; its first two ready engines of one model")
    where.add_argument("--model", metavar="NAME", default="", help="with --router: the model (the first one)")
    how = parser.add_argument_group("how")
    how.add_argument("--prompt-tokens", type=int, default=0, metavar="N", help="length of the prompt (4096 if it fits)")
    how.add_argument("--answer-tokens", type=int, default=16, metavar="N", help="length of the answers compared (16)")
    how.add_argument(
        "--push-out",
        choices=["traffic", "reset"],
        default="traffic",
        help="how the engine's own cache is emptied: by unrelated prompts, or by a request that vLLM takes in "
        "development mode only (traffic)",
    )
    how.add_argument("--dtype", default="", help="of the engine, if it does not say: float32 is judged strictly")
    how.add_argument("--block-tokens", type=int, default=0, metavar="N", help="unit of hits (as the engine says)")
    how.add_argument("--limit", type=float, default=600.0, metavar="S", help="longest time for all of it (600)")
    how.add_argument("--log", type=Path, action="append", default=[], metavar="FILE", help="a log that grows meanwhile")
    how.add_argument(
        "--store-metrics", action="append", default=[], metavar="URL", help="where a store or cache server counts"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Probe and print; the exit code says what came of it."""
    try:
        return _probe(args)
    except ConfigError as error:
        print(f"kveik probe: {error}", file=sys.stderr)
        return WRONG_USE
    except KveikError as error:
        print(f"kveik probe: it could not be carried out: {error}", file=sys.stderr)
        return NOT_DONE


def _probe(args: argparse.Namespace) -> int:
    from kveik.diagnose.cache_probe import CacheProbe, ProbePlan
    from kveik.diagnose.cache_probe_report import lines_of, values_of
    from kveik.diagnose.cache_probe_verdict import judge

    _check_use(args)
    plan = ProbePlan(
        prompt_tokens=args.prompt_tokens,
        answer_tokens=args.answer_tokens,
        dtype=args.dtype,
        block_tokens=args.block_tokens,
        push_out=args.push_out,
        limit_s=args.limit,
    )
    targets = _targets(args)
    with _logs(args.log) as logs:
        probe = CacheProbe(plan, targets[0], targets[-1], progress_printer(), logs=logs)
        seen = probe.run()
    verdict = judge(seen)
    if args.json:
        print(json.dumps(values_of(seen, verdict, probe.course), indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines_of(seen, verdict, probe.course)))
    return WORKS if verdict.works else DOES_NOT


def _check_use(args: argparse.Namespace) -> None:
    if bool(args.engine) == bool(args.router):
        raise ConfigError("give either --engine URL (once or twice) or --router URL")
    if len(args.engine) > 2:
        raise ConfigError(f"{len(args.engine)} engines given, expected one or two")
    if args.model and not args.router:
        raise ConfigError("--model chooses engines behind a router: it needs --router")
    if args.prompt_tokens < 0 or args.block_tokens < 0:
        raise ConfigError("--prompt-tokens and --block-tokens are at least 1, or 0 to choose")
    if args.answer_tokens < 1:
        raise ConfigError(f"--answer-tokens is {args.answer_tokens}, expected at least 1")
    if not 0 < args.limit <= WAIT_MAX_S:
        raise ConfigError(f"--limit is {args.limit:g}, expected more than 0 and at most {WAIT_MAX_S:g} seconds")


def _targets(args: argparse.Namespace) -> "Sequence[Target]":
    """The engine to fill, and last the one to ask again. Raises ConfigError and ProbeError."""
    from kveik.diagnose.cache_probe import Target
    from kveik.engine.client import EngineClient

    key = os.environ.get("KVEIK_ENGINE_API_KEY", "")
    named = [(f"engine {number}", url) for number, url in enumerate(args.engine, 1)] if args.engine else _behind(args)
    pages = [page.removesuffix("/metrics") for page in args.store_metrics]
    return [Target(name, EngineClient(url).url, key, pages) for name, url in named]


def _behind(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The first two ready engines of one model behind a router."""
    from kveik.fleet.client import FleetClient

    engines = [engine for engine in FleetClient(args.router).status().engines if engine.state == "ready" and engine.url]
    wanted = args.model or next((model for engine in engines for model in engine.models), "")
    found = [(engine.id, engine.url) for engine in engines if not engine.models or wanted in engine.models]
    if not found:
        raise ProbeError(f"{args.router} has no engine that is ready{f' and serves {wanted}' if wanted else ''}")
    return found[:2]


@contextlib.contextmanager
def _logs(paths: Sequence[Path]) -> "Iterator[list[GrowingLog]]":
    from kveik.doctor.log_file import GrowingLog

    with contextlib.ExitStack() as stack:
        logs = []
        for path in paths:
            try:
                log = GrowingLog(path)
            except OSError as error:
                raise ConfigError(f"--log {path} cannot be read: {error.strerror or error}") from error
            stack.callback(log.close)
            logs.append(log)
        yield logs
