"""When two descriptions of a part mean the same."""

from pathlib import Path

import msgspec
import pytest

from kveik.supervise.part import END_ORDER, KINDS, Part, Readiness, Variant

PART = Part(
    name="engine-1",
    kind="engine",
    variants=(Variant(("vllm", "serve"), "auto"), Variant(("vllm", "serve", "--enforce-eager"), "eager")),
    log=Path("/logs/engine-1.log"),
    readiness=Readiness("inference", "http://127.0.0.1:8001", "m"),
    environment={"A": "1", "B": None},
    facts="facts",
)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "router"},
        {"variants": PART.variants[:1]},
        {"environment": {"A": "2", "B": None}},
        {"environment": {"A": "1"}},
        {"facts": "others"},
        {"readiness": Readiness("running")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_part_that_would_run_otherwise_has_another_digest(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(PART, **change).digest != PART.digest


@pytest.mark.parametrize(
    "change",
    [{"log": Path("/other")}, {"start_s": 1.0}, {"stop_grace_s": 1.0}, {"environment": {"B": None, "A": "1"}}],
    ids=lambda change: next(iter(change)),
)
def test_what_a_running_process_does_not_notice_is_not_in_the_digest(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(PART, **change).digest == PART.digest


def test_the_environment_is_the_supervisors_with_changes_and_without_what_is_taken_out() -> None:
    assert PART.full_environment({"HOME": "/h", "A": "0", "B": "x"}) == {"HOME": "/h", "A": "1"}


def test_every_kind_has_its_place_when_a_node_starts_and_when_it_ends() -> None:
    assert sorted(KINDS) == sorted(END_ORDER)
