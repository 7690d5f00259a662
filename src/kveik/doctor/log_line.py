"""What one line of a log says of itself: how bad, when, which process, and the message. Pure.

Formats: vLLM, Kveik, glog (Mooncake), openYuanrong, etcd, CANN and torch_npu, uvicorn, torch, and what looks like any
of them; also behind the name that ``kveik logs`` or ``docker compose logs`` puts before each line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from re import Match, Pattern


class Level(IntEnum):
    """How bad a line calls itself; ``PLAIN`` if it does not say."""

    DEBUG = 0
    INFO = 1
    PLAIN = 2
    WARNING = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without what its logger put before it.

    ``process``: who wrote it, as the line says (``Worker_TP0 pid=12``). ``where``: file and line of its source, if
    told. ``text`` keeps its indentation, by which tracebacks are known.
    """

    level: Level
    time: str
    process: str
    where: str
    text: str


_LEVELS = {
    **dict.fromkeys(("DEBUG", "TRACE", "V", "D", "T"), Level.DEBUG),
    **dict.fromkeys(("INFO", "NOTICE", "EVENT", "I", "N"), Level.INFO),
    **dict.fromkeys(("WARNING", "WARN", "W"), Level.WARNING),
    **dict.fromkeys(("ERROR", "CRITICAL", "FATAL", "PANIC", "DPANIC", "E", "C", "F"), Level.ERROR),
}
_WORD = "DEBUG|TRACE|INFO|NOTICE|EVENT|WARNING|WARN|ERROR|CRITICAL|FATAL|PANIC"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,:]\d+(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"

#: The name that a collector of logs puts before each line.
_COLLECTED = re.compile(r"([\w./-]{1,64})\s+\| ")
#: What stands before each line of a group of exceptions.
_GROUP = re.compile(r" +\| (?: *\| )*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"\((?P<process>[\w .=-]{1,80})\) ?|\[(?P<rank>rank\d+)\]: ?")

_FORMATS: tuple[Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # INFO 11-30 01:00:22 [core.py:133] text                                             vLLM
        rf"(?P<level>{_WORD}) (?P<time>\d\d-\d\d {_CLOCK}) \[(?P<where>[^\]]*)\] ?(?P<text>.*)",
        # 2026-11-30 01:29:24,001 INFO kveik.agent: text                                     Kveik
        rf"(?P<time>{_DATE} {_CLOCK}) (?P<level>{_WORD}) (?P<where>[\w.]+): (?P<text>.*)",
        # I20261130 01:29:24.001234 1234 master.cpp:12] text; I1130 ...                      glog
        rf"(?P<level>[IWEFDV])(?P<time>\d{{4,8}} {_CLOCK})\s+\d+ (?P<where>[\w./-]+:\d+)\] ?(?P<text>.*)",
        # 2026-11-30T01:29:24.001234 | I | worker.cpp:12 | host | 1:2 | trace | | text       openYuanrong
        (
            rf"(?P<time>{_DATE}T{_CLOCK}) \| (?P<level>[IWEFDV]) \| (?P<where>[^|]*) \| [^|]*\| (?P<process>\d+):\d+ \|"
            r"(?:[^|]*\|){2} *(?P<text>.*)"
        ),
        # 2026-11-30 01:29:24.001234 W | etcdserver: text                                    etcd to 3.4
        rf"(?P<time>{_DATE} {_CLOCK}) (?P<level>[IWECDNT]) \| (?P<where>[\w./-]+): (?P<text>.*)",
        # {"level":"warn","ts":"...","caller":"...","msg":"text", ...}                       etcd
        r'\{"level":"(?P<level>\w+)","ts":"?(?P<time>[^",]*)"?,(?:"caller":"(?P<where>[^"]*)",)?(?P<text>.*)',
        # raft2026/11/30 01:29:24 INFO: text
        rf"raft(?P<time>{_DATE} {_CLOCK}) (?P<level>{_WORD}): (?P<text>.*)",
        # [ERROR] RUNTIME(12,python3):2026-11-30-01:29:24.001.002 [stream.cc:12]12 text      CANN
        rf"\[(?P<level>{_WORD})\] (?P<process>[\w ]+\(\d+,[^)]*\)):(?P<time>{_DATE}-{_CLOCK}) ?(?P<text>.*)",
        # [ERROR] 2026-11-30-01:29:24 (PID:12, Device:0, RankID:-1) text                     torch_npu
        rf"\[(?P<level>{_WORD})\] (?P<time>{_DATE}[- ]{_CLOCK}) (?:\((?P<process>PID[^)]*)\) )?(?P<text>.*)",
        # [W1130 01:02:01.864103308 utils.cpp:68] text                                       torch
        rf"\[(?P<level>[IWEF])(?P<time>\d{{4}} {_CLOCK}) (?P<where>[\w./-]+:\d+)\] (?P<text>.*)",
        # [2026-11-30 01:29:24.001] [info] text; 2026-11-30T01:29:24Z ERROR text             many others
        rf"\[?(?P<time>{_DATE}[ T-]{_CLOCK})\]? ?(?:\[[\w:. -]*\] ?)?\[?(?i:(?P<level>{_WORD}))\b\]?:? ?(?P<text>.*)",
        # INFO:     text                                                                     uvicorn, logging
        rf"(?P<level>{_WORD}):\s+(?P<text>.*)",
    )
)
#: A moment that a container runtime put before a line of any form.
_STAMPED = re.compile(rf"(?P<time>{_DATE}T{_CLOCK}) (?:(?:stdout|stderr) [FP] )?(?=\S)")


def read_line(raw: str) -> LogLine:
    """Take a line apart. What no format fits is all message, of level ``PLAIN``."""
    if "\x1b" in raw:
        raw = _COLOUR.sub("", raw)
    line = raw.rstrip("\r\n").rpartition("\r")[2]
    name, line = _taken(_COLLECTED.match(line), line, lambda match: match[1])
    moment = ""
    found = _fitting(line) if not line.startswith("(") else None
    if found is None:
        moment, line = _taken(_STAMPED.match(line), line, lambda match: match["time"])
        process, line = _taken(_PROCESS.match(line), line, lambda match: match["process"] or match["rank"])
        name = process or name
        found = _fitting(line)
    if found is None:
        return LogLine(Level.PLAIN, moment, name, "", _GROUP.sub("", line, 1) if line.startswith(" ") else line)
    parts = found.groupdict()
    level = _LEVELS.get(parts["level"].upper(), Level.PLAIN)
    process = parts.get("process") or name
    return LogLine(level, parts.get("time") or moment, process, parts.get("where") or "", parts["text"])


def _taken(found: Match[str] | None, line: str, name: Callable[[Match[str]], str]) -> tuple[str, str]:
    """What a prefix says, and the line without it."""
    return (name(found), line[found.end() :]) if found else ("", line)


def _fitting(line: str) -> Match[str] | None:
    for pattern in _FORMATS:
        if found := pattern.match(line):
            return found
    return None
