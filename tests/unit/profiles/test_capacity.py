"""A plan says what fits, whether the goal is met, and how each figure was found."""

from typing import Any

import pytest

from kveik.errors import ConfigError
from kveik.profiles.capacity import Capacity, Goal, Place, Subject, capacity, cost, gib, moved, moved_between
from kveik.profiles.figure import GIB, Figure

PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 512,
         "vocab_size": 1000, "intermediate_size": 2048, "torch_dtype": "bfloat16"}  # fmt: skip
TOKEN_BYTES = 4 * 2 * 8 * 64 * 2


def planned(goal: Goal | None = None, *, weights: int = GIB, config: Any = PLAIN, **place: Any) -> Capacity:
    subject = Subject(name="m", config=config, weights_bytes=weights)
    return capacity(
        subject, Place(**{"memory_bytes": 8 * GIB, "utilization": 1.0, "other_bytes": 3 * GIB} | place), goal
    )


def value(result: Capacity, name: str) -> float:
    found = next(figure for figure in result.figures if figure.name == name)
    assert not isinstance(found.value, str)
    return found.value


def test_what_weights_and_the_rest_leave_is_for_kv() -> None:
    result = planned()
    assert value(result, "room for KV on a device") == 4 * GIB
    assert value(result, "tokens in the KV cache of a rank") == 4 * GIB // TOKEN_BYTES
    assert result.fits is None


def test_each_figure_has_its_formula_with_the_numbers() -> None:
    room = next(figure for figure in planned().figures if figure.name.startswith("room"))
    assert room.formula == "memory x utilization - weights - other"
    assert room.filled == "8.00 GiB x 1 - 1.00 GiB - 3.00 GiB"
    assert all(figure.formula for figure in planned(Goal(100, 2)).figures)


def test_a_goal_is_met_up_to_the_last_request() -> None:
    context = 4 * GIB // TOKEN_BYTES // 4
    assert planned(Goal(context, 4)).fits is True
    assert planned(Goal(context, 5)).fits is False
    assert value(planned(Goal(context, 5)), "requests of that length at most") == 4
    assert value(planned(Goal(context, 4)), "longest context with so many") == context


def test_ranks_share_the_requests() -> None:
    context = 4 * GIB // TOKEN_BYTES // 4
    assert planned(Goal(context, 8), data=2).fits is True
    assert planned(Goal(context, 9), data=2).fits is False
    assert value(planned(data=2), "tokens of all ranks") == 2 * (4 * GIB // TOKEN_BYTES)


def test_weights_are_split_and_so_is_the_cache() -> None:
    result = planned(tensor=2, pipeline=2)
    assert value(result, "weights on a device") == GIB / 4
    assert value(result, "KV a token on a device") == TOKEN_BYTES / 4


def test_experts_are_spread_over_all_ranks_and_the_rest_is_not() -> None:
    config = PLAIN | {"n_routed_experts": 8, "moe_intermediate_size": 2048}
    together = value(planned(config=config, tensor=2, data=4), "weights on a device")
    apart = value(planned(config=config, tensor=2, data=4, experts_apart=True), "weights on a device")
    assert together == GIB / 2
    assert GIB / 8 < apart < GIB / 4


def test_a_model_that_does_not_fit_is_told() -> None:
    result = planned(weights=6 * GIB)
    assert result.fits is False
    assert result.figures[-1].value == "no"


def test_windows_and_states_count_for_each_request() -> None:
    config = PLAIN | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 1024}
    result = planned(Goal(1000, 2), config=config)
    fixed = 3 * 1024 * TOKEN_BYTES / 4
    assert value(result, "KV a request on a device") == fixed
    assert value(result, "KV that they need") == 2 * (1000 * TOKEN_BYTES / 4 + fixed)


def test_weights_are_estimated_where_there_are_no_files() -> None:
    published = capacity(Subject(name="m", config=PLAIN, parameters=1e9, bits=8), Place(memory_bytes=8 * GIB))
    assert published.figures[0].value == 1e9
    counted = capacity(Subject(name="m", config=PLAIN), Place(memory_bytes=8 * GIB))
    assert "by its config.json" in counted.figures[0].formula


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (Subject(name="m"), "does not say how many parameters"),
        (Subject(name="m", parameters=1e9), "has no config.json"),
        (Subject(name="m", parameters=1e9, config={"x": 1}), "does not say its layers"),
    ],
    ids=["nothing", "no-config", "empty"],
)
def test_what_is_not_known_is_told(subject: Subject, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        capacity(subject, Place(memory_bytes=8 * GIB))


@pytest.mark.parametrize("place", [{"tensor": 0}, {"data": -1}, {"utilization": 1.5}, {"memory_bytes": 0}])
def test_a_place_that_cannot_be_is_told(place: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected (at least|more)"):
        planned(**place)


def test_a_goal_that_cannot_be_is_told() -> None:
    with pytest.raises(ConfigError, match="0 requests of 10 tokens"):
        planned(Goal(10, 0))


def of(figures: tuple[Figure, ...], name: str) -> Any:
    return next(figure.value for figure in figures if figure.name == name)


def test_600k_tokens_for_16_requests_need_eight_and_a_half_gigabytes_of_global_kv() -> None:
    flash = Subject(name="flash", parameters=552e9, bits=8, kv_bytes_a_token=890)
    place = Place(memory_bytes=64 * GIB, tensor=8, data=2, experts_apart=True)
    result = capacity(flash, place, Goal(600_000, 16))
    assert result.fits is True
    assert value(result, "KV that they need") * 2 == 600_000 * 16 * 890 == 8_544_000_000


def test_the_field_reports_pool_grew_by_what_left_the_device() -> None:
    between = moved_between(980_000, 6_780_000, 890)
    assert of(between, "pool") == pytest.approx(6.92, abs=0.005)
    left = of(between, "left each device")
    assert left == 5_162_000_000
    back = moved(980_000, 890, left)
    assert of(back, "tokens after the move") == 6_780_000
    assert of(back, "pool") == of(between, "pool")


def test_a_pool_that_shrank_is_no_gain() -> None:
    with pytest.raises(ConfigError, match="expected that it grew"):
        moved_between(10, 9, 890)


def test_a_speedup_of_2_3_saves_57_percent_at_the_same_price() -> None:
    figures = cost(2.0, 8, 1000.0, 2.3)
    assert of(figures, "cost of a million tokens") == pytest.approx(2 * 8 / 3.6)
    assert of(figures, "saved") == pytest.approx(56.5, abs=0.05)
    assert len(cost(2.0, 8, 1000.0)) == 1
    with pytest.raises(ConfigError, match="tokens a second"):
        cost(2.0, 8, 0.0)


@pytest.mark.parametrize(
    ("figure", "told"),
    [
        (Figure("x", 3 * GIB / 2, "bytes", "", ""), "1.50 GiB"),
        (Figure("x", 12, "bytes", "", ""), "12 bytes"),
        (Figure("x", 6_780_000, "tokens", "", ""), "6,780,000 tokens"),
        (Figure("x", 2.5, "times", "", ""), "2.50 times"),
        (Figure("x", "yes", "", "", ""), "yes"),
    ],
    ids=["gib", "bytes", "tokens", "ratio", "text"],
)
def test_figures_read_well(figure: Figure, told: str) -> None:
    assert figure.told == told


def test_gibibytes_are_powers_of_two() -> None:
    assert gib(1.5) == 3 * GIB // 2
