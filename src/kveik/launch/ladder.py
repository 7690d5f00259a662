"""The modes in which an engine may be started, from the one wanted to the simplest, and when a simpler one may help.

An engine whose compiled or graph mode does not start may well start without. The names of the modes are vLLM's
(``CUDAGraphMode`` in ``vllm/config/compilation.py``, 0.32); on CPU there are no graphs, only compiled and eager. Pure.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.config import EngineSettings
from kveik.errors import ConfigError

EAGER = "eager"
COMPILED = "compiled"
#: From the fastest to the simplest, as vLLM names them. FULL is a wish for graphs of all batches.
_GRAPHS = ("FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY", "PIECEWISE")
#: What each falls back to. Decode-only graphs need none of mixed batches, piecewise ones none of attention.
_SIMPLER_GRAPHS = {
    "FULL_AND_PIECEWISE": ("FULL_DECODE_ONLY", "PIECEWISE"),
    "FULL": ("FULL_DECODE_ONLY", "PIECEWISE"),
    "FULL_DECODE_ONLY": ("PIECEWISE",),
    "PIECEWISE": (),
}
#: vLLM's own choice where nothing is said, on devices that have graphs.
_DEFAULT_GRAPHS = "FULL_AND_PIECEWISE"


@dataclass(frozen=True, slots=True)
class Mode:
    """How far a model is compiled: a name for people, and all further arguments for vLLM that make it so."""

    name: str
    arguments: tuple[str, ...]


def alternatives(settings: EngineSettings, device: str, arguments: Sequence[str]) -> tuple[Mode, ...]:
    """The mode wanted, then simpler ones: all but the first are for an engine that did not start.

    ``device`` is ``cpu``, ``cuda`` or ``ascend``; ``arguments`` are the engine's further arguments as given, which
    the first mode keeps as they are. Without ``fall_back`` the first mode is the only one. Raises
    :class:`~kveik.errors.ConfigError` for a compilation config that is no JSON object.
    """
    given = _Given.read(arguments)
    if settings.mode == EAGER and not given.eager:
        return (Mode(EAGER, (*arguments, "--enforce-eager")),)
    wanted = given.wanted(device)
    first = Mode(_name(wanted), tuple(arguments))
    if not settings.fall_back or wanted == EAGER:
        return (first,)
    simpler = [Mode(_name(graphs), given.with_graphs(graphs)) for graphs in _SIMPLER_GRAPHS.get(wanted, ())]
    return (first, *simpler, Mode(EAGER, given.without_compilation()))


def _name(wanted: str) -> str:
    return wanted.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments, with those about compilation taken apart. ``level``: of optimization, empty if not given."""

    others: tuple[str, ...]
    config: Mapping[str, Any]
    level: str
    eager: bool

    @classmethod
    def read(cls, arguments: Sequence[str]) -> "_Given":
        others: list[str] = []
        config: dict[str, Any] = {}
        level, eager = "", False
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            option, path, value = _taken_apart(argument)
            if option == "--enforce-eager":
                eager = True
            elif option in {"--compilation-config", "-cc"}:
                _merge(config, _under(path, _next(rest) if value is None else value))
            elif option == "--optimization-level":
                level = _next(rest) if value is None else value
            else:
                others.append(argument)
        return cls(tuple(others), config, level, eager)

    def wanted(self, device: str) -> str:
        """The mode that these arguments ask for."""
        without = str(self.config.get("mode", "")).upper() in {"0", "NONE"}
        if self.eager or self.level == "0" or (without and device == "cpu"):
            return EAGER
        if device == "cpu":
            return COMPILED
        default = "PIECEWISE" if self.level == "1" else _DEFAULT_GRAPHS
        graphs = str(self.config.get("cudagraph_mode") or default).upper()
        if graphs in _GRAPHS:
            return graphs
        return EAGER if without else COMPILED  # NONE: compiled, without graphs

    def with_graphs(self, graphs: str) -> tuple[str, ...]:
        """The same, with other graphs."""
        config = json.dumps({**self.config, "cudagraph_mode": graphs}, separators=(",", ":"))
        level = ("--optimization-level", self.level) if self.level else ()
        return (*self.others, *level, "--compilation-config", config)

    def without_compilation(self) -> tuple[str, ...]:
        """The same, without compilation and graphs: what was said about them would contradict it."""
        return (*self.others, "--enforce-eager")


