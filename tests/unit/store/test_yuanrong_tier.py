"""How the processes of the tier are told what to open, and how many there are."""

import pytest

from kveik.errors import StoreError
from kveik.store.apart_wire import Opening, decode_opening, encode
from kveik.store.yuanrong_client import YuanrongOptions
from kveik.store.yuanrong_tier import open_tier, processes_for, recipe_of

OPTIONS = YuanrongOptions(host="127.0.0.1", port=1, connect_ms=500, request_ms=1500, ttl_s=60)


def test_the_recipe_carries_all_options_to_the_process() -> None:
    recipe = recipe_of(OPTIONS)
    sent = decode_opening(encode(Opening(recipe.maker, dict(recipe.options), 0)))
    assert YuanrongOptions(**sent.options) == OPTIONS  # type: ignore[arg-type]


def test_a_process_may_be_silent_for_as_long_as_the_library_waits_at_most() -> None:
    recipe = recipe_of(OPTIONS)
    assert recipe.patience_s > 2 * 1.5
    assert recipe.open_s > 0.5


@pytest.mark.parametrize(("readers", "processes"), [(1, 2), (2, 3), (4, 6), (5, 7)])
def test_writers_have_processes_of_their_own(readers: int, processes: int) -> None:
    assert processes_for(readers) == processes


def test_a_worker_that_is_not_there_is_told_by_the_process_that_looked_for_it() -> None:
    with pytest.raises(StoreError, match=r"no datasystem worker answers at 127\.0\.0\.1:1|needs the package"):
        open_tier(OPTIONS, readers=1)
