"""The shape of the source: small modules, short functions, no hidden imports, few broad excepts."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kveik"
FILES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted(file.parent for file in FILES if file.name == "__init__.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef

# The supervision loops: whatever goes wrong in one piece of work, the loop goes on with the next.
MAY_CATCH_EVERYTHING = {
    "agent/server.py": 2,  # one client's message, or one tidying up, must not end the agent
    "connector/worker.py": 2,  # a load or save that fails must not end the engine: it computes
    "fleet/embedded.py": 1,  # a tick that fails must not be the last one: no lease would ever end
    "fleet/etcd_follower.py": 1,  # a router that no longer follows etcd would never know
    "fleet/static_list.py": 1,  # nor one that no longer reads its list
    "router/background.py": 1,  # hands any exception to the loop's thread, which raises it there
    "router/app.py": 1,  # a tick that fails must not be the last one: no deadline would ever pass
    "router/client_side.py": 1,  # a fault while a request begins ends one connection
    "router/core.py": 1,  # nor one that a step of it fails in
    "router/exchange.py": 1,  # nor an attempt that failed, any other request
    "router/pages.py": 1,  # a page that fails must be answered as well
    "router/upstream.py": 1,  # a fault while an answer is handled must not pass for the engine's
    "store/guarded.py": 1,  # a store's fault becomes the result of its keys
    "store/ticking.py": 1,  # a fenced tier that nobody probes any more would stay so for ever
    "supervise/supervisor.py": 1,  # without ticks nothing would be restarted, and the node could not be ended
    "supervise/control.py": 1,  # one order that fails must not leave the fleet without an ear
    "store/tier_threads.py": 1,  # hands any exception of a tier to who waits for it
    "watchdog/errand.py": 1,  # hands any exception of a call to who takes its result
    "watchdog/node.py": 1,  # looking after the node must go on: engines that joined would never be watched
    "watchdog/watch.py": 1,  # an engine that nobody watches any more would be worse
}
VAGUE_NAMES = re.compile(r"(^|_)(utils?|common|managers?|helpers?|v1|new|misc|base_?class)(_|$)")

TEST_LINES_PER_SOURCE_LINE = 1.0


@functools.cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def code_lines(file: Path) -> int:
    return sum(1 for line in file.read_text(encoding="utf8").splitlines() if line.strip())


def where(file: Path, line: int = 0) -> str:
    return f"{file.relative_to(PACKAGE)}:{line}"


def test_no_module_is_over_600_lines_and_at_most_one_in_ten_over_400() -> None:
    sizes = {where(file): code_lines(file) for file in FILES}
    assert {name: size for name, size in sizes.items() if size > 600} == {}
    large = [name for name, size in sizes.items() if size > 400]
    assert len(large) <= max(1, len(FILES) // 10), large


def test_no_function_is_over_80_lines_and_nine_in_ten_have_at_most_30() -> None:
    lengths = {where(file, found.lineno): length(found) for file in FILES for found in functions(parse(file))}
    assert {name: size for name, size in lengths.items() if size > 80} == {}
    ranked = sorted(lengths.values())
    assert ranked[int(0.9 * (len(ranked) - 1))] <= 30


def test_imports_of_kveik_stand_at_the_top_of_modules_but_for_commands() -> None:
    hidden = [
        where(file, found.lineno)
        for file in FILES
        if "cli" not in file.relative_to(PACKAGE).parts
        for found in functions(parse(file))
        for node in ast.walk(found)
        if imports_kveik(node)
    ]
    assert hidden == []


def imports_kveik(node: ast.AST) -> bool:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    return any(name.partition(".")[0] == "kveik" for name in names)


def test_everything_is_caught_only_in_the_listed_supervision_loops() -> None:
    caught: dict[str, int] = {}
    for file in FILES:
        broad = sum(swallows_everything(node) for node in ast.walk(parse(file)))
        if broad:
            caught[file.relative_to(PACKAGE).as_posix()] = broad
    over = {name: count for name, count in caught.items() if count > MAY_CATCH_EVERYTHING.get(name, 0)}
    assert over == {}
    assert MAY_CATCH_EVERYTHING.keys() - caught.keys() == set(), "no longer needed in the list"


def swallows_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    everything = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
    return everything and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_package_says_what_it_is_for(package: Path) -> None:
    docstring = ast.get_docstring(parse(package / "__init__.py"))
    assert docstring
    assert len(docstring) > 20


def test_every_module_and_public_class_has_a_docstring() -> None:
    bare = [where(file) for file in FILES if not ast.get_docstring(parse(file))]
    for file in FILES:
        classes = (node for node in parse(file).body if isinstance(node, ast.ClassDef))
        bare += [
            where(file, found.lineno)
            for found in classes
            if not found.name.startswith("_") and not ast.get_docstring(found)
        ]
    assert bare == []


def test_names_of_modules_say_what_is_in_them() -> None:
    stems = [file.relative_to(PACKAGE).with_suffix("").as_posix() for file in FILES]
    assert [stem for stem in stems if any(VAGUE_NAMES.search(name) for name in stem.split("/"))] == []


def test_unit_tests_mirror_the_source_tree() -> None:
    unit = ROOT / "tests" / "unit"
    folders = [test.parent.relative_to(unit) for test in unit.rglob("test_*.py")]
    mirrored = [any((root / folder).is_dir() for root in (PACKAGE, ROOT)) for folder in folders]
    assert [str(folder) for folder, exists in zip(folders, mirrored, strict=True) if not exists] == []


def test_every_package_has_unit_tests() -> None:
    unit = ROOT / "tests" / "unit"
    untested = [p.name for p in PACKAGES if not any((unit / p.relative_to(PACKAGE)).glob("test_*.py"))]
    assert untested == []


def test_tests_keep_up_with_the_source() -> None:
    """At least as many lines of tests as of source."""
    source = sum(map(code_lines, FILES))
    tests = sum(map(code_lines, (ROOT / "tests").rglob("*.py")))
    assert tests >= TEST_LINES_PER_SOURCE_LINE * source
