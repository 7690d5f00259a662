"""Lays a prompt beside an earlier one that it should share its beginning with: where they part, and what follows. Pure.

A prompt is a list of parts (:mod:`kveik.router.prompt_parts`). Where the first parts that differ are followed by
text that both have, that text was computed again only because of what stands before it: those tokens are lost. Of the
new prompt the text is there, of the earlier one only its sketch; nothing of a text goes into a result, unless an
excerpt is asked for. What a kind of break means and what to do about it: :mod:`kveik.router.break_kinds`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kveik.router.break_kinds import (
    HISTORY,
    INSERTED,
    MEDIA_FIRST,
    OPTIONS_DIFFER,
    REASONING_DIFFERS,
    SYSTEM_DIFFERS,
    TEXT_DIFFERS,
    TOOLS_CHANGED,
    TOOLS_ORDER,
)  # fmt: skip
from kveik.router.prompt_parts import (
    ASSISTANT,
    CALLS,
    MEDIA,
    OPTIONS,
    REASONING,
    RESULT,
    SYSTEM,
    TOKENS,
    TOOL,
    Part,
)  # fmt: skip
from kveik.router.prompt_sketch import MARKS_MAX, RUN_UNITS, SPACE, TEXT_BYTES_MAX, Sketcher, Units, classes_of
from kveik.router.text_shapes import WHITESPACE, shape_of

#: Fewer bytes of equal text behind a difference are no loss: about 64 tokens, or four of an engine's blocks.
LOST_BYTES_MIN = 256
#: Smaller parts say nothing by being equal ("ok", "go on").
PART_BYTES_MIN = 32
#: A longer piece that differs is another text, not something that changed within one.
WINDOW_BYTES_MAX = 4096
#: A conversation whose beginning became a summary goes on with so many messages that it had before.
SAID_MIN = 2
#: Of a longer piece it is not asked what it looks like.
SHAPE_CHARS_MAX = 256
EXCERPT_CHARS = 60


class KnownPart(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A part as it is remembered. ``same``: equal for equal text; ``any_order``: equal for tools with equal members.

    ``units`` and ``marks``: see :class:`Sketcher`; there are none where the part is no text. ``tail``: equal for equal
    ends of texts that are longer than their units; else 0.
    """

    same: int
    any_order: int
    thinks: bool
    units: Units
    marks: tuple[int, ...]
    tail: int = 0


class Placed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A part in its place in a prompt."""

    label: str
    index: int
    size_bytes: int
    known: KnownPart


@dataclass(frozen=True, slots=True)
class Break:
    """Where a prompt leaves the way of an earlier one.

    ``label`` and ``index``: the part, as in :class:`kveik.router.prompt_parts.Part`. ``at_bytes``: of its prompt.
    ``lost_bytes``: what is equal behind, and was in no earlier prompt's beginning.
    """

    kind: str
    label: str
    index: int
    at_bytes: int
    lost_bytes: int
    excerpt: str = ""


class Differs(NamedTuple):
    """What differs within one part: bytes of the new one, and units of the old one.

    ``equal_bytes``: what is equal behind it in the part. ``alike``: whether both are one text with a change.
    """

    start: int
    end: int
    old: Units
    equal_bytes: int
    alike: bool
    text: bytes


class Cut(NamedTuple):
    """A text, its units, and where they begin; after them where the last one ends."""

    text: bytes
    units: Units
    edges: NDArray[np.int32]


class Texts:
    """The texts of a new prompt's parts, made and cut when they are asked for."""

    def __init__(self, parts: Sequence[Part], sketcher: Sketcher) -> None:
        self._parts, self._sketcher = parts, sketcher
        self._cut: dict[int, Cut] = {}

    def cut(self, number: int) -> Cut:
        """The text of a part in units."""
        known = self._cut.get(number)
        if known is None:
            text = self._parts[number].text()
            units, places = self._sketcher.units(text)
            edges = np.append(places, np.int32(min(len(text), TEXT_BYTES_MAX)))
            known = self._cut[number] = Cut(text, units, edges)
        return known


class Way(NamedTuple):
    """How two prompts go on behind the place where they part.

    ``skipped``, ``dropped``: parts of the new and of the old one until both go the same way again; all that are left
    if they never do (``resumed`` is false). ``equal_bytes``: what is equal from there; ``said``: how many messages that
    somebody wrote are among it, unlike results of tools, which many conversations may have.
    """

    skipped: int
    dropped: int
    equal_bytes: int
    said: int
    resumed: bool


def common_parts(new: Sequence[Placed], old: Sequence[Placed]) -> int:
    """With how many equal parts both begin."""
    count = 0
    for one, other in zip(new, old, strict=False):
        if one.known.same != other.known.same or one.label != other.label:
            break
        count += 1
    return count


def common_units(one: Units, other: Units) -> int:
    """With how many equal units both begin."""
    least = min(len(one), len(other))
    differing = one[:least] != other[:least]
    return int(differing.argmax()) if differing.any() else least


