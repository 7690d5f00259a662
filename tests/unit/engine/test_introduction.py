import json
from typing import Any

import pytest

from kveik.engine.client import EngineClient
from kveik.engine.introduction import Introduction, introduce
from kveik.errors import EngineError
from kveik.simulate.engine import SimulatedEngine
from tests.pages import served_pages

CARDS = [{"id": "qwen3-8b", "max_model_len": 4096}, {"id": "lora", "max_model_len": None}, {"id": "qwen3-8b"}]
CACHE = 'vllm:cache_config_info{block_size="32"} 1.0\n'
CONNECTOR = "kveik_connector_attached 1.0\n"
NAMESPACE = 'kveik_connector_namespace{engine="0",digest="abcd"} 1.0\n'


def models(cards: Any) -> tuple[int, str]:
    return 200, json.dumps({"data": cards})


@pytest.mark.parametrize(
    ("metrics", "block_tokens", "namespace", "complete"),
    [
        ((200, CACHE), 32, "", True),
        ((200, CACHE + CONNECTOR), 32, "", False),  # the connector has not told its namespace yet
        ((200, CACHE + CONNECTOR + NAMESPACE), 32, "abcd", True),
        ((404, ""), 0, "", False),
        ((200, "what is this?"), 0, "", False),
    ],
)
def test_an_engine_introduces_itself_by_its_models_and_metrics(
    metrics: tuple[int, str], block_tokens: int, namespace: str, complete: bool
) -> None:
    with served_pages({"/v1/models": models(CARDS), "/metrics": metrics}) as url:
        assert introduce(EngineClient(url)) == Introduction(
            models=("qwen3-8b", "lora"),
            max_model_tokens=4096,
            block_tokens=block_tokens,
            namespace=namespace,
            complete=complete,
        )


def test_an_engine_that_lists_no_models_is_none() -> None:
    with served_pages({"/v1/models": models([])}) as url, pytest.raises(EngineError, match="names no model"):
        introduce(EngineClient(url))


def test_a_simulated_engine_says_that_it_is_one() -> None:
    with SimulatedEngine() as engine:
        said = introduce(EngineClient(engine.url))
    assert said.simulated
    assert (said.models, said.max_model_tokens, said.block_tokens) == (("simulated",), 2048, 16)