def _taken_apart(argument: str) -> tuple[str, str, str | None]:
    """Option, dotted path under it and value of one argument, as vLLM reads them (``-O3``, ``-cc.mode=0``)."""
    short = re.fullmatch(r"-O=?(\d?)", argument)
    if short:
        return "--optimization-level", "", short[1] or None
    name, equals, value = argument.partition("=")
    option, _, path = name.partition(".")
    if option.startswith("--"):
        option = option.replace("_", "-")
    return option, path, value if equals else None


def _next(rest: list[str]) -> str:
    return rest.pop(0) if rest else ""


def _under(path: str, text: str) -> dict[str, Any]:
    """The compilation config in one argument: a JSON object, or the value of one dotted name."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not path and not isinstance(value, dict):
        raise ConfigError(f"arguments: --compilation-config is {text!r}, expected a JSON object")
    for name in reversed(path.split(".") if path else []):
        value = {name: value}
    return dict(value)


def _merge(config: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        known = config.get(name)
        if isinstance(known, dict) and isinstance(value, Mapping):
            _merge(known, value)
        else:
            config[name] = value


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why an engine did not start: in words, and whether a simpler mode may help."""

    simpler_may_help: bool
    reason: str


# What no simpler mode repairs: how we call it, and what vLLM, Python and the kernel write.
_NOT_THE_MODE = {
    "its port is taken": (r"ddress already in use", r"\[Errno 98\]"),
    "its model is missing or not whole": (
        r"Repo id must (?:use|be)",
        r"Repository Not Found",
        r"does not appear to have a file named",
        r"couldn't connect to 'https://huggingface",
        r"Invalid repository ID or local directory",
        r"Can't load (?:the configuration|tokenizer)",
        r"Cannot find any model weights",
        r"No such file or directory: '[^']*(?:config\.json|\.safetensors)",
    ),
    "vLLM refuses an argument": (r"error: unrecognized arguments", r"error: argument ", r"error: ambiguous option"),
    "its KV cache does not fit": (
        r"No available memory for the cache blocks",
        r"larger than the available KV cache",
    ),
    "something else uses the device's memory": (r"is less than desired GPU memory utilization",),
    "vLLM refuses a setting": (r"validation errors? for \w+",),
    "this machine's memory does not suffice": (
        r"\bMemoryError\b",
        r"Cannot allocate memory",
        r"\[Errno 12\]",
        r"No space left on device",
        r"\[Errno 28\]",
        r"exit code: -9\b",
    ),
    "something that it needs is not there": (
        r"No module named",
        r"cannot import name",
        r"LayoutRefusedError",
        r"cannot open shared object file",
    ),
    "it finds no device": (
        r"Failed to infer device type",
        r"No CUDA GPUs are available",
        r"driver version is insufficient",
        r"EL000[1-8]",
    ),
    "the ranks of its group do not find each other": (
        r"NCCL error",
        r"ncclSystemError",
        r"EI000\d",
        r"DistNetworkError",
        r"DistStoreError",
    ),
}

