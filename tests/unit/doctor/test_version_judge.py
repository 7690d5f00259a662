"""What goes together, what does not, and what nobody knows."""

from kveik.doctor.check import Outcome, Point
from kveik.doctor.version_judge import judge
from kveik.doctor.version_table import read_versions

TABLE = read_versions()
ROW = {
    "vllm-ascend": "0.30.0rc2",
    "vllm": "0.30.0+empty",
    "python": "3.11.7",
    "cann": "9.2.0",
    "torch": "2.10.0",
    "torch-npu": "2.10.0.post4",
    "triton-ascend": "3.2.2",
    "mooncake": "0.3.11.post1",
    "memcache": "1.2.0",
}


def points(outcome: Outcome, **changed: str) -> list[Point]:
    installed = {**ROW, **{name.replace("_", "-"): version for name, version in changed.items()}}
    return [point for point in judge(installed, TABLE) if point.outcome is outcome]


def test_a_row_of_the_table_goes_together_and_only_conditions_remain() -> None:
    assert points(Outcome.WRONG) == []
    assert points(Outcome.UNKNOWN) == []
    assert len(points(Outcome.WELL)) == 8
    assert all(point.remedy and point.source for point in points(Outcome.BEWARE))


def test_a_vllm_of_another_row_does_not_fit_and_effect_fix_and_source_are_told() -> None:
    (point,) = points(Outcome.WRONG, vllm="0.32.0")
    assert point.about == "vllm-ascend 0.30.0rc2 with vLLM 0.32.0"
    assert "goes with vLLM 0.30.0: the plug-in replaces parts of vLLM by name" in point.told
    assert point.remedy == "take vLLM 0.30.0, or another vllm-ascend"
    assert "v0.30.0rc2" in point.source


def test_the_wrong_stands_before_all_else() -> None:
    assert judge({**ROW, "vllm": "0.32.0"}, TABLE)[0].outcome is Outcome.WRONG


def test_a_cann_that_was_not_tried_is_unknown_not_wrong() -> None:
    (point,) = points(Outcome.UNKNOWN, cann="9.3.0")
    assert "of others nothing is known" in point.told


def test_the_image_of_which_table_and_dockerfile_disagree_takes_both_and_its_ucm_package_does_not_fit() -> None:
    rc1 = {"vllm-ascend": "0.30.0rc1", "cann": "9.1.0"}
    assert all(point.outcome is not Outcome.WRONG for point in judge(rc1, TABLE))
    with_ucm = judge({**rc1, "ucm": "0.9.0rc2", "ucm-cann": "9.2.0"}, TABLE)
    assert [point.about for point in with_ucm if point.outcome is Outcome.WRONG] == [
        "UCM build for CANN 9.2.0 with CANN 9.1.0"
    ]


def test_the_pool_that_never_hits_is_known_by_its_version() -> None:
    old = points(Outcome.BEWARE, vllm_ascend="0.23.0", vllm="0.23.0")
    assert any("hit length is 0" in point.told for point in old)
    assert not any("hit length is 0" in point.told for point in points(Outcome.BEWARE))


def test_the_connector_that_garbles_a_model_it_does_not_know_is_known_by_its_version() -> None:
    def told(version: str) -> bool:
        return any("garbled" in point.told for point in judge({"ucm": version}, TABLE))

    assert told("0.8.1")
    assert told("0.9.0rc1")
    assert not told("0.9.0rc2")


def test_a_version_that_is_not_in_the_table_is_unknown_and_so_is_one_that_cannot_be_read() -> None:
    (new,) = judge({"vllm-ascend": "0.99.0", "vllm": "0.99.0"}, TABLE)[-1:]
    assert (new.outcome, new.about) == (Outcome.UNKNOWN, "vllm-ascend 0.99.0")
    odd = [point for point in judge({"kveik": "0.1.0", "vllm": "main"}, TABLE) if point.outcome is Outcome.UNKNOWN]
    assert "cannot be read" in odd[0].told


def test_nothing_is_said_of_nothing() -> None:
    assert judge({}, TABLE) == []
    assert judge({"vllm": "0.32.0"}, TABLE) == []
