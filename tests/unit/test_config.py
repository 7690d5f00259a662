"""The settings table: where values come from, and how wrong ones are told."""

import dataclasses
import threading
from pathlib import Path

import pytest

from kveik.config import SECTIONS, WAIT_MAX_S, AgentSettings, ConnectorSettings, default_runtime_dir, load, rows
from kveik.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "kveik.toml"
    file.write_text(text, encoding="utf8")
    return file


def test_without_any_source_the_defaults_hold() -> None:
    assert load(AgentSettings) == AgentSettings()


def test_later_sources_win(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nfilesystem_threads = 2\nbreaker_failures = 2\nfilesystem = '/file'\n")
    environ = {"KVEIK_AGENT_BREAKER_FAILURES": "5", "KVEIK_AGENT_FILESYSTEM": "/env"}

    settings = load(AgentSettings, file=file, environ=environ, given={"filesystem": "/given"})

    assert (settings.filesystem_threads, settings.breaker_failures, settings.filesystem) == (2, 5, "/given")


def test_sections_do_not_mix(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nsocket = '/agent'\n[connector]\nsocket = '/connector'\n")

    assert load(AgentSettings, file=file).socket == "/agent"
    assert load(ConnectorSettings, file=file).socket == "/connector"


@pytest.mark.parametrize(
    ("given", "value"),
    [(4096, 4096), ("4096", 4096), ("2.5 GiB", 5 << 29), ("1KiB", 1024), ("3 TiB", 3 << 40), (4096.0, 4096)],
)
def test_sizes_may_have_units(given: object, value: object) -> None:
    assert load(AgentSettings, given={"arena_bytes": given}).arena_bytes == value


@pytest.mark.parametrize(("given", "value"), [("true", True), ("0", False), ("Off", False), (True, True)])
def test_switches_may_be_written_as_text(given: object, value: object) -> None:
    assert load(AgentSettings, given={"huge_pages": given}).huge_pages is value


def test_whole_numbers_serve_as_seconds() -> None:
    assert load(AgentSettings, given={"tier_deadline_s": 3}).tier_deadline_s == 3.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arena_bytes", "many"),
        ("arena_bytes", "2 GB"),
        ("arena_bytes", "1e400 GiB"),
        ("arena_bytes", 1.5),
        ("arena_bytes", True),
        ("arena_bytes", None),
        ("filesystem_threads", 2.5),
        ("filesystem_threads", float("inf")),
        ("filesystem_threads", "2.0"),
        ("filesystem_threads", [4]),
        ("tier_deadline_s", "soon"),
        ("tier_deadline_s", float("nan")),
        ("tier_deadline_s", float("inf")),
        ("huge_pages", "perhaps"),
        ("huge_pages", 1),
        ("socket", 7),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"agent: {name} is .*, expected"):
        load(AgentSettings, given={name: value})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("filesystem_threads", -1, "at least 0"),
        ("filesystem_threads", 1000, "at most 256"),
        ("arena_bytes", -1, "at least 0 bytes"),
        ("metrics_port", 65536, "at most 65535 port"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_bound(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(AgentSettings, given={name: value})


def test_a_choice_that_does_not_exist_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="expected one of 'full', 'sampled'"):
        load(ConnectorSettings, given={"weights_digest": "none"})


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'arena_byte'; known are socket, arena, arena_bytes"):
        load(AgentSettings, given={"arena_byte": 1})


def test_the_source_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nmetrics_port = -1\n")

    with pytest.raises(ConfigError, match=r"kveik.toml \[agent\]: metrics_port"):
        load(AgentSettings, file=file)
    with pytest.raises(ConfigError, match="KVEIK_AGENT_METRICS_PORT: metrics_port"):
        load(AgentSettings, environ={"KVEIK_AGENT_METRICS_PORT": "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agents]\n", "unknown section 'agents'"),
        ("agent = 1\n", r"written as \[agent\]"),
        ("[agent\n", "not valid TOML"),
        ("[agent]\nnope = 1\n", "unknown setting 'nope'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(AgentSettings, file=write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml"):
        load(AgentSettings, file=tmp_path / "absent.toml")


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AgentSettings().socket = "other"  # type: ignore[misc]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_is_complete_and_its_default_is_valid(section: str) -> None:
    for row in rows(section):
        assert row.help.endswith(".")
        assert row.env == f"KVEIK_{section}_{row.name}".upper()
        assert getattr(load(SECTIONS[section], given={row.name: row.default}), row.name) == row.default
        if row.kind in (int, float) and not row.name.endswith(("failures", "every", "threads")):
            assert row.unit, row.name


@pytest.mark.parametrize("section", SECTIONS)
def test_every_number_has_a_lower_bound_and_every_time_an_upper_one_that_can_be_waited_for(section: str) -> None:
    for row in rows(section):
        if row.kind in (int, float):
            assert row.minimum is not None, row.name
            assert row.minimum >= 0, row.name
        if row.unit == "s":
            assert row.maximum is not None, row.name
            # The agent takes a longer deadline for a mistake, and a lock raises OverflowError.
            assert row.maximum <= WAIT_MAX_S <= threading.TIMEOUT_MAX, row.name


@pytest.mark.parametrize(
    ("name", "value"),
    [("save_deadline_s", 0), ("save_deadline_s", -1.0), ("save_deadline_s", 1e300), ("load_deadline_s", 4000)],
)
def test_a_deadline_that_can_never_be_met_or_waited_for_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*, expected at (least|most)"):
        load(ConnectorSettings, given={name: value})


def test_the_runtime_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_runtime_dir() == "/run/user/7/kveik"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_runtime_dir().startswith("/tmp/kveik-")
