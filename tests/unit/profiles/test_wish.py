"""A launch whose parts do not fit each other is refused in words before anything is written."""

from typing import Any

import pytest

from kveik.errors import ConfigError
from kveik.profiles.wish import Given, Wish, wish

TWO: dict[str, Any] = {"nodes": 2, "addresses": ("10.0.0.1", "10.0.0.2")}


def asked(hardware: str = "a2", model: str = "glm-5", tier: str = "none", **given: Any) -> Wish:
    return wish(hardware, model, tier, Given(**given))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hardware": "cuda", "tier": "yuanrong"}, "tier yuanrong runs on ascend, and cuda is cuda"),
        ({"hardware": "a3", "model": "deepseek-v4.1-flash", "tier": "kveik"}, "refuses for models with several kinds"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"nodes": 2, "addresses": ("10.0.0.1",)}, "--address was given 1 times, expected once for each of 2"),
        ({"nodes": 2, "addresses": ("10.0.0.1", "10.0.0.1")}, "names one node twice"),
        ({"nodes": 2, "addresses": ("127.0.0.1", "10.0.0.1")}, "is loopback"),
        ({"nodes": 1, "addresses": ("$(reboot)",)}, "expected a name or an address"),
        ({"interfaces": ("eth0; reboot",)}, "expected a name or an address"),
        ({"port": 0}, "--port is 0"),
        ({"port": 2379, "tier": "yuanrong"}, "port 2379, which is yuanrong's .etcd."),
        ({"port": 13399}, "port 13399, which is the group's .ranks."),
        ({"model": "llama-3.1-8b", "tier": "mooncake", "port": 9000}, "port 9003, which is mooncake's"),
        ({"store_gib": 0}, "--store-gib is 0"),
        ({"model_folder": "models/m"}, "expected an absolute path"),
        ({"tier": "ucm"}, "give --shared-folder"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("$", r"\$").replace("(", r"\(")):
        asked(**given)


def test_a_single_node_stays_on_loopback() -> None:
    alone = asked()
    assert (alone.address(0), alone.interface(0)) == ("127.0.0.1", "")


def test_several_nodes_without_addresses_get_placeholders_and_are_told_so() -> None:
    many = asked(nodes=2)
    assert [many.address(0), many.address(1)] == ["192.0.2.11", "192.0.2.12"]
    assert any("placeholders" in warning for warning in many.warnings)
    assert not any("placeholders" in warning for warning in asked(**TWO).warnings)


def test_one_interface_is_that_of_all_nodes() -> None:
    assert asked(**TWO, interfaces=("bond0",)).interface(1) == "bond0"
    assert asked(**TWO, interfaces=("bond0", "enp61s0f2")).interface(1) == "enp61s0f2"


def test_an_image_is_built_where_the_tier_needs_what_it_lacks() -> None:
    assert asked().image == "quay.io/ascend/vllm-ascend:v0.30.0rc2"
    built = asked(tier="ucm", shared_folder="/mnt/kv")
    assert built.image == "kveik-launch/ucm:a2"
    assert built.installs == ("uc-manager[cann920-a2]==0.9.0rc3",)
    assert asked(tier="ucm", shared_folder="/mnt/kv", image="mine:1").base_image == "mine:1"


def test_a_layout_that_nobody_documented_is_told() -> None:
    assert not any("derived" in warning for warning in asked("a3").warnings)
    assert any("derived" in warning for warning in asked("cuda").warnings)


def test_a_model_that_a_tier_does_not_name_is_told() -> None:
    glm = asked(tier="ucm", shared_folder="/mnt/kv")
    named = asked("a3", "deepseek-v4.1-flash", "ucm", shared_folder="/mnt/kv")
    assert any("garbled" in warning for warning in glm.warnings)
    assert not any("garbled" in warning for warning in named.warnings)


def test_caches_of_several_nodes_that_share_nothing_are_told() -> None:
    assert any("--shared-folder" in warning for warning in asked(tier="kveik", **TWO).warnings)
    assert not any("--shared-folder" in warning for warning in asked(tier="kveik", shared_folder="/kv", **TWO).warnings)
