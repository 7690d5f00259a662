import json
from pathlib import Path

import pytest

from random_models import RANDOM_MODELS, VOCABULARY, byte_tokenizer, make


def made(name: str, folder: Path) -> Path:
    folder.mkdir()
    make(RANDOM_MODELS[name], folder, lambda progress: None)
    return folder


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_a_model_has_the_same_bytes_however_often_it_is_made(name: str, tmp_path: Path) -> None:
    first, second = made(name, tmp_path / "first"), made(name, tmp_path / "second")
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tiny-gemma3", {"sliding_attention", "full_attention"}),
        ("tiny-gptoss", {"sliding_attention", "full_attention"}),
        ("tiny-qwen3next", {"linear_attention", "full_attention"}),
    ],
)
def test_layouts_with_several_groups_mix_kinds_of_layers(name: str, kinds: set[str], tmp_path: Path) -> None:
    config = json.loads((made(name, tmp_path / name) / "config.json").read_text(encoding="utf8"))
    assert set(config["layer_types"]) == kinds


@pytest.mark.parametrize("text", ["", "hello", "line\nand\ttab", "你好，世界", "emoji 🧊 \x00 end"])
def test_any_text_survives_encoding_with_one_token_for_each_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text


def test_every_id_that_a_model_can_answer_has_a_text() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == VOCABULARY
    assert None not in tokenizer.convert_ids_to_tokens(range(VOCABULARY))
