"""Where loading begins to pay, from what agent and engines learned."""

from pathlib import Path
from typing import Any

import pytest

from kveik.bench.breakeven import LENGTHS, Crossing, Curve, Gain, crossing, document, engines, gains

MIB = 1 << 20


def state(**tiers: dict[str, Any]) -> dict[str, Any]:
    """An engine that computes 1,000 tokens a second, and tiers by seconds for a read and for each byte."""
    learned = {
        "prefill": [0.01, 1e-3, 2e-8], "prefill_sigma": 0.1, "prefill_steps": 40, "step_tokens": 2048,
        "token_bytes": 20_000.0, "path": [0.005, 1e-9], "path_sigma": 0.2,
    }  # fmt: skip
    return {
        "tiers": [{"name": name, "rate": {"get": rate, "lookup": None}} for name, rate in tiers.items()],
        "connections": [
            {"role": "scheduler", "label": "small", "pid": 7, "learned": learned},
            {"role": "worker 0", "label": "small", "pid": 8, "learned": None},
        ],
        "gains": {"arena": {"tokens": 5000, "saved_s": 4.5, "lost_s": 0.25}},
    }


def rate(bytes_per_s: float, fixed_s: float = 0.0, sigma: float = 0.1) -> dict[str, Any]:
    return {"fixed_s": fixed_s, "each_s": 1 / bytes_per_s, "sigma": sigma, "samples": 12}


def line(fixed_s: float, token_s: float, sigma: float = 0.0) -> Curve:
    return Curve(lambda tokens: fixed_s + token_s * tokens, sigma, 1)


def test_every_engine_that_learned_something_has_its_curves() -> None:
    (engine,) = engines(state(filesystem=rate(100e6)))
    assert (engine.label, engine.pid, list(engine.loads)) == ("small", 7, ["arena", "filesystem"])
    assert engine.compute.at(4096) == pytest.approx(2 * 0.01 + 4.096 + 2e-8 * 4096**2 / 2)
    assert engine.loads["arena"].at(1000) == pytest.approx(0.025)
    assert engine.loads["filesystem"].at(1000) == pytest.approx(0.025 + 0.2)


def test_tiers_that_nobody_timed_have_no_curve() -> None:
    unknown = state()
    unknown["tiers"] = [{"name": "new", "rate": {"get": None}}, {"name": "old"}]
    unknown["connections"][0]["learned"]["path"] = []
    (engine,) = engines(unknown)
    assert engine.loads == {}


def test_loading_pays_from_where_its_fixed_cost_is_made_up_for() -> None:
    found = crossing(line(0.0, 0.001), line(0.5, 0.0005))
    assert found.tokens == pytest.approx(1000, rel=0.05)
    assert (found.low, found.high) == (found.tokens, found.tokens)


def test_uncertainty_widens_the_crossing() -> None:
    found = crossing(line(0.0, 0.001, 0.1), line(0.5, 0.0005, 0.1))
    assert (found.low or 0) < (found.tokens or 0) < (found.high or 0)
    assert found.low


def test_a_tier_that_is_slower_at_every_length_never_pays() -> None:
    assert crossing(line(0.0, 0.001), line(0.0, 0.004)) == Crossing(None, None, None)


def test_a_slow_tier_pays_where_attention_makes_computing_dear() -> None:
    compute = Curve(lambda tokens: 0.001 * tokens + 1e-7 * tokens * tokens, 0.0, 1)
    assert crossing(compute, line(0.0, 0.003)).tokens == pytest.approx(20_000, rel=0.05)


def test_what_is_faster_at_once_pays_at_any_length() -> None:
    assert crossing(line(0.1, 0.001), line(0.001, 0.0001)).tokens == 1


def test_the_figures_of_the_field_are_what_the_model_says() -> None:
    """2,000 tokens: 30 s from a slow NFS mount, 5 s to compute; fast hits of 4.4 to 6.7 s against 7.5 to 27.2 s."""
    assert crossing(line(0.0, 5 / 2000), line(0.0, 30 / 2000)).tokens is None
    cold, hit = line(7.5 - 19.7 / 3, 19.7 / 15_000), line(4.4 - 2.3 / 3, 2.3 / 15_000)
    found = crossing(cold, hit)
    assert found.tokens is not None
    assert [cold.at(5000), hit.at(5000)] == pytest.approx([7.5, 4.4])
    assert found.tokens < 5000


def test_the_document_has_seconds_crossings_and_gains() -> None:
    shown = document(state(filesystem=rate(5e6)))
    (engine,) = shown["engines"]
    assert shown["lengths"] == list(LENGTHS) == [256 << power for power in range(10)]
    assert len(engine["load"]["filesystem"]["seconds"]) == len(LENGTHS)
    assert engine["pays_from_tokens"]["arena"]["expected"] == 1
    assert engine["pays_from_tokens"]["filesystem"]["expected"] is None
    assert shown["gains"] == {"arena": {"tokens": 5000, "saved_s": 4.5, "lost_s": 0.25}}


def test_gains_are_listed_by_tier() -> None:
    assert gains(state()) == [Gain("arena", 5000, 4.5, 0.25)]
    assert gains({}) == []


def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from kveik.bench.breakeven_plot import draw

    draw(engines(state(filesystem=rate(30e6, 0.5)))[0], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
