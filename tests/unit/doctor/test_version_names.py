"""Products and versions are found in whatever people paste."""

from kveik.doctor.version_names import versions_in
from kveik.doctor.version_table import read_versions

TABLE = read_versions()


def test_pip_s_lists_are_read_in_all_their_forms() -> None:
    text = """
Package                Version
---------------------- -------------
vllm                   0.30.0+empty
vllm_ascend            0.30.0rc2
torch-npu==2.10.0.post4
memcache-hybrid (1.2.0)
lmcache @ file:///wheels/lmcache-0.5.6-cp311-cp311-linux_x86_64.whl
openyuanrong-datasystem: 0.8.1
other-thing 1.0
"""
    assert versions_in(text, TABLE) == {
        "vllm": "0.30.0+empty",
        "vllm-ascend": "0.30.0rc2",
        "torch-npu": "2.10.0.post4",
        "memcache": "1.2.0",
        "lmcache": "0.5.6",
        "yuanrong": "0.8.1",
    }


def test_a_package_of_ucm_says_which_cann_it_is_built_for() -> None:
    assert versions_in("uc-manager-cann920-a3==0.9.0rc2", TABLE) == {"ucm": "0.9.0rc2", "ucm-cann": "9.2.0"}
    assert versions_in("uc-manager==0.8.1", TABLE) == {"ucm": "0.8.1"}


def test_the_name_of_an_image_tells_its_version_whatever_its_hardware() -> None:
    assert versions_in("quay.io/ascend/vllm-ascend:v0.30.0rc1-a3", TABLE) == {"vllm-ascend": "0.30.0rc1"}
    assert versions_in("image: docker.io/vllm/vllm-openai:v0.32.0", TABLE) == {"vllm": "0.32.0"}
    assert versions_in("mirror:5000/ascend/vllm-ascend:v0.18.0rc1-openeuler", TABLE) == {"vllm-ascend": "0.18.0rc1"}
    assert versions_in("quay.io/ascend/vllm-ascend:main", TABLE) == {}


def test_cann_can_be_written_below_a_list() -> None:
    assert versions_in("CANN 9.1.0\nHDK=25.5.1", TABLE) == {"cann": "9.1.0", "hdk": "25.5.1"}


def test_text_that_speaks_of_other_things_says_nothing() -> None:
    assert versions_in("hello vllm\nwe have 3 nodes\n", TABLE) == {}
