"""How many engines fit a machine, on what, and with how much memory for what."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.launch.machine import Accelerator, Machine, parse_cpu_list
from kveik.launch.model_facts import ModelFacts
from kveik.launch.sizes import ENGINE_BYTES, fitting

GIB = 1 << 30
SMALL = ModelFacts("smollm2", 269_060_552, "bfloat16", 8192, 23_040, 0, 3, "attention")
LARGE = ModelFacts("q-32b", 64 * GIB, "bfloat16", 131_072, 262_144, 0, 8, "attention")


def on_cpu(cores: int = 2, memory_gib: float = 24, shared_gib: float = 24, nodes: int = 1) -> Machine:
    each = cores // nodes
    numa = tuple(tuple(range(node * each, (node + 1) * each)) for node in range(nodes))
    memory = int(memory_gib * GIB)
    return Machine(tuple(range(cores)), numa, memory, memory, int(shared_gib * GIB))


def with_devices(count: int, memory_gib: int, device: str = "cuda", **fields: bool) -> Machine:
    accelerators = tuple(Accelerator(number, "X", memory_gib * GIB, **fields) for number in range(count))
    return dataclasses.replace(on_cpu(64, 512, 256, 2), device=device, accelerators=accelerators)


def test_a_small_machine_gets_two_engines_with_a_core_each_and_a_long_context() -> None:
    sizes = fitting(on_cpu(), SMALL)
    assert [(engine.name, engine.cores) for engine in sizes.engines] == [("engine-1", "0"), ("engine-2", "1")]
    assert (sizes.max_model_tokens, sizes.dtype, sizes.tensor_parallel) == (8192, "bfloat16", 1)
    assert sizes.kv_cache_bytes >= 7 * SMALL.kv_bytes(8192)
    assert sizes.arena_bytes >= 4 * GIB


def test_one_engine_for_each_numa_node_computes_on_that_nodes_cores() -> None:
    sizes = fitting(on_cpu(cores=32, memory_gib=256, nodes=4), SMALL)
    assert [engine.cores for engine in sizes.engines] == ["0-7", "8-15", "16-23", "24-31"]
    assert "NUMA node" in sizes.why["engines"]


def test_a_wanted_number_of_engines_shares_the_cores_equally() -> None:
    assert [engine.cores for engine in fitting(on_cpu(cores=8), SMALL, engines=3).engines] == ["0-1", "2-3", "4-5"]


def test_one_core_gets_one_engine() -> None:
    assert len(fitting(on_cpu(cores=1), SMALL).engines) == 1


def test_more_engines_than_cores_or_memory_hold_are_refused_with_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"3 engines are wanted, but 2 cores and .* are enough for 2"):
        fitting(on_cpu(), SMALL, engines=3)


def test_a_model_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"20\.4 GiB of memory can be used, but one engine needs 65\.6 GiB"):
        fitting(on_cpu(), LARGE)


def test_a_context_for_which_there_is_no_room_is_cut_and_the_reason_told() -> None:
    hungry = dataclasses.replace(SMALL, kv_bytes_a_token=1 << 20, context_tokens=131_072)
    sizes = fitting(on_cpu(), hungry)
    assert 0 < sizes.max_model_tokens < 131_072
    assert sizes.max_model_tokens % 256 == 0
    assert sizes.why["max_model_tokens"] == "the model allows 131,072, for which the KV cache has no room"


def test_a_model_without_room_for_any_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="too little for a prompt"):
        fitting(on_cpu(), dataclasses.replace(SMALL, kv_bytes_a_token=1 << 30))


def test_small_shared_memory_bounds_the_arena() -> None:
    sizes = fitting(on_cpu(shared_gib=0.0625), SMALL)
    assert sizes.arena_bytes <= 64 << 20
    assert sizes.why["arena_bytes"] == "all that /dev/shm has room for (64.0 MiB free); containers: --shm-size"
    assert "survive restarts" in fitting(on_cpu(), SMALL).why["arena_bytes"]


def test_without_a_model_what_depends_on_it_is_left_to_vllm() -> None:
    sizes = fitting(on_cpu(), None)
    assert (sizes.dtype, sizes.max_model_tokens, sizes.kv_cache_bytes) == ("auto", 0, 0)
    assert len(sizes.engines) == 2


def test_devices_are_grouped_by_what_the_weights_need() -> None:
    sizes = fitting(with_devices(8, 80), LARGE)
    assert sizes.tensor_parallel == 2
    assert [engine.devices for engine in sizes.engines] == ["0,1", "2,3", "4,5", "6,7"]
    assert all(engine.cores == "" for engine in sizes.engines)
    assert sizes.kv_cache_bytes == 0
    assert [len(fitting(with_devices(8, 80), SMALL).engines), len(fitting(with_devices(8, 32), LARGE).engines)] == [
        8,
        2,
    ]


def test_fewer_engines_than_devices_allow_may_be_wanted_but_not_more() -> None:
    assert len(fitting(with_devices(8, 80), LARGE, engines=1).engines) == 1
    with pytest.raises(ConfigError, match="5 engines are wanted, but 8 devices are enough for 4"):
        fitting(with_devices(8, 80), LARGE, engines=5)


def test_weights_larger_than_all_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"64\.0 GiB of weights do not fit on 2 devices of 24\.0 GiB"):
        fitting(with_devices(2, 24), LARGE)


def test_devices_that_do_not_compute_with_bfloat16_get_float16() -> None:
    assert fitting(with_devices(1, 16, bfloat16=False), SMALL).dtype == "float16"
    assert fitting(with_devices(1, 16, device="ascend"), SMALL).dtype == "bfloat16"


def test_devices_of_unknown_size_get_an_engine_each_and_the_whole_context() -> None:
    sizes = fitting(with_devices(2, 0, device="ascend"), LARGE)
    assert [engine.devices for engine in sizes.engines] == ["0", "1"]
    assert sizes.max_model_tokens == LARGE.context_tokens


@given(st.integers(1, 64), st.floats(4, 1024), st.floats(0.1, 512), st.sampled_from([1, 2, 4]))
def test_whatever_the_machine_the_parts_fit_it_together(
    cores: int, memory_gib: float, shared_gib: float, nodes: int
) -> None:
    machine = on_cpu(max(cores, nodes), memory_gib, shared_gib, nodes)
    sizes = fitting(machine, SMALL)
    count = len(sizes.engines)
    each = ENGINE_BYTES + SMALL.weights_bytes + sizes.kv_cache_bytes
    assert count * each + sizes.arena_bytes <= machine.available_bytes
    assert sizes.arena_bytes <= machine.shared_bytes
    assert sizes.kv_cache_bytes >= SMALL.kv_bytes(sizes.max_model_tokens)
    used = [core for engine in sizes.engines for core in parse_cpu_list(engine.cores)]
    assert len(used) == len(set(used))
    assert set(used) <= set(machine.cores)
