"""What is wrong with a ``vllm serve`` line, and what does the same today. Pure but for reading the tables."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.errors import LineUnreadableError
from kveik.profiles.catalog import data_table
from kveik.profiles.known_options import Known, committed
from kveik.profiles.line_contradictions import contradictions
from kveik.profiles.line_finding import Finding, Given, version_key
from kveik.profiles.line_reading import ServeLine, serve_lines

_KEYWORD = re.compile(r"\b([a-z][a-z0-9_]*)\s*=(?!=)")
_NUMBER = re.compile(r"-\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, the lines that were read, and who judged."""

    findings: tuple[Finding, ...]
    lines: tuple[ServeLine, ...]
    judged_by: str
    text: str
    ascend: str

    @property
    def fits(self) -> bool:
        """Whether nothing stands against it; what is only worth knowing does not."""
        return not any(finding.severity == "error" for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "fits": self.fits,
            "judged_by": self.judged_by,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def check_text(text: str, ascend: str, known: Known | None = None) -> Report:
    """Check every ``vllm serve`` in a text; ``ascend``: the version of vllm-ascend that would read the variables.

    A text without one is searched for arguments that Python code gives an engine. Raises
    :class:`LineUnreadableError` if there is nothing that could be checked.
    """
    known = known or committed()
    judged_by = f"the options of vLLM {known.version}"
    try:
        lines = serve_lines(text)
    except LineUnreadableError:
        if found := tuple(_in_python(text)):
            return Report(found, (), judged_by, text, ascend)
        raise
    findings = [finding for line in lines for finding in check_line(line, known, ascend)]
    return Report(tuple(dict.fromkeys(findings)), tuple(lines), judged_by, text, ascend)


def check_line(line: ServeLine, known: Known, ascend: str) -> Iterator[Finding]:
    """What is to be said of one line: options, then variables, then what contradicts what."""
    given, findings = _read(line.arguments, known)
    yield from findings
    yield from _variables(line.environment, known, ascend)
    yield from contradictions(given, line.environment, known, ascend, rules()["backends"])


def rules() -> Mapping[str, Any]:
    """The table of what was, and what is instead."""
    return data_table("line_rules")


def _read(arguments: Sequence[str], known: Known) -> tuple[Given, list[Finding]]:
    """The options with their values, and what is wrong with each by itself."""
    given: Given = {}
    findings = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or _NUMBER.fullmatch(word) or word == "-":
            continue  # the model, or the value of an option that is not known
        name, has_value, value = word.partition("=")
        name = name.partition(".")[0] if name.startswith("--") else name  # --json-option.key value
        spelled = known.find(name)
        if not spelled:
            findings.append(_unknown(name, known))
            continue
        row = known.options[spelled]
        values = [value] if has_value else _values(words, row["takes"])
        if row["takes"] == 1 and not values:
            findings.append(Finding("error", spelled, "it needs a value and has none", "", _parser(known)))
        findings += _bad_choice(spelled, values, row, known)
        if "." not in word.partition("=")[0]:
            given.setdefault(row["dest"], []).append((spelled, values))
    return given, findings


def _values(words: list[str], takes: int | str) -> list[str]:
    """Take the values of an option off the words."""
    most = {0: 0, 1: 1, "?": 1}.get(takes, len(words))
    taken: list[str] = []
    while words and len(taken) < most and (not words[0].startswith("-") or _NUMBER.fullmatch(words[0])):
        taken.append(words.pop(0))
    return taken


def _unknown(name: str, known: Known) -> Finding:
    row = rules()["options"].get(name.lstrip("-").replace("_", "-"))
    if row is not None:
        return Finding("error", name, f"{row['status']}: {row['told']}", row["instead"], row["source"])
    near = known.nearest(name)
    return Finding("error", name, f"vLLM {known.version} has no such option", near, _parser(known))


def _bad_choice(name: str, values: Sequence[str], row: Mapping[str, Any], known: Known) -> list[Finding]:
    choices = row.get("choices")
    bad = [value for value in values if choices and value not in choices and "$" not in value]
    told = f"{', '.join(map(repr, bad))} is none of its values"
    return [Finding("error", name, told, ", ".join(choices or ()), _parser(known))] if bad else []


def _parser(known: Known) -> str:
    return f"vLLM {known.version}, its parser"


def _variables(environment: Mapping[str, str], known: Known, ascend: str) -> Iterator[Finding]:
    for name, value in environment.items():
        row = rules()["variables"].get(name)
        if row is not None:
            if not row.get("since") or version_key(ascend) >= version_key(row["since"]):
                since = f" (vllm-ascend {row['since']})" if row.get("since") else ""
                severity = row.get("severity", "error")
                yield Finding(severity, name, f"{row['status']}{since}: {row['told']}", row["instead"], row["source"])
        elif name.startswith("VLLM_") and name not in known.environment and not _of_plugins(name):
            told = f"vLLM {known.version} has no such variable, and warns of it"
            source = "vLLM, vllm/platforms/interface.py: validate_environ"
            yield Finding("error", name, told, known.nearest_variable(name), source)
        values = rules()["values"].get(name)
        if values and value not in values["allowed"] and "$" not in value:
            told = f"{value!r} is none of its values{': ' if values['told'] else ''}{values['told']}"
            yield Finding("error", name, told, ", ".join(values["allowed"]), values["source"])


def _of_plugins(name: str) -> bool:
    """Variables of vllm-ascend that vLLM itself does not know, and warns of in vain."""
    return name.startswith("VLLM_ASCEND_") or name == "VLLM_VERSION"


def _in_python(text: str) -> Iterator[Finding]:
    """Arguments of Python code that no engine takes."""
    table = rules()["options"]
    for name in dict.fromkeys(_KEYWORD.findall(text)):
        row = table.get(name.replace("_", "-"))
        if row is not None and "_" in name:
            yield Finding("error", name, f"{row['status']}: {row['told']}", row["instead"], row["source"])