class Comparison:
    """A new prompt beside an earlier one."""

    def __init__(self, new: Sequence[Placed], old: Sequence[Placed], texts: Texts, sketcher: Sketcher) -> None:
        self._new, self._old = new, old
        self._texts, self._sketcher = texts, sketcher
        self._reach = 0
        self._first = common_parts(new, old)
        self._start = sum(part.size_bytes for part in new[: self._first])

    @property
    def goes_on(self) -> bool:
        """Whether one of the two prompts goes on from the other."""
        return self._first == min(len(self._new), len(self._old))

    @property
    def prefix_bytes(self) -> int:
        """How much of the new prompt's beginning the earlier one has too."""
        if self.goes_on:
            return self._start
        new, old = self._new[self._first], self._old[self._first]
        if new.label != old.label or not (head := common_units(new.known.units, old.known.units)):
            return self._start
        return self._start + int(self._texts.cut(self._first).edges[head])

    def result(self, reach_bytes: int = 0, *, excerpts: bool = False) -> Break | None:
        """Where they part; None if one goes on from the other, or nothing worth telling is lost.

        ``reach_bytes``: how much of the new prompt's beginning some earlier prompt had: no loss, whatever this one had.
        """
        if self.goes_on:
            return None
        self._reach = reach_bytes
        first = self._first
        new, old = self._new[first], self._old[first]
        way = self._equal_parts()
        differs = self._within(new, old) if way.skipped and way.dropped and new.label == old.label else None
        alike = differs is not None and differs.alike
        lost = way.equal_bytes + (differs.equal_bytes if differs is not None else 0)
        if lost < LOST_BYTES_MIN:
            return None
        kind = self._kind(differs, way)
        if not self._is_worth_telling(kind, way, lost, differs):
            return None
        at = self._start + (differs.start if differs is not None and alike else 0)
        label, index = (TOOL, -1) if kind in (TOOLS_ORDER, TOOLS_CHANGED) else (new.label, new.index)
        return Break(kind, label, index, at, lost, _excerpt(differs) if excerpts else "")

    def _is_worth_telling(self, kind: str, way: Way, lost: int, differs: Differs | None) -> bool:
        """Whether it is one prompt with a change, and not two that merely have something in common.

        What a model answered, and what its tools told it, follows from all that stands before: if that differs, no
        client can put the equal part first.
        """
        if kind in (TOOLS_ORDER, OPTIONS_DIFFER):
            return True
        if differs is not None and differs.alike and kind != TOOLS_CHANGED:
            return kind != TEXT_DIFFERS or differs.end - differs.start <= min(WINDOW_BYTES_MAX, lost)
        if not way.resumed:
            return False
        skipped = self._new[self._first : self._first + way.skipped]
        if kind in (TEXT_DIFFERS, MEDIA_FIRST):
            follows = self._new[self._first + way.skipped].label
            short = kind == MEDIA_FIRST or self._is_short(skipped, lost)
            return len(skipped) == way.dropped == 1 and follows not in _OF_THE_MODEL and short
        if kind == INSERTED:
            return self._is_short(skipped, lost)
        return kind != HISTORY or not skipped or (len(skipped) == 1 and way.said >= SAID_MIN)

    @staticmethod
    def _is_short(parts: Sequence[Placed], lost: int) -> bool:
        return sum(part.size_bytes for part in parts) <= min(WINDOW_BYTES_MAX, lost)

    def _kind(self, differs: Differs | None, way: Way) -> str:
        new, old = self._new[self._first], self._old[self._first]
        labels = {new.label, old.label}
        if OPTIONS in labels:
            return OPTIONS_DIFFER
        if TOOL in labels:
            return self._kind_of_tools(differs)
        if _is_about_reasoning(new, old):
            return REASONING_DIFFERS
        shape = _shape(differs) if differs is not None and new.label != TOKENS else ""
        if shape:
            return shape
        if MEDIA in labels and way.skipped:
            return MEDIA_FIRST
        if SYSTEM in labels and (way.skipped or old.label == SYSTEM):
            return SYSTEM_DIFFERS
        if way.resumed and way.dropped > way.skipped:
            return HISTORY
        return TEXT_DIFFERS if way.dropped or not way.resumed else INSERTED

    def _kind_of_tools(self, differs: Differs | None) -> str:
        new = [part.known.any_order for part in self._new if part.label == TOOL]
        old = [part.known.any_order for part in self._old if part.label == TOOL]
        if sorted(new) == sorted(old):
            return TOOLS_ORDER
        only_one_differs = len(new) == len(old) and len(set(new) - set(old)) == 1
        return (_shape(differs) if only_one_differs and differs is not None else "") or TOOLS_CHANGED

    def _equal_parts(self) -> Way:
        """How both go on. Tools are equal wherever they stand, all else in its order."""
        first = self._first
        tools = {part.known.any_order for part in self._old[first:] if part.label == TOOL}
        places: dict[int, list[int]] = {}
        for place in range(len(self._old) - 1, first - 1, -1):
            places.setdefault(self._old[place].known.same, []).append(place)
        begin, next_place, equal, said = self._start, first, 0, 0
        resumed: tuple[int, int] | None = None
        for number, part in enumerate(self._new[first:]):
            end = begin + part.size_bytes
            found = part.label == TOOL and part.known.any_order in tools
            if not found and part.size_bytes >= PART_BYTES_MIN:
                left = places.get(part.known.same, [])
                while left and left[-1] < next_place:
                    left.pop()
                if found := bool(left):
                    next_place = left.pop() + 1
                    resumed = resumed or (number, next_place - 1 - first)
            if found:
                said += part.label in _SAID
                equal += max(0, end - max(begin, self._reach))
            begin = end
        skipped, dropped = resumed or (len(self._new) - first, len(self._old) - first)
        return Way(skipped, dropped, equal, said, resumed is not None)

    def _within(self, new: Placed, old: Placed) -> Differs | None:
        """What differs within the first parts that are not equal; None where they are no texts, or two others."""
        mine, its = new.known.units, old.known.units
        if not len(mine) or not len(its) or _have_nothing_in_common(new.known.marks, old.known.marks):
            return None
        text, _, edges = self._texts.cut(self._first)
        differs = self._laid_beside(text, edges, mine, its)
        if new.known.tail and new.known.tail == old.known.tail and differs.alike:
            return differs._replace(equal_bytes=differs.equal_bytes + max(0, new.size_bytes - TEXT_BYTES_MAX))
        return differs

    def _laid_beside(self, text: bytes, edges: NDArray[np.int32], mine: Units, its: Units) -> Differs:
        head = common_units(mine, its)
        runs, others = self._sketcher.runs(mine[head:]), self._sketcher.runs(its[head:])
        hits = np.isin(runs, others)
        covered = np.zeros(len(mine), np.bool_)
        if hits.any():
            at = int(hits.argmax())
            stop, stop_old = head + at, head + int((others == runs[at]).argmax())
            covered = _covered(hits, len(mine), head)
            tail = int(covered.sum())
        else:
            tail = common_units(mine[head:][::-1], its[head:][::-1])
            stop, stop_old = len(mine) - tail, len(its) - tail
        alike = 2 * (head + tail) >= len(mine)
        if self._reach > self._start:
            covered[edges[:-1] < self._reach - self._start] = False
        equal = int(np.diff(edges)[covered].sum())
        return Differs(int(edges[head]), int(edges[stop]), its[head:stop_old], equal, alike, text)