# Signs of compilation and graphs: exceptions of torch 2, frames of tracebacks, codes of CANN.
_THE_MODE = {
    "compiling failed": (
        r"InvalidCxxCompiler",
        r"CppCompileError",
        r"InductorError",
        r"BackendCompilerFailed",
        r"TritonMissing",
        r"CompilationError",
        r"torch\._dynamo\.exc",
        r"torch/_inductor/",
    ),
    "capturing graphs ran out of streams": (r"\b207008\b", r"EL0009", r"Stream resources are insufficient"),
    "capturing graphs failed": (
        r"[Cc]aptur\w+.{0,60}graph",
        r"graph capture",
        r"capture_model",
        r"StreamCapture",
        r"not permitted when stream is capturing",
        r"capture mode does not support",
        r"\b107030\b",
    ),
    "the mode is not supported here": (
        r"CUDAGraphMode\.\w+ is not supported",
        r"does not support compilation mode",
    ),
}
#: Exit codes of a server that got SIGTERM or SIGINT. Not 0: vLLM's API server ends so when a worker died, too.
_TOLD_TO_END = frozenset({-15, 143, -2, 130})
_DEVICE_MEMORY = re.compile(r"(?:CUDA|NPU) out of memory|OutOfMemoryError")

#: Lines that explain nothing; the whole configuration, which is dumped at a worker's death, names all modes.
_QUIET_LINE = re.compile(r"^(?:\([^)]*\) )?(?:(?:DEBUG|INFO|WARNING) \d|ERROR .{0,60}\] Dumping )")
_LINE_HEAD = re.compile(r"^(?:\([^)]*\) ?)?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:.,]+ \[[^\]]*\] ?)?")
_CAUSE = re.compile(
    r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Compiler|Failed|Interrupt|NotFound)\b.*"
    r"|^Worker proc \S+ died unexpectedly.*"
)
_FOLLOWS_FROM_ANOTHER = re.compile(r"See root cause above|WorkerProc initialization failed")
_REASON_MAX = 240


def why_it_failed(log: str, exit_code: int | None = None) -> StartFailure:
    """Judge the log of one start that ended before the engine was ever ready.

    The end of the log is enough, but not its last lines: the cause stands some hundred lines (60 KiB) above them.

    ``exit_code`` is that of the process, 128 + N or -N for signal N. What no mode repairs is looked for first. A
    failure that nothing explains may be the mode's: graph capture often dies without a word, and there are only a
    few simpler modes to try.
    """
    if exit_code in _TOLD_TO_END:  # its log shows how it broke off, which is no mode's fault
        return StartFailure(False, "somebody told it to end while it started")
    lines = [_LINE_HEAD.sub("", line).rstrip() for line in log.splitlines() if not _QUIET_LINE.match(line)]
    cause = _cause(lines)
    for text in (cause, "\n".join(lines)):
        for rules, simpler_may_help in ((_NOT_THE_MODE, False), (_THE_MODE, True)):
            for words, patterns in rules.items():
                pattern = "|".join(patterns)
                if re.search(pattern, text):
                    # What explains it may be a line of its own; of a failed mode the error says more than its place.
                    shown = cause if cause and (simpler_may_help or text is cause) else _matching(pattern, lines)
                    return StartFailure(simpler_may_help, f"{words}: {shown}")
    if _DEVICE_MEMORY.search(cause):
        return StartFailure(False, f"the device's memory does not suffice: {cause}")
    if exit_code in {-9, 137}:
        return StartFailure(False, "it was killed (signal 9), most often for want of memory on this machine")
    ended = f"it ended with exit code {exit_code}" if exit_code is not None else "it ended"
    return StartFailure(True, cause or _last(lines) or f"{ended} without a word")


def _cause(lines: Sequence[str]) -> str:
    """The first error that does not merely follow from another: those who notice the root write later."""
    for number, line in enumerate(lines):
        if _CAUSE.match(line) and not _FOLLOWS_FROM_ANOTHER.search(line):
            detail = " ".join(following.strip() for following in lines[number + 1 : number + 3])
            return (f"{line}: {detail}" if "validation error" in line else line)[:_REASON_MAX]
    return ""


def _matching(pattern: str, lines: Sequence[str]) -> str:
    return next((line.strip()[:_REASON_MAX] for line in lines if re.search(pattern, line)), "")


def _last(lines: Sequence[str]) -> str:
    return next((line.strip()[:_REASON_MAX] for line in reversed(lines) if line.strip()), "")
