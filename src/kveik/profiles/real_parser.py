"""Ask the vLLM of another Python about a line: its options, its variables, and what its own parser says."""

import dataclasses

from kveik.profiles.known_options import of_document
from kveik.profiles.line_check import Report, check_text
from kveik.profiles.line_finding import Finding
from kveik.profiles.vllm_python import ask_vllm


def ask_real_parser(report: Report, python: str) -> Report:
    """Judge the same text by that vLLM. Raises :class:`LineUnreadableError` if it cannot be asked."""
    found: list[Finding] = []
    known = None
    for line in report.lines:
        document = ask_vllm(python, "vllm_options.py", {"argv": list(line.arguments)})
        known = known or of_document(document)
        if document["refusal"]:
            found.append(Finding("error", "vllm serve", f"its parser says: {document['refusal'].strip()}", "", python))
    if known is None:
        return report
    checked = check_text(report.text, report.ascend, known)
    judged_by = f"the parser of vLLM {known.version} ({python})"
    return dataclasses.replace(checked, findings=(*checked.findings, *found), judged_by=judged_by)
