"""Opening the Mooncake tier: what stops an agent's start, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.config import MooncakeSettings
from kveik.errors import ConfigError
from kveik.store.base import OPENING, READY
from kveik.store.mooncake_tier import open_tier
from tests.agents import wait_until
from tests.blocks import make_block
from tests.mooncake_double import Double

PATIENCE_S = 60.0
SETTINGS = MooncakeSettings(master="127.0.0.1:9", host="127.0.0.1", staging_bytes=1 << 20, threads=1)


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double(tmp_path)
    for name, value in double.environment.items():
        monkeypatch.setenv(name, value)
    return double


def test_a_master_that_answers_makes_a_tier_that_is_ready(double: Double) -> None:
    store = open_tier(SETTINGS, None, deadline_s=PATIENCE_S)
    block = make_block(1)
    try:
        assert (store.name, store.stats().state) == ("mooncake", READY)
        assert store.capabilities.shared
        assert store.put([block.key], [block.frame], Deadline.after(PATIENCE_S))[0].ok
    finally:
        store.close()


def test_a_master_that_is_down_stops_no_start_and_the_tier_joins_when_it_is_there(double: Double) -> None:
    double.tell(setup=-1)
    store = open_tier(SETTINGS, None, deadline_s=0.1)
    try:
        assert store.stats().state == OPENING
        double.tell()
        wait_until(lambda: store.stats().state == READY, "it has joined", PATIENCE_S)
    finally:
        store.close()


@pytest.mark.parametrize(("name", "value"), [("master", "x"), ("master_http", "x"), ("prefix", "x.y")])
def test_settings_that_cannot_be_meant_stop_the_start(double: Double, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        open_tier(replace(SETTINGS, **{name: value}), None, deadline_s=0.1)  # type: ignore[arg-type]
