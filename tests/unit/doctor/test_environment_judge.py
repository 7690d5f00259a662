"""Values out of range, names that nothing reads, and settings that contradict each other."""

from kveik.doctor.check import Outcome, Point
from kveik.doctor.environment_judge import family_of, judge_environment
from kveik.doctor.environment_table import read_environment_table
from kveik.doctor.version_table import read_versions

TABLE = read_environment_table()
VERSIONS = read_versions()


def judged(environ: dict[str, str], **installed: str) -> list[Point]:
    named = {name.replace("_", "-"): version for name, version in installed.items()}
    return judge_environment(environ, named, TABLE, VERSIONS)


def wrong(environ: dict[str, str], **installed: str) -> dict[str, str]:
    return {point.about: point.told for point in judged(environ, **installed) if point.outcome is Outcome.WRONG}


def test_an_environment_of_other_things_says_nothing() -> None:
    assert judged({"PATH": "/bin", "HOME": "/home/a", "LANG": "C", "VERBOSE": "1"}) == []


def test_values_that_are_taken_are_well() -> None:
    points = judged({"PYTHONHASHSEED": "0", "HCCL_BUFFSIZE": "200", "DS_H2D_MEMCPY_POLICY": "direct"})
    assert {point.outcome for point in points} == {Outcome.WELL}


def test_a_value_out_of_range_names_value_range_default_and_effect() -> None:
    (told,) = wrong({"DS_DEVICE_ACL_SIZE": "0"}).values()
    assert told == "is '0', expected a whole number of at least 1 bytes (104857600 unless set)"
    (told,) = wrong({"DS_HOST_ACL_SIZE": "0"}).values()
    assert "whatever the documentation says" in told


def test_a_removed_variable_is_told_with_what_to_do() -> None:
    (point,) = judged({"VLLM_USE_V1": "1"})
    assert point.outcome is Outcome.WRONG
    assert "nothing reads it" in point.told
    assert "V1 is the only engine" in point.remedy


def test_a_variable_that_the_installed_version_does_not_read_has_no_effect() -> None:
    new = wrong({"DS_WORKER_ADDR": "192.0.2.7:18481"}, vllm_ascend="0.30.0rc1")
    assert "vllm-ascend 0.30.0rc1 does not read it" in new["DS_WORKER_ADDR"]
    assert wrong({"DS_WORKER_ADDR": "192.0.2.7:18481"}, vllm_ascend="0.26.0rc1") == {}
    old = wrong({"YR_CONFIG_PATH": "/etc/yuanrong.json"}, vllm_ascend="0.26.0rc1")
    assert "YR_CONFIG_PATH" in old


def test_where_the_version_is_not_known_it_is_to_beware_of() -> None:
    (point,) = judged({"VLLM_ASCEND_BALANCE_SCHEDULING": "1"})
    assert point.outcome is Outcome.BEWARE
    assert "<0.27.1rc1 only" in point.told


def test_a_name_that_is_nearly_right_is_told_with_the_right_one() -> None:
    told = wrong({"VLLM_LOGING_LEVEL": "DEBUG", "MC_TCP_BIND_ADRESS": "192.0.2.7"})
    assert "but VLLM_LOGGING_LEVEL" in told["VLLM_LOGING_LEVEL"]
    assert "but MC_TCP_BIND_ADDRESS" in told["MC_TCP_BIND_ADRESS"]


def test_a_name_that_is_like_none_may_be_a_plug_in_s() -> None:
    (point,) = judged({"VLLM_WONDERFUL_PLUGIN": "1"})
    assert point.outcome is Outcome.UNKNOWN
    assert "a plug-in may" in point.told


def test_names_that_code_reads_and_the_table_does_not_explain_are_left_alone() -> None:
    assert judged({"VLLM_PLUGINS": "kveik", "MC_FORCE_TCP": "1"}) == []


def test_workers_for_direct_copies_contradict_another_policy() -> None:
    four = {"DS_H2D_PARALLEL_WORKER_NUM": "4"}
    assert "DS_H2D_PARALLEL_WORKER_NUM with DS_H2D_MEMCPY_POLICY" in wrong(four, yuanrong="0.9.2")
    assert wrong({**four, "DS_H2D_MEMCPY_POLICY": "direct"}, yuanrong="0.9.2") == {}
    assert wrong({"DS_H2D_PARALLEL_WORKER_NUM": "1"}, yuanrong="0.9.2") == {}


def test_a_bound_that_is_another_variable_is_compared_with_it() -> None:
    base = {"DS_D2H_MEMCPY_POLICY": "direct", "DS_D2H_PARALLEL_WORKER_NUM": "8"}
    few = wrong({**base, "DS_D2H_PARALLEL_MAX_PENDING_TASK_NUM": "4"}, yuanrong="0.9.2")
    assert list(few) == ["DS_D2H_PARALLEL_MAX_PENDING_TASK_NUM with DS_D2H_PARALLEL_WORKER_NUM"]
    assert wrong({**base, "DS_D2H_PARALLEL_MAX_PENDING_TASK_NUM": "8"}, yuanrong="0.9.2") == {}


def test_a_loopback_address_is_wrong_or_to_beware_of_where_others_have_to_reach_it() -> None:
    assert "HCCL_IF_IP" in wrong({"HCCL_IF_IP": "127.0.0.1"})
    beware = [point for point in judged({"MOONCAKE_MASTER": "127.0.0.1:50051"}) if point.outcome is Outcome.BEWARE]
    assert beware[0].about == "MOONCAKE_MASTER"
    assert wrong({"HCCL_IF_IP": "192.0.2.7"}) == {}


def test_allocator_options_that_exclude_each_other_are_told() -> None:
    told = wrong({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128"})
    assert list(told) == ["PYTORCH_NPU_ALLOC_CONF"]


def test_the_yuanrong_guide_s_settings_are_told_for_what_they_are_on_a_new_version() -> None:
    guide = {
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "VLLM_ASCEND_BALANCE_SCHEDULING": "1",
        "VLLM_USE_V1": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        "PYTHONHASHSEED": "0",
        "DS_WORKER_ADDR": "192.0.2.7:18481",
        "DS_H2D_MEMCPY_POLICY": "direct",
        "HCCL_DETERMINISTIC": "1",
    }
    told = wrong(guide, vllm_ascend="0.30.0rc1", vllm="0.30.0")
    assert {"VLLM_ASCEND_BALANCE_SCHEDULING", "VLLM_USE_V1", "DS_WORKER_ADDR", "HCCL_DETERMINISTIC"} <= told.keys()
    assert "expected one of false, true, strict" in told["HCCL_DETERMINISTIC"]


def test_the_worst_stands_first() -> None:
    points = judged({"VLLM_WONDERFUL_PLUGIN": "1", "VLLM_USE_V1": "1", "PYTHONHASHSEED": "0"})
    assert [point.outcome for point in points] == [Outcome.WRONG, Outcome.UNKNOWN, Outcome.WELL]


def test_a_name_belongs_to_a_family_by_its_beginning() -> None:
    found = family_of("MOONCAKE_X", TABLE)
    assert found
    assert found.owner == "mooncake"
    assert family_of("HOME", TABLE) is None