_OF_AN_ANSWER = frozenset((ASSISTANT, REASONING, CALLS))
_SAID = frozenset(("user", ASSISTANT))
_OF_THE_MODEL = _OF_AN_ANSWER | {RESULT}


def _have_nothing_in_common(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether marks show, without a look at the texts, that these are two; short texts have too few for that."""
    return len(one) == len(other) == MARKS_MAX and set(one).isdisjoint(other)


def _is_about_reasoning(new: Placed, old: Placed) -> bool:
    """Whether both are of the same answer, and its reasoning is what differs."""
    labels = {new.label, old.label}
    if new.index != old.index or not labels <= _OF_AN_ANSWER:
        return False
    return REASONING in labels or (len(labels) == 1 and new.known.thinks != old.known.thinks)


def _covered(hits: NDArray[np.bool_], count: int, head: int) -> NDArray[np.bool_]:
    """The units that belong to a run that both have."""
    steps = np.zeros(count + 1, np.int32)
    at = np.flatnonzero(hits) + head
    steps[at] += 1
    steps[at + RUN_UNITS] -= 1
    covered: NDArray[np.bool_] = np.cumsum(steps[:-1]) > 0
    return covered


def _shape(differs: Differs) -> str:
    """What it is that differs; empty where it is other text."""
    if not differs.alike:
        return ""
    old = classes_of(differs.old)
    if differs.start == differs.end:
        return WHITESPACE if old == {SPACE} else ""
    if differs.end - differs.start > SHAPE_CHARS_MAX:
        return ""
    before = differs.text[max(0, differs.start - 2 * SHAPE_CHARS_MAX) : differs.start].decode("utf8", "ignore")
    inside = differs.text[differs.start : differs.end].decode("utf8", "ignore")
    after = differs.text[differs.end : differs.end + 2 * SHAPE_CHARS_MAX].decode("utf8", "ignore")
    shape = shape_of(before + inside + after, len(before), len(before) + len(inside))
    if shape == WHITESPACE and old - {SPACE}:
        return ""
    return shape


def _excerpt(differs: Differs | None) -> str:
    """A little of the new text, from before the place on."""
    if differs is None:
        return ""
    begin = max(0, differs.start - EXCERPT_CHARS // 3)
    return differs.text[begin : begin + 4 * EXCERPT_CHARS].decode("utf8", "ignore")[:EXCERPT_CHARS]
