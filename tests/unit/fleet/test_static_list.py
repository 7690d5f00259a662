import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.config import AgentSettings, load
from kveik.errors import ConfigError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership
from kveik.fleet.static_list import ListChange, StaticList, parse_list, plan, read_list
from tests.fleet import engine

TWO = """
[agent]
arena_bytes = "1 GiB"

[[engines]]
url = "http://10.0.0.1:8000"
engine_id = "one"
models = ["qwen3-8b"]

[[engines]]
url = "http://10.0.0.2:8000"
"""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    registry = EmbeddedRegistry(MemberFile(tmp_path / "run" / "fleet.json"), ticking=False)
    yield registry
    registry.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def write(file: Path, text: str) -> None:
    """Replace the file as an editor does."""
    new = file.with_suffix(".new")
    new.write_text(text, encoding="utf8")
    new.replace(file)


def test_a_configuration_file_may_list_engines_beside_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    engines = read_list(file)
    assert [(e.name, e.models, e.lease_s) for e in engines] == [("one", ("qwen3-8b",), 0.0), ("10.0.0.2:8000", (), 0.0)]
    assert load(AgentSettings, file=file).arena_bytes == 1 << 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engines = 7", "engines must be a list of tables"),
        ("engines = [7]", "entry 1 of engines: expected a table"),
        ("[[engines]]\nurl = 7", "entry 1 of engines: Expected `str`, got `int` - at `\\$.url`"),
        ("[[engines]]\nname = 'a'", "entry 1 of engines: .*unknown field `name`"),
        ("[[engines]]\nengine_id = 'a'", "entry 1 of engines: .*missing required field `url`"),
        ("[[engines]]\nurl = 'http://a:1'\nlease_s = 5", "a listed engine has no lease"),
        ("[[engines]]\nurl = 'http://a:1'\n[[engines]]\nurl = 'a'", "entry 2 of engines: url is 'a'"),
        ("[[engines]]\nurl = 'http://a:1'\n[[engines]]\nurl = 'http://a:1'\nengine_id = 'b'", "that of entry 1 too"),
        ("[[engines]]\nurl = 'http://a:1'\n[[engines]]\nurl = 'http://b:1'\nengine_id = 'a:1'", "that of entry 1 too"),
        ("[[engines", "is not valid TOML"),
    ],
)
def test_a_list_that_is_not_valid_is_refused_naming_entry_and_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(text, encoding="utf8")
    with pytest.raises(ConfigError, match=message):
        read_list(file)


def test_what_an_entry_says_to_the_watchdog_changes_nothing_here(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text('[[engines]]\nurl = "http://10.0.0.7:8000"\nrestart = ["docker", "restart", "seven"]\n')
    (engine,) = read_list(file)
    assert engine.url == "http://10.0.0.7:8000"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml"):
        read_list(tmp_path / "none.toml")


def test_only_differences_between_list_and_registry_are_acted_on() -> None:
    one, two, three = (engine(n, lease_s=0.0) for n in (1, 2, 3))
    members = (
        Membership().announce(one, 0.0, listed=True).announce(two, 0.0, listed=True).announce(engine(4), 0.0).members
    )
    changed = engine(2, lease_s=0.0, namespace="ab")
    assert plan(members.values(), [one, changed, three]) == ListChange((changed, three), ())
    assert plan(members.values(), [one]) == ListChange((), ("e2",))
    assert plan(members.values(), [one, two]) == ListChange((), ())
    assert plan(members.values(), []) == ListChange((), ("e1", "e2"))


def test_the_list_is_followed_while_the_router_runs(tmp_path: Path, registry: EmbeddedRegistry) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    static = StaticList(registry, file, poll_s=0.01)
    static.start()
    try:
        assert [m.name for m in registry.members()] == ["10.0.0.2:8000", "one"]
        registry.change_state("one", Event.PROVE, "it answered")
        write(file, TWO.replace("10.0.0.2", "10.0.0.3"))
        wait_for(lambda: [m.name for m in registry.members()] == ["10.0.0.3:8000", "one"])
        assert registry.view.member("one").state is State.READY
        write(file, TWO.partition("[[engines]]")[0])
        wait_for(lambda: registry.members() == ())
    finally:
        static.close()


def test_a_broken_list_changes_nothing_and_says_so_once(
    tmp_path: Path, registry: EmbeddedRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    static = StaticList(registry, file)
    static.look()
    write(file, TWO + "[[engines]]\nurl = 'nonsense'\n")
    for _ in range(3):
        static.look()
    assert len(registry.members()) == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("the list of engines stays as it was: ")
    assert warning.endswith("entry 3 of engines: url is 'nonsense', expected http://HOST:PORT without a path")
    write(file, TWO)
    static.look()
    assert len(registry.members()) == 2


def test_engines_that_left_the_list_while_no_router_ran_leave_at_the_next_start(
    tmp_path: Path, registry: EmbeddedRegistry
) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    StaticList(registry, file).look()
    registry.announce(engine(9))
    write(file, TWO.rpartition("[[engines]]")[0])
    StaticList(registry, file).look()
    assert [m.name for m in registry.members()] == ["e9", "one"]


def test_what_the_registry_refuses_is_tried_again(
    tmp_path: Path, registry: EmbeddedRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.announce(engine(1))
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    static = StaticList(registry, file)
    static.look()
    static.look()
    assert [m.name for m in registry.members()] == ["10.0.0.2:8000", "e1"]
    assert caplog.text.count("the address http://10.0.0.1:8000 belongs to engine 'e1'") == 1
    registry.withdraw("e1", "bye")
    static.look()
    assert [m.name for m in registry.members()] == ["10.0.0.2:8000", "one"]


def test_a_signal_has_the_file_read_again_though_it_looks_the_same(tmp_path: Path, registry: EmbeddedRegistry) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(TWO, encoding="utf8")
    static = StaticList(registry, file, poll_s=3600.0)
    static.start()
    try:
        status = file.stat()
        file.write_text(TWO.replace("10.0.0.2", "10.0.0.3"), encoding="utf8")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        static.reload()
        wait_for(lambda: [m.name for m in registry.members()] == ["10.0.0.3:8000", "one"])
    finally:
        static.close()


def test_settings_still_refuse_sections_that_nobody_knows(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text("[motor]\nurl = 'x'", encoding="utf8")
    with pytest.raises(ConfigError, match="unknown section 'motor'"):
        load(AgentSettings, file=file)


def test_a_list_is_parsed_without_a_file() -> None:
    assert parse_list([{"url": "http://a:1"}], "here")[0].name == "a:1"
