"""``kveik roll``: restart or upgrade a fleet's engines one after the other without a lost request."""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kveik.cli.fleet_access import Access, Say, add_access, kept_by, open_access, rolled_engines, sayer
from kveik.errors import ConfigError, FleetError, KveikError, SuperviseError
from kveik.launch.keepers import CommandKeeper, Keeper, SupervisedKeeper
from kveik.launch.roll import Roll
from kveik.launch.roll_order import Interruption, Outcome, Proof, Question, RollOptions, Told
from kveik.launch.roll_plan import Rolled, RollPlan, Stage, in_words, plan_roll
from kveik.launch.roll_state import RollNotebook
from kveik.telemetry.events import EventLog
from kveik.verify.rolled import prove_rolled, subject

EPILOG = """\
Each engine is drained, restarted with what the configuration says now, asked for a real inference, warmed up and
readmitted before the next is touched. The first engine of a new version (configuration, vLLM, or KV namespace) must
prove its cache hits, as kveik verify does. A step that fails ends the roll: all others go on serving. Ctrl-C puts the
engine in hand back, or finishes it; a second Ctrl-C leaves it as it is. The next kveik roll goes on from there.

exit codes:
  0  all engines are rolled; with --dry-run: this is the plan
  1  a step failed: the message says what state things are in and how to go back
  2  wrong use: an unknown engine, or an argument or setting that is not valid
  3  it could not begin: no router or no supervisor answered, or another roll is at work
"""

#: Steps that may take long.
_LONG = (Stage.DRAIN, Stage.ANSWER, Stage.VERIFY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="which; default: all of this node")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and change nothing")
    parser.add_argument("--anew", action="store_true", help="forget how far an earlier roll came")
    parser.add_argument("--ready-min", type=int, metavar="N", help="engines that stay in the pool (fleet.ready_min)")
    parser.add_argument("--wait", type=float, metavar="S", help="how long requests may go on (fleet.drain_s)")
    parser.add_argument(
        "--no-verify", action="store_true", help="let a new version serve unproved: wrong cache hits go unseen"
    )
    add_access(parser)


def run(args: argparse.Namespace) -> int:
    """Roll; the exit code says what came of it."""
    say = sayer(as_json=args.json)
    try:
        access = open_access(args)
        options = _options(args, access)
        engines = _known(rolled_engines(access), access, args.engines)
        assert access.folder is not None
        with RollNotebook(access.folder.root / "roll.json") as notebook:
            before = None if args.anew else notebook.read()
            plan = plan_roll(engines, args.engines, options.config, before)
            if args.dry_run:
                print("\n".join(in_words(plan, ready_min=options.ready_min, drain_s=options.drain_s)))
                return 0
            access.routers.look()  # who cannot be asked now cannot drain anything later
            return _carry_out(args, access, plan, options, notebook, say)
    except ConfigError as error:
        print(f"kveik roll: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik roll: {error}", file=sys.stderr)
        return 3


def _options(args: argparse.Namespace, access: Access) -> RollOptions:
    if access.spec is None or access.config is None:
        raise ConfigError("a roll restarts engines as a configuration says: give it with --config FILE")
    ready_min = access.spec.settings.ready_min if args.ready_min is None else args.ready_min
    drain_s = access.drain_s if args.wait is None else args.wait
    if ready_min < 0 or drain_s < 0:
        raise ConfigError(f"--ready-min is {ready_min} and --wait {drain_s:g}, expected 0 or more")
    return RollOptions(
        ready_min=ready_min,
        drain_s=drain_s,
        config=hashlib.sha256(access.config.read_bytes()).hexdigest()[:16],
        asked=tuple(args.engines),
        api_key=os.environ.get("KVEIK_ENGINE_API_KEY", ""),
    )


def _known(engines: Sequence[Rolled], access: Access, asked: Sequence[str]) -> list[Rolled]:
    """Those that somebody can restart. Raises :class:`SuperviseError` if that is nobody."""
    control = access.control
    found = [engine for engine in engines if engine.command or kept_by(control, engine.name)]
    missing = [engine.name for engine in engines if engine not in found and (engine.name in asked or not found)]
    if missing and control is None:
        raise SuperviseError(f"no supervisor keeps {', '.join(missing)}: is the fleet up on this node (kveik up)?")
    if missing:
        raise SuperviseError(f"the supervisor does not keep {', '.join(missing)}: kveik up starts what is new")
    return found


