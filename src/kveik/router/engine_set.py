"""The engines that this router knows, by name and by model, kept in step with the registry's view."""

from collections.abc import Callable, Iterator

from kveik.breaker import Breaker, BreakerPolicy
from kveik.config import RouterSettings
from kveik.fleet.lifecycle import HOLDS
from kveik.fleet.membership import Member, Membership
from kveik.router.engines import SLOTS_MAX, EngineView
from kveik.router.upstream import EnginePool


class EngineSet:
    """Engines by name. ``forget_slot`` is called when a slot becomes free for another engine."""

    def __init__(self, settings: RouterSettings, forget_slot: Callable[[int], None]) -> None:
        self._settings = settings
        self._forget_slot = forget_slot
        self._policy = BreakerPolicy(settings.breaker_failures, settings.breaker_open_s, settings.breaker_open_max_s)
        self.by_name: dict[str, EngineView] = {}
        self._open_by_model: dict[str, list[EngineView]] = {}
        self._by_model: dict[str, list[EngineView]] = {}
        self.refused: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"EngineSet({', '.join(f'{view.name} {view.state}' for view in self.by_name.values())})"

    def __iter__(self) -> Iterator[EngineView]:
        return iter(list(self.by_name.values()))

    def apply(self, view: Membership) -> list[EngineView]:
        """Follow the registry's view; the engines that are new or have become other engines."""
        fresh = []
        self.refused = {}
        for name in [name for name in self.by_name if name not in view.members]:
            self._remove(name)
        for member in view.members.values():
            known = self.by_name.get(member.name)
            if known is not None and not known.announcement.same_engine(member.announcement):
                self._remove(member.name)
                known = None
            if known is None:
                known = self._add(member)
                if known is None:
                    continue
                fresh.append(known)
            elif known.announcement.models != member.announcement.models:
                fresh.append(known)  # adapters came or went: its list is read again
            known.announcement = member.announcement
            known.group = member.announcement.namespace  # an engine may tell it later
            known.state, known.why = member.state.value, member.why
            known.was_held = known.was_held or member.state in HOLDS
        self.rebuild()
        return fresh

    def _add(self, member: Member) -> EngineView | None:
        used = {engine.slot for engine in self.by_name.values()}
        slot = next((slot for slot in range(SLOTS_MAX) if slot not in used), None)
        if slot is None:
            self.refused[member.name] = f"one router takes {SLOTS_MAX} engines at most"
            return None
        host, port = member.announcement.host_port
        pool = EnginePool(
            host, port, idle_max_s=self._settings.engine_idle_s, connect_s=self._settings.connect_timeout_s
        )
        engine = EngineView(
            member.announcement,
            slot,
            breaker=Breaker(self._policy),
            group=member.announcement.namespace,
            pool=pool,
            models=member.announcement.models,
        )
        self.by_name[member.name] = engine
        return engine

    def _remove(self, name: str) -> None:
        engine = self.by_name.pop(name)
        engine.state, engine.why = "gone", "it left the fleet"
        if engine.pool is not None:
            engine.pool.retire()
        self._forget_slot(engine.slot)

    def rebuild(self) -> None:
        """Sort the engines by model anew: one of them changed its state, its models or its breaker."""
        self._by_model, self._open_by_model = {}, {}
        for engine in self.by_name.values():
            for model in ("", *engine.models):
                self._by_model.setdefault(model, []).append(engine)
                if engine.takes_requests:
                    self._open_by_model.setdefault(model, []).append(engine)

    def open_for(self, model: str) -> list[EngineView]:
        """The engines that take requests for a model; for no model, all that take requests."""
        return self._open_by_model.get(model, [])

    def serving(self, model: str) -> list[EngineView]:
        """All engines that serve a model, in whatever state."""
        return self._by_model.get(model, [])

    @property
    def all_models_known(self) -> bool:
        """Whether every engine has told which models it serves: only then is another model one that nobody has."""
        return all(engine.models for engine in self.by_name.values() if engine.state in ("announced", "ready"))

    @property
    def model_cards(self) -> list[dict[str, object]]:
        """The union of the engines' model cards, by id, in the order in which they came."""
        cards: dict[str, dict[str, object]] = {}
        for engine in self.by_name.values():
            for card in engine.cards:
                cards.setdefault(card["id"], card)
        return list(cards.values())

    def close(self) -> None:
        """End all connections to engines."""
        for engine in self.by_name.values():
            if engine.pool is not None:
                engine.pool.close()
