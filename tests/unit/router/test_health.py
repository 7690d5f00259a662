"""What an engine's list of models may look like."""

import asyncio

import pytest

from kveik.errors import EngineError
from kveik.router.health import read_models
from kveik.router.upstream import EnginePool
from tests.pages import served_pages
from tests.unit.router.rig import run

SHAPES = {
    "empty": "",
    "no JSON": "no JSON",
    "array": "[]",
    "no data": "{}",
    "null": '{"data": null}',
    "no array": '{"data": {}}',
    "no model": '{"data": []}',
    "number": '{"data": [1]}',
    "nested deep": "[" * 100_000,
}


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES.keys())
def test_what_is_no_list_of_models_is_an_engines_error_and_nothing_else(body: str) -> None:
    async def test() -> None:
        with served_pages({"/v1/models": (200, body)}) as url:
            pool = EnginePool("127.0.0.1", int(url.rpartition(":")[2]), idle_max_s=1.0, connect_s=5.0)
            with pytest.raises(EngineError, match="its /v1/models"):
                await read_models(pool, 5.0)
            pool.close()
            await asyncio.sleep(0)

    run(test)
