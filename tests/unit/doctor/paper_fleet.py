"""A fleet on paper: a context whose fleet has been read already."""

from collections.abc import Sequence

from kveik.doctor.check import Context
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.fleet_view import Fleet, FleetView, SeenAgent, SeenEngine, SeenRouter


class PaperFleet(Fleet):
    """Shows what it is given."""

    def __init__(self, described: DescribedFleet, view: FleetView) -> None:
        super().__init__(described)
        self._view = view


def context_of(
    engines: Sequence[SeenEngine] = (),
    agent: SeenAgent | None = None,
    routers: Sequence[SeenRouter] = (),
    described: DescribedFleet | None = None,
    hold_s: float = 0.0,
    **environ: str,
) -> Context:
    """A context with these engines, agent and routers."""
    view = FleetView(tuple(engines), tuple(routers), agent)
    return Context("python", environ, fleet=PaperFleet(described or DescribedFleet("paper"), view), hold_s=hold_s)
