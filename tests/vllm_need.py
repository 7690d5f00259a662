"""Which files can only be imported where vLLM is installed: read from their imports, not tried out."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
IMPORT_ROOTS = (SOURCE, ROOT / "scripts", ROOT)
ENGINE_PACKAGES = frozenset({"torch", "vllm", "transformers"})


@cache
def needs_vllm(file: Path) -> bool:
    """Whether importing ``file`` imports torch or vLLM, itself or through modules of this repository."""
    return _reaches_engine(file, set())


def _reaches_engine(file: Path, seen: set[Path]) -> bool:
    seen.add(file)
    at_once, modules = _imports_of(file)
    return at_once or any(_reaches_engine(module, seen) for module in modules if module not in seen)


@cache
def _imports_of(file: Path) -> tuple[bool, tuple[Path, ...]]:
    """Whether it imports torch or vLLM itself, and the modules of this repository that it imports.

    Kept, since every test run parses all sources for it: several hundred files import each other.
    """
    names = set(imported_at_load(ast.parse(file.read_text(encoding="utf8"))))
    at_once = any(name.partition(".")[0] in ENGINE_PACKAGES for name in names)
    return at_once, tuple({module: None for name in sorted(names) for module in _files_of(name)})


def imported_at_load(tree: ast.Module) -> Iterator[str]:
    """Names that a module imports when it is loaded: not in functions, not for type checkers only.

    ``from a import b`` yields both ``a`` and ``a.b``, since ``b`` may be a module. The guard
    ``pytest.importorskip("vllm")`` counts as an import.
    """
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func) == "pytest.importorskip" and isinstance(call.args[0], ast.Constant):
                yield str(call.args[0].value)


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    """The module ``name`` of this repository and the packages around it, as files; nothing for other names."""
    parts = name.split(".")
    stems = (root.joinpath(*parts[:depth]) for root in IMPORT_ROOTS for depth in range(1, len(parts) + 1))
    return tuple(file for stem in stems for file in (stem / "__init__.py", stem.with_suffix(".py")) if file.exists())