def _carry_out(
    args: argparse.Namespace, access: Access, plan: RollPlan, options: RollOptions, notebook: RollNotebook, say: Say
) -> int:
    for note in plan.notes:
        say(note)
    control = access.control
    supervised = SupervisedKeeper(control, str(access.config)) if control is not None else None
    commands = CommandKeeper()

    def keeper_of(engine: Rolled) -> Keeper:
        return commands if engine.command or supervised is None else supervised

    interruption = Interruption()
    with _interrupted_by_signals(interruption, say):
        roll = Roll(
            access.routers,
            keeper_of,
            _prover(options.api_key, wanted=not args.no_verify),
            options,
            notebook,
            _teller(say, as_json=args.json),
            interruption,
        )
        try:
            outcome = roll.run(plan)
        except KeyboardInterrupt:
            say("left as it is; the next kveik roll goes on with it", state="left")
            return 130
        except FleetError as error:
            say(f"the roll ended: {error}", state="failed")
            return 1
    _remember(outcome, access.events)
    return _conclude(outcome, say)


def _remember(outcome: Outcome, events: EventLog | None) -> None:
    """Events for those who were not there."""
    if events is None:
        return
    for line in outcome.advice:
        events.tell("roll", outcome.failed, line)
    if not outcome.failed:
        ended = f"interrupted, without {', '.join(outcome.left)}" if outcome.interrupted else "done"
        events.tell("roll", "fleet", f"the roll is {ended}: {', '.join(outcome.rolled) or 'no engine'} rolled")


def _conclude(outcome: Outcome, say: Say) -> int:
    fields: dict[str, Any] = {
        "rolled": list(outcome.rolled),
        "left": list(outcome.left),
        "failed": outcome.failed,
        "seconds": round(outcome.seconds, 3),
    }
    for line in outcome.advice:
        say(line)
    if outcome.failed:
        say(f"the roll stopped at {outcome.failed}", state="failed", **fields)
        return 1
    if outcome.interrupted:
        say(f"interrupted; not rolled: {', '.join(outcome.left)}", state="interrupted", **fields)
        return 130
    say(f"{len(outcome.rolled)} engines are rolled, in {outcome.seconds:.0f} s", state="done", **fields)
    return 0


def _teller(say: Say, *, as_json: bool) -> Callable[[Told], None]:
    """Programs hear everything, people what a step came to, and that a long one began."""

    def tell(told: Told) -> None:
        if not as_json and told.state == "began" and told.stage not in _LONG:
            return
        word = f"done, {told.seconds:.1f} s" if told.state == "done" else told.state
        text = told.told if told.state == "note" else f"{word}{f': {told.told}' if told.told else ''}"
        fields = {**dataclasses.asdict(told), "stage": told.stage.value, "seconds": round(told.seconds, 3)}
        fields["note"] = fields.pop("told")
        say(f"{told.engine}: {told.stage.value}: {text}", **fields)

    return tell


def _prover(api_key: str, *, wanted: bool) -> Callable[[Question], Proof]:
    def prove(question: Question) -> Proof:
        if not wanted:
            question.say("left out, as --no-verify says")
            return Proof(True, "it serves unproved")
        new = subject("the new engine", question.new, api_key)
        other = subject("the fleet's engine", question.other, api_key) if question.other else None
        proved = prove_rolled(new, other, question.restart, question.say)
        return Proof(proved.holds, proved.told)

    return prove


@contextlib.contextmanager
def _interrupted_by_signals(interruption: Interruption, say: Say) -> Iterator[None]:
    """The first signal asks the roll to end, the second one ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(*_: object) -> None:
        if interruption.asked:
            raise KeyboardInterrupt
        interruption.ask()
        say("interrupted: the engine in hand is put back, or finished; once more to leave it as it is")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
