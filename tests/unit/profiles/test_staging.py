"""Staging memory is what openYuanrong datasystem would take, and the path that it would choose."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kveik.errors import ConfigError
from kveik.profiles.figure import MIB
from kveik.profiles.staging import LEAST_BYTES, Call, shards, staging


def told(**call: Any) -> dict[str, Any]:
    call["sizes"] = [size * MIB for size in call["sizes"]]
    return {figure.name: figure.value for figure in staging(Call(**call))}


def test_the_guides_example_needs_52_mib() -> None:
    found = told(sizes=[8, 7, 6, 5], least_bytes=0)
    assert found["device staging, parallel"] == 52 * MIB
    assert found["device staging, serial"] == 16 * MIB
    assert found["path"] == "parallel"


def test_the_host_needs_all_objects_unless_pages_are_huge() -> None:
    assert told(sizes=[16] * 5)["host staging"] == 80 * MIB
    assert told(sizes=[16] * 5, huge=True)["host staging"] == 0


def test_twenty_objects_of_16_mib_are_copied_serially_without_a_word() -> None:
    found = told(sizes=[16] * 20)
    assert found["device staging, parallel"] == 128 * MIB
    assert found["path"] == "serial"
    assert found["device pool is enough"] == "yes"
    assert told(sizes=[16] * 20, device_pool_bytes=128 * MIB)["path"] == "parallel"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"sizes": [64, 64, 64, 64], "workers": 1}, "one worker"),
        ({"sizes": [10, 10, 10], "least_bytes": 0}, "3 objects are less than 4 workers"),
        ({"sizes": [8] * 8}, "64.00 MiB are less than 128.00 MiB"),
        ({"sizes": [20] * 8}, "more than DS_DEVICE_ACL_SIZE"),
    ],
    ids=["one-worker", "few-objects", "few-bytes", "small-pool"],
)
def test_what_stands_against_the_parallel_path_is_told(call: dict[str, Any], why: str) -> None:
    call["sizes"] = [size * MIB for size in call["sizes"]]
    path = next(figure for figure in staging(Call(**call)) if figure.name == "path")
    assert path.value == "serial"
    assert why in path.filled


def test_pools_that_are_too_small_are_told() -> None:
    found = told(sizes=[60, 60, 60, 60], device_pool_bytes=100 * MIB, host_pool_bytes=200 * MIB)
    assert found["device pool is enough"] == "no"
    assert found["host pool is enough"] == "no"


def test_back_from_the_device_less_is_enough_to_be_parallel() -> None:
    assert told(sizes=[12] * 5, least_bytes=LEAST_BYTES["d2h"])["path"] == "parallel"
    assert told(sizes=[12] * 5)["path"] == "serial"


def test_shards_are_near_to_equal_bytes() -> None:
    assert shards([8, 1, 1, 1, 5, 7, 2], 3) == [[8, 1], [1, 1, 5], [7, 2]]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 16))
def test_shards_keep_all_objects_in_order_and_none_is_empty(sizes: list[int], workers: int) -> None:
    found = shards(sizes, workers)
    assert [size for shard in found for size in shard] == sizes
    assert len(found) == min(workers, len(sizes))
    assert all(found)


@pytest.mark.parametrize("call", [{"sizes": []}, {"sizes": [0]}, {"sizes": [1], "workers": 17}])
def test_a_call_that_cannot_be_is_told(call: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Call(**call)
