"""The check ``stores``: whether each store that the settings name keeps blocks and serves them to this machine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import SeenAgent, together
from kveik.doctor.network_cards import own_addresses
from kveik.doctor.store_judge import judge_store
from kveik.doctor.store_trial import stores_of, try_store

_NONE = Point(Outcome.WELL, "stores", "the settings name none: blocks stay in this node's memory")


def check_stores(context: Context) -> Verdict:
    """Try all stores of the configuration. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    described = fleet.described
    tried = stores_of(described.agent, described.stores)
    if not tried:
        return Verdict((), [_NONE])
    tiers = tiers_of(fleet.view().agent)
    own = own_addresses()
    points: list[Point] = []
    for facts in together(try_store, tried):
        points += judge_store(replace(facts, agent=tiers.get(facts.name)), own)
    return Verdict([f"{store.name} at {store.address}" for store in tried], points)


def tiers_of(agent: SeenAgent | None) -> dict[str, Mapping[str, Any]]:
    """The lower tiers of an agent by name; none if it did not answer."""
    state = agent.state if agent is not None else None
    return {str(tier["name"]): tier for tier in (state or {}).get("tiers", ())}
