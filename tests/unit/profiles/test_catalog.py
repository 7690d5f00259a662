"""What the tables say of hardware, models and tiers is complete, and what is not there is told in words."""

import pytest

from kveik.errors import ConfigError
from kveik.profiles import catalog
from tests.launches import combinations


def test_the_tables_have_what_is_promised() -> None:
    assert catalog.names("hardware") == ("a2", "a3", "a5", "cuda", "cpu")
    assert set(catalog.names("models")) == {
        "glm-5", "deepseek-v4.1-flash", "qwen3-32b", "llama-3.1-8b", "smollm2-135m",
    }  # fmt: skip
    assert catalog.names("tiers") == ("none", "kveik", "memcache", "mooncake", "yuanrong", "ucm")


@pytest.mark.parametrize(("name", "devices"), [("a2", 8), ("a3", 16), ("a5", 8), ("cuda", 8), ("cpu", 1)])
def test_hardware_has_its_devices_and_a_source(name: str, devices: int) -> None:
    found = catalog.hardware(name)
    assert found.devices == devices
    assert found.source
    numbered = [file for file in found.all_device_files if file[-1].isdigit()]
    assert len(numbered) == (devices if found.platform == "ascend" else 0)


def test_a5_has_no_device_of_the_older_ones() -> None:
    assert "/dev/devmm_svm" not in catalog.hardware("a5").all_device_files
    assert {"/dev/ummu", "/dev/uburma"} <= set(catalog.hardware("a5").all_device_files)


def test_every_model_has_a_layout_or_a_reason_for_each_hardware() -> None:
    for one in combinations():
        if one.tier != "none":
            continue
        of, on = catalog.model(one.model), catalog.hardware(one.hardware)
        has = {preset.hardware for preset in of.presets} | {row["hardware"] for row in of.refused}
        assert on.name in has, (one.model, one.hardware)


def test_a_layout_uses_no_more_devices_than_there_are() -> None:
    for name in catalog.names("models"):
        for preset in catalog.model(name).presets:
            on = catalog.hardware(preset.hardware)
            assert preset.tensor * preset.local <= on.devices
            assert preset.how in {"documented", "derived"}


def test_a_model_is_another_one_where_its_platform_wants_it() -> None:
    assert catalog.model("glm-5", "ascend").folder != catalog.model("glm-5", "cuda").folder
    assert catalog.model("glm-5", "cuda").bits == 8.0
    assert "--quantization" in [name for name, _, _ in catalog.model("glm-5", "ascend").options]
    assert "--quantization" not in [name for name, _, _ in catalog.model("glm-5", "cuda").options]


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (lambda: catalog.hardware("a9"), "hardware 'a9' is not known, expected one of a2, a3"),
        (lambda: catalog.model("gpt"), "models 'gpt' is not known, expected one of glm-5"),
        (lambda: catalog.tier("disk"), "tiers 'disk' is not known, expected one of none, kveik"),
        (lambda: preset("glm-5", "cpu", 1), "glm-5 on 1 x cpu: 372 GB of weights"),
        (lambda: preset("deepseek-v4.1-flash", "a2", 2), "need four A2 nodes"),
        (lambda: preset("glm-5", "a2", 3), "there are presets for 1, 2 nodes"),
    ],
    ids=["hardware", "model", "tier", "no-way", "too-few", "no-preset"],
)
def test_what_is_not_there_is_told_with_what_is(look, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=told):
        look()


def preset(model: str, hardware: str, nodes: int) -> catalog.Preset:
    return catalog.preset(catalog.model(model), catalog.hardware(hardware), nodes)
