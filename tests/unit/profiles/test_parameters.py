"""Parameters are counted from a config.json nearly enough to plan with."""

import json
from pathlib import Path

import pytest

from kveik.launch.model_facts import read_model
from kveik.profiles import catalog
from kveik.profiles.parameters import parameters


@pytest.mark.parametrize(
    ("model", "published"),
    [("glm-5", 744e9), ("qwen3-32b", 32.8e9), ("llama-3.1-8b", 8.03e9), ("smollm2-135m", 134.5e6)],
)
def test_the_count_is_the_published_one(model: str, published: float) -> None:
    config = catalog.model(model).config
    assert config is not None
    assert parameters(config).total == pytest.approx(published, rel=0.005)


def test_experts_are_told_from_the_rest() -> None:
    config = catalog.model("glm-5").config
    assert config is not None
    found = parameters(config)
    assert found.experts == 75 * 256 * 3 * 6144 * 2048
    assert found.total == found.experts + found.rest


def test_a_config_that_says_nothing_has_no_parameters() -> None:
    assert parameters({}).total == 0


@pytest.mark.parametrize(
    "name", ["smollm2-135m-instruct", "tiny-qwen3", "tiny-qwen3moe", "tiny-deepseekv2", "gemma3-270m"]
)
def test_the_weights_of_real_files_are_as_large(models: Path, name: str) -> None:
    config = json.loads((models / name / "config.json").read_text())
    files = read_model(models / name).weights_bytes  # as bfloat16
    assert parameters(config).total * 2 == pytest.approx(files, rel=0.06)
