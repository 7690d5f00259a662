"""Ask the vLLM of another Python about a line: its options, its variables, and what its own parser says."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import kveik
from kveik.errors import LineUnreadableError
from kveik.profiles.known_options import of_document
from kveik.profiles.line_check import Report, check_text
from kveik.profiles.line_finding import Finding

#: Text and no module: that Python may not have Kveik, and a script's own folder would be searched for vLLM first.
_SCRIPT = Path(kveik.__file__).parent / "connector" / "vllm_options.py"
_PATIENT_S = 300.0


def ask_real_parser(report: Report, python: str) -> Report:
    """Judge the same text by that vLLM. Raises :class:`LineUnreadableError` if it cannot be asked."""
    found: list[Finding] = []
    known = None
    for line in report.lines:
        document = _ask(python, list(line.arguments))
        known = known or of_document(document)
        if document["refusal"]:
            found.append(Finding("error", "vllm serve", f"its parser says: {document['refusal'].strip()}", "", python))
    if known is None:
        return report
    checked = check_text(report.text, report.ascend, known)
    judged_by = f"the parser of vLLM {known.version} ({python})"
    return dataclasses.replace(checked, findings=(*checked.findings, *found), judged_by=judged_by)


def _ask(python: str, argv: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-c", _SCRIPT.read_text("utf8")],
            cwd="/",
            input=json.dumps({"argv": argv}),
            capture_output=True,
            text=True,
            timeout=_PATIENT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LineUnreadableError(f"cannot ask {python}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LineUnreadableError(f"{python} cannot say what its vLLM takes: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
