"""Fault switches: what is set, what is refused."""

import pytest

from kveik.errors import ConfigError
from kveik.simulate.faults import NO_FAULTS, changed


def test_changes_add_up_until_a_reset() -> None:
    faults = changed(changed(NO_FAULTS, {"hang": True}), {"status": 503, "status_body": {"error": "busy"}})
    assert (faults.hang, faults.status, faults.body()) == (True, 503, b'{"error":"busy"}')
    assert changed(faults, {"reset": True, "every": 3}) == changed(NO_FAULTS, {"every": 3})
    assert changed(faults, {"reset": True}) == NO_FAULTS


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"hang": "yes"},
        {"every": 0},
        {"status": 99},
        {"status": 600},
        {"health_status": 0},
        {"die_by": "gently"},
        {"first_byte_delay_s": "long"},
        {"read_bytes_s": -1},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="faults") as refused:
        changed(NO_FAULTS, change)
    assert next(iter(change)) in str(refused.value)
