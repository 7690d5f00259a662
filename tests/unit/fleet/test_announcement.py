from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.fleet.announcement import EngineAnnouncement, check_announcement
from tests.fleet import engine


@pytest.mark.parametrize(
    ("url", "host_port", "name"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000), "127.0.0.1:8000"),
        ("http://gpu-7.example:80/", ("gpu-7.example", 80), "gpu-7.example:80"),
        ("http://[::1]:8000", ("::1", 8000), "::1:8000"),
    ],
)
def test_an_engine_is_named_after_its_address_unless_it_has_a_name(
    url: str, host_port: tuple[str, int], name: str
) -> None:
    announcement = check_announcement(EngineAnnouncement(url=url))
    assert (announcement.host_port, announcement.name) == (host_port, name)
    assert EngineAnnouncement(url=url, engine_id="seven").name == "seven"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1:8000",
        "https://10.0.0.1:8000",
        "http://10.0.0.1",
        "http://10.0.0.1:0",
        "http://10.0.0.1:65536",
        "http://10.0.0.1:eight",
        "http://:8000",
        "http://10.0.0.1:8000/v1",
        "http://10.0.0.1:8000?x=1",
        "http://10.0.0.1:8000#x",
        "http://user@10.0.0.1:8000",
        "http://10.0.0.1\r\nx-evil: 1:8000",
        "http://10.0.0.1:80\n00",
        "http://[::1:8000",
        "http://[zz]:8000",
        "http://10.0.0.1:٨٠",
        "http://münchen:8000",
    ],
)
def test_an_address_that_is_none_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url is .*expected http://HOST:PORT"):
        check_announcement(EngineAnnouncement(url=url))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine_id", "a/b"),
        ("engine_id", "a b"),
        ("engine_id", "-a"),
        ("engine_id", "a" * 129),
        ("engine_id", "a\n"),
        ("namespace", "ABCD"),
        ("namespace", "abc"),
        ("events", "10.0.0.1:5557"),
        ("replay", "tcp://10.0.0.1"),
        ("models", ("",)),
        ("models", ("a\nb",)),
        ("models", tuple(str(n) for n in range(129))),
        ("labels", {"rack": "\x00"}),
        ("lease_s", 0.5),
        ("lease_s", -1.0),
        ("lease_s", 3601.0),
        ("lease_s", float("nan")),
        ("lease_s", float("inf")),
        ("max_model_tokens", -1),
        ("block_tokens", 1 << 40),
    ],
)
def test_a_field_that_makes_no_sense_is_named_with_its_value_and_what_was_expected(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} .*expected"):
        check_announcement(engine(1, **{field: value}))


@given(st.text(max_size=40))
def test_no_text_breaks_the_check_of_an_address(text: str) -> None:
    try:
        announcement = check_announcement(EngineAnnouncement(url=text))
    except ConfigError:
        return
    host, port = announcement.host_port
    assert host
    assert 0 < port < 65536


def test_an_adapter_a_label_or_another_lease_make_no_other_engine() -> None:
    first = engine(1)
    assert first.same_engine(engine(1, models=("qwen3-8b", "lora-1"), lease_s=30.0, labels={"rack": "7"}))
    assert first.same_engine(engine(1, url="http://10.0.0.1:8000/"))


def test_what_was_not_known_may_be_told_later_and_not_taken_back() -> None:
    told = engine(1, namespace="ab", block_tokens=16, max_model_tokens=4096)
    assert engine(1).same_engine(told)
    assert not told.same_engine(engine(1))
    assert not told.same_engine(engine(1, namespace="cd", block_tokens=16, max_model_tokens=4096))


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "http://10.0.0.9:8000"},
        {"models": ("llama",)},
        {"namespace": "ab"},
        {"block_tokens": 32},
        {"max_model_tokens": 10},
        {"events": "tcp://10.0.0.1:1"},
    ],
)
def test_whatever_makes_cached_blocks_useless_makes_another_engine(changed: dict[str, Any]) -> None:
    known = {"namespace": "01", "block_tokens": 16, "max_model_tokens": 4096, "events": "tcp://10.0.0.1:7"}
    assert not engine(1, **known).same_engine(engine(1, **{**known, **changed}))
