"""The documents agree with the code and with each other."""

import argparse
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import configuration_page
import kveik
from kveik.cli.main import COMMANDS, module_of
from kveik.config import SECTIONS, rows

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SUFFIXES = {".md", ".py", ".toml", ".txt", ".json", ".yml", ".yaml", ".sh", ".cfg", ""}

# Paths of one machine and hosts that not everyone reaches: a reader elsewhere can do nothing with them.
FORBIDDEN = re.compile(r"(?<![\w.~}])/(?:root|work)/\w|pythonhosted|pypi\.org|\b(?:TODO|FIXME|XXX)\b")
MAY_MENTION = {"tests/architecture/test_docs.py"}


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Text files of the repository; of the source archive where there is no git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(file for file in files if file.suffix in SUFFIXES and file.is_file())


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    texts = re.findall(r"^#+ +(.+?) *$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf8"), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[str]:
    return (match[1] for match in re.finditer(r"\]\(([^)\s]+)\)", without_code(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            broken.append(link)
    assert broken == []


def test_the_configuration_page_is_what_the_settings_table_says() -> None:
    written = configuration_page.PAGE.read_text(encoding="utf8")
    assert written == configuration_page.page(), "run `make docs`"


def test_every_setting_is_explained_in_a_sentence_and_has_its_unit_in_its_name() -> None:
    for row in (row for section in SECTIONS for row in rows(section)):
        assert row.help.endswith("."), row.name
        if row.unit in {"bytes", "s", "tokens", "blocks"}:
            assert row.unit in row.name.split("_"), row.name


def shell_lines(page: Path) -> Iterator[str]:
    """The commands in a page's code blocks; a prompt sign before them does not matter."""
    block_of_commands = re.compile(r"^```(?:bash|sh|console|shell)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for block in block_of_commands.findall(page.read_text(encoding="utf8")):
        yield from (line.removeprefix("$ ").strip() for line in block.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_documents_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE))
    for line in shell_lines(page):
        words = line.split()
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)} <= targets, line
        if words[:1] == ["kveik"] and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, line


def test_the_readme_shows_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(shell_lines(README))


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf8").splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert any(f"kveik {command}" in page.read_text(encoding="utf8") for page in PAGES if page.name != "CHANGELOG.md")


def test_every_flag_in_documents_is_one_of_the_command_before_it() -> None:
    for page in PAGES:
        for line in shell_lines(page):
            words = line.split()
            if words[:1] != ["kveik"] or len(words) < 2 or words[1] not in COMMANDS:
                continue
            flags = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert flags <= flags_of(words[1]), f"{page.name}: {line}"


@functools.cache
def flags_of(command: str) -> frozenset[str]:
    parser = argparse.ArgumentParser()
    module_of(command).add_arguments(parser)
    return frozenset(flags_in(parser))


def flags_in(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from flags_in(inner)


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.MULTILINE)
    assert kveik.__version__ in versions[:2]


def test_the_architecture_page_names_every_package_and_none_that_is_not_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    packages = {file.parent.name for file in (ROOT / "src" / "kveik").glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in page} == set()
    for package, module in re.findall(r"`(?:kveik/)?(\w+)/(\w+)\.py`", page):
        if package in packages:
            assert (ROOT / "src" / "kveik" / package / f"{module}.py").exists(), f"{package}/{module}.py"


def test_the_glossary_is_in_order_and_explains_the_words_of_the_architecture() -> None:
    words = re.findall(r"^\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf8"), re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    needed = {"agent", "arena", "block", "cascade", "engine", "external hit", "lease", "local hit", "namespace"}
    assert needed | {"promotion", "slot", "tier"} <= {word.lower() for word in words}


def test_no_file_speaks_of_one_machine_or_leaves_work_undone() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for file in tracked_files()
        if (name := file.relative_to(ROOT).as_posix()) not in MAY_MENTION
        for number, line in enumerate(file.read_text(encoding="utf8", errors="replace").splitlines(), 1)
        if (match := FORBIDDEN.search(line))
    ]
    assert found == []
