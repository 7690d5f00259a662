"""Finding and connecting the client library. Blocks through a real worker: the contract and tests/services."""

import importlib.util
import os
from collections.abc import Iterator

import pytest

from kveik.engine.process import free_port
from kveik.errors import ConfigError, StoreError
from kveik.store.yuanrong_client import YuanrongOptions, connected, require_package
from tests.yuanrong import package


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_missing_package_is_named_with_what_to_install(without_package: None) -> None:
    with pytest.raises(ConfigError, match=r"openyuanrong-datasystem, .* pip install kveik\[yuanrong\]"):
        require_package()
    with pytest.raises(ConfigError):
        connected(YuanrongOptions(host="127.0.0.1", port=1))


def test_the_package_brings_the_worker_and_its_settings() -> None:
    folder = package()
    assert (folder / "datasystem_worker").exists()
    assert (folder / "worker_config.json").exists()


def test_where_no_worker_answers_the_address_and_the_library_s_words_are_told(environment: None) -> None:
    package()
    port = free_port()
    with pytest.raises(StoreError, match=rf"no datasystem worker answers at 127\.0\.0\.1:{port}: .+"):
        connected(YuanrongOptions(host="127.0.0.1", port=port, connect_ms=500, request_ms=500))
    assert os.environ["DATASYSTEM_MIN_LOG_LEVEL"] == "2"


def test_what_the_user_set_for_the_library_stays(environment: None) -> None:
    package()
    os.environ["DATASYSTEM_MIN_LOG_LEVEL"] = "1"
    with pytest.raises(StoreError):
        connected(YuanrongOptions(host="127.0.0.1", port=free_port(), connect_ms=500, request_ms=500))
    assert os.environ["DATASYSTEM_MIN_LOG_LEVEL"] == "1"
