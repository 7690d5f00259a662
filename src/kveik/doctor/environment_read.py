"""Reads environments: our own, a process's, or lines that somebody pasted; and the names that installed code knows."""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from kveik.errors import DoctorError

_ASSIGNMENT = re.compile(r"""^\s*(?:-e\s+|export\s+|set\s+|-\s+)?([A-Za-z_]\w*)\s*[=:]\s*(.*?)\s*\\?$""")
_QUOTED = re.compile(r"""^(['"])(.*)\1$""")
_VLLM_TABLE = "environment_variables"


def environment_in(text: str) -> dict[str, str]:
    """Variables from lines such as ``A=1``, ``export A="1"``, ``-e A=1``, or of compose files ``- A=1`` and ``A: 1``.

    The last of several counts, as in a shell.
    """
    found = {}
    for line in text.splitlines():
        if match := _ASSIGNMENT.match(line):
            value = match[2]
            quoted = _QUOTED.match(value)
            found[match[1]] = quoted[2] if quoted else value
    return found


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with (``/proc``); what it changed since is not seen. Raises :class:`DoctorError`."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise DoctorError(f"cannot read the environment of process {pid}: {why}") from error
    pairs = (item.partition(b"=") for item in content.split(b"\0") if b"=" in item)
    return {name.decode("utf8", "replace"): value.decode("utf8", "replace") for name, _, value in pairs}


def names_that_vllm_reads(packages: Path) -> frozenset[str]:
    """All names in the installed vLLM's own table (``vllm/envs.py``), read without importing it; none if not there."""
    try:
        tree = ast.parse((packages / "vllm" / "envs.py").read_text(encoding="utf8"))
    except (OSError, SyntaxError):
        return frozenset()
    tables = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.Assign)
        and _VLLM_TABLE in {target.id for target in _targets(node) if isinstance(target, ast.Name)}
    ]
    keys = [key for table in tables if isinstance(table, ast.Dict) for key in table.keys]
    return frozenset(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def names_in_libraries(folder: Path, names: Collection[str]) -> frozenset[str]:
    """Those of the names that stand in a shared library below a folder: what no library has, nothing reads."""
    wanted = {name.encode(): name for name in names}
    found: set[str] = set()
    for library in sorted(folder.rglob("*.so*")):
        if library.is_file():
            content = library.read_bytes()
            found |= {name for pattern, name in wanted.items() if pattern in content}
    return frozenset(found)


def _targets(node: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]
