"""What holds for all sources."""

import ast
from pathlib import Path

import kveik

SOURCES = Path(kveik.__file__).parent
CHANGES = {"setdefault", "update", "pop", "putenv", "unsetenv", "clear"}


def changes_environment(statement: ast.stmt) -> bool:
    """Whether a statement that runs at import writes the process's environment."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(
        ast.unparse(node.func.value) in {"os", "os.environ"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        else isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and ast.unparse(node.value) == "os.environ"
        for node in ast.walk(statement)
    )


def test_what_changes_the_environment_is_seen() -> None:
    for line in ('os.environ.setdefault("A", "1")', 'os.environ["A"] = "1"', 'if True:\n    os.putenv("A", "1")'):
        assert changes_environment(ast.parse(line).body[0])
    for line in ('a = os.environ["A"]', 'def f():\n    os.environ["A"] = "1"', "known.update(other)"):
        assert not changes_environment(ast.parse(line).body[0])


def test_no_import_changes_the_environment() -> None:
    """Processes started later would inherit it: an engine that logs errors only, because somebody imported a module."""
    guilty = [
        f"{path.relative_to(SOURCES)}:{statement.lineno}"
        for path in SOURCES.rglob("*.py")
        for statement in ast.parse(path.read_text(encoding="utf8")).body
        if changes_environment(statement)
    ]
    assert guilty == []
