"""The options that all benchmarks with engines share, and the frame around a run."""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from benchmarks.machine import QUIET_CORES, ROOT, ForeignLoad, describe, wait_quiet
from benchmarks.result import Claim, Group, Result, Round
from benchmarks.rig import RigSpec
from benchmarks.show import plot, print_result

LENGTHS = (512, 1024, 2048, 4096, 7000)


def parser(text: str, *, rounds: int, engine_environment: str = ".venv-vllm") -> argparse.ArgumentParser:
    """The options; a benchmark may add its own."""
    python = ROOT / engine_environment / "bin" / "python"
    model = ROOT / ".kveik" / "models" / "smollm2-135m-instruct"
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine-python", default=str(python), help="interpreter that has vLLM and Kveik")
    options.add_argument("--model", type=Path, default=model, help="model folder")
    options.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="core that engines compute on")
    options.add_argument("--seed", type=int, default=1, help="of the prompts")
    recorder_options(options, rounds)
    return options


def recorder_options(options: argparse.ArgumentParser, rounds: int) -> None:
    """The options that a :class:`Recorder` reads, and the number of rounds."""
    options.add_argument("--rounds", type=int, default=rounds, help="rounds; claims are judged on their median")
    options.add_argument("--json", type=Path, help="file for the result")
    options.add_argument("--plot", type=Path, help="PNG file for a picture of it")
    options.add_argument(
        "--wait-quiet", type=float, default=0.0, metavar="SECONDS", help="wait this long before each round for others"
    )


def lengths_option(options: argparse.ArgumentParser, lengths: Sequence[int] = LENGTHS) -> None:
    """The option that chooses prompt lengths."""
    options.add_argument("--tokens", type=int, nargs="+", default=list(lengths), help="prompt lengths")


def rig_spec(given: argparse.Namespace) -> RigSpec:
    """What the options say about engines."""
    return RigSpec(model=given.model.resolve(), engine_python=given.engine_python, dtype=given.dtype, core=given.core)


def say(text: str) -> None:
    """One line of progress."""
    print(f"{datetime.now().astimezone():%H:%M:%S} {text}", flush=True)


class Recorder:
    """Collects rounds, with what others did to the machine meanwhile, and writes the result."""

    def __init__(self, benchmark: str, question: str, given: argparse.Namespace) -> None:
        self._benchmark = benchmark
        self._question = question
        self._given = given
        self._groups: dict[str, Group] = {}
        self._started = now()
        self._load_average = os.getloadavg()[0]

    @contextmanager
    def round(self, group: str, *, unit: str = "s", tokens: int = 0) -> Iterator[Round]:
        """One round of a group: the caller adds the samples of each side."""
        with self.rounds({group: unit}, tokens=tokens) as rounds:
            yield rounds[group]

    @contextmanager
    def rounds(self, units: Mapping[str, str], *, tokens: int = 0) -> Iterator[dict[str, Round]]:
        """One round of several groups (with their units) that are measured together."""
        if self._given.wait_quiet and not wait_quiet(self._given.wait_quiet):
            say(f"others still take more than {QUIET_CORES} cores; measuring anyway")
        load = ForeignLoad()
        rounds = {group: Round() for group in units}
        yield rounds
        foreign_cores = round(load.cores(), 3)
        for group, one in rounds.items():
            if one.samples:
                self._keep(group, units[group], tokens, msgspec.structs.replace(one, foreign_cores=foreign_cores))

    def _keep(self, group: str, unit: str, tokens: int, one: Round) -> None:
        self._groups.setdefault(group, Group(name=group, unit=unit, rounds=[], tokens=tokens)).rounds.append(one)
        shown = ", ".join(f"{label} {min(values):.3f}..{max(values):.3f}" for label, values in one.samples.items())
        say(f"{group}: {shown} {unit}; others took {one.foreign_cores:.2f} cores")

    @contextmanager
    def writing(self, conditions: dict[str, str], claims: list[Claim]) -> Iterator[None]:
        """Print the result at the end and write the files that the options name.

        When something fails or a person stops it, that is done with the rounds there are, which says so.
        """
        try:
            yield
        except BaseException as error:
            self._write({**conditions, "cut short": f"{type(error).__name__}, after the rounds below"}, claims)
            raise
        self._write(conditions, claims)

    def _write(self, conditions: dict[str, str], claims: list[Claim]) -> None:
        if not self._groups:
            return
        result = Result(
            benchmark=self._benchmark,
            question=self._question,
            conditions=conditions,
            machine=describe(self._given.engine_python),
            started=self._started,
            finished=now(),
            load_average_before=round(self._load_average, 2),
            groups=list(self._groups.values()),
            claims=[claim for claim in claims if claim.group in self._groups],
        )
        if self._given.json:
            self._given.json.parent.mkdir(parents=True, exist_ok=True)
            self._given.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        if self._given.plot:
            plot(result, self._given.plot)
        print_result(result)


def now() -> str:
    """The time of day, with its zone, to the minute."""
    return datetime.now().astimezone().isoformat(timespec="minutes")
