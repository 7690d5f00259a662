"""The known answer: whether an engine answers what it, and its like, answered before.

Judged by log probabilities, not by the text. With other batches around it the same prompt is computed in other
shapes, and rounding moves log probabilities by hundredths, with 16-bit numbers by tenths; where two tokens are
nearly as likely, the text changes and nothing is wrong. Garbage moves them by whole units: weights that are not
the model's, overwritten ones, NaN. So an answer is right if it is as likely as the known one up to
:data:`BOUND_NATS`, and where its tokens part from the known ones, with a token that was nearly as likely there.

The known answer is learned: from an engine's first good ones, and by what engines of one model and namespace
have in common. An engine is wrong that departs from what it used to answer, or that stands alone against two.
"""

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kveik.private_folder import replace_private_file
from kveik.watchdog.probe import Reply

logger = logging.getLogger("kveik.watchdog")

#: Nats. Verify's widest bound for rounding is 1.0 over whole answers; to restart a good engine is worse than
#: to find a bad one late.
BOUND_NATS = 2.0
#: vLLM writes this for a probability of 0, which a token that was chosen cannot have.
_ZERO_PROBABILITY = -9999.0
#: An answer seen so often is what the engine answers; until then the first one may have been the wrong one.
CONFIRMED = 3
_OPINIONS_MAX = 8
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an answer is right, and how that is known."""

    right: bool
    why: str


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, the engines that give it, and how often it was given (up to :data:`CONFIRMED`)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[dict[int, float], ...]
    witnesses: tuple[str, ...]
    seen: int = 1

    def without(self, engine: str) -> "Opinion":
        """The opinion if that engine had never given it."""
        return msgspec.structs.replace(self, witnesses=tuple(name for name in self.witnesses if name != engine))

    def supported(self, engine: str) -> "Opinion":
        """The opinion with that engine's answer counted."""
        witnesses = (*self.without(engine).witnesses, engine)
        return msgspec.structs.replace(self, witnesses=witnesses, seen=min(CONFIRMED, self.seen + 1))


def plain_fault(reply: Reply) -> str:
    """What is wrong with an answer whatever the question was; empty if nothing is."""
    if not reply.text and not reply.token_ids:
        return "the answer is empty"
    if any(not math.isfinite(value) or value <= _ZERO_PROBABILITY for value in reply.logprobs):
        return f"log probabilities are not finite: {list(reply.logprobs)}"
    if any(value > 1e-3 for value in reply.logprobs):
        return f"log probabilities are above 0: {list(reply.logprobs)}"
    return ""


def difference(known: Opinion, reply: Reply) -> str:
    """How an answer differs from the known one by more than rounding, in words; empty if it does not."""
    for position, (wanted, got) in enumerate(zip(known.token_ids, reply.token_ids, strict=False)):
        expected = known.logprobs[position] if wanted == got else known.top[position].get(got)
        if expected is None:
            likely = sorted(known.top[position])
            return (
                f"token {got} at position {position}, expected {wanted}; {got} is not among its {len(likely)} likeliest"
            )
        here = reply.logprobs[position]
        if not abs(here - expected) <= BOUND_NATS or known.logprobs[position] - expected > BOUND_NATS:
            told = f"token {got} at position {position} has log probability {here:.2f}"
            return f"{told}, known are {expected:.2f}, and {known.logprobs[position]:.2f} for token {wanted}"
        if wanted != got:
            return ""  # from here on both follow from other texts
    return ""


def weigh(opinions: Sequence[Opinion], engine: str, reply: Reply) -> tuple[list[Opinion], Judgement]:
    """Judge an engine's answer by what is known, and what is known after it. ``reply`` has no plain fault."""
    known = list(opinions)
    same = next((index for index, opinion in enumerate(known) if not difference(opinion, reply)), None)
    own = next((index for index, opinion in enumerate(known) if engine in opinion.witnesses), None)
    departs = ""
    if own is not None and difference(known[own], reply):
        departs = difference(known[own], reply)
        others = known[same].without(engine).witnesses if same is not None else ()
        if known[own].seen >= CONFIRMED and not others:
            return known, Judgement(False, f"it used to answer otherwise: {departs}")
        known[own] = known[own].without(engine)
        departs = "" if others else f"it answered otherwise before: {departs}"
    if same is not None:
        known[same] = known[same].supported(engine)
    elif len(known) < _OPINIONS_MAX:
        known.append(_opinion(reply, engine))
    mine = next((opinion for opinion in known if engine in opinion.witnesses), None)
    known = [opinion for opinion in known if opinion.witnesses]
    if departs:
        return known, Judgement(False, departs)
    return known, _against_others(mine, known, reply)


def _against_others(mine: Opinion | None, known: Sequence[Opinion], reply: Reply) -> Judgement:
    """Whether more engines than share this answer give another one."""
    others = [opinion for opinion in known if opinion is not mine]
    if not others:
        return Judgement(True, "the known answer" if mine and mine.seen >= CONFIRMED else "an answer to be known by")
    most = max(others, key=lambda opinion: len(opinion.witnesses))
    how = f"{', '.join(sorted(most.witnesses))}, of the same model and namespace, answer otherwise: "
    how += difference(most, reply)
    if len(most.witnesses) >= 2 and len(most.witnesses) > (len(mine.witnesses) if mine else 0):
        return Judgement(False, how)
    return Judgement(True, f"taken for right, though {how}")


def _opinion(reply: Reply, engine: str) -> Opinion:
    top = tuple({token: value for token, value in one.items() if math.isfinite(value)} for one in reply.top)
    return Opinion(token_ids=reply.token_ids, logprobs=reply.logprobs, top=top, witnesses=(engine,))


class _Content(msgspec.Struct, frozen=True):
    version: int
    answers: dict[str, list[Opinion]]


class References:
    """The known answers of a node's engines, in a file unless ``path`` is None; threads may share it.

    ``key`` names what must be equal for answers to be: model, namespace and question. An empty ``namespace``
    promises nothing beyond one run of one engine, so what was learned without one is neither kept nor compared.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = _read(path)
        self._passing: dict[tuple[str, str], list[Opinion]] = {}

    def judge(self, engine: str, reply: Reply, *, question: str, namespace: str) -> Judgement:
        """Judge an answer of ``engine`` and learn from it. ``question``: model and way of asking."""
        if fault := plain_fault(reply):
            return Judgement(False, fault)
        tokens = len(reply.token_ids)
        if not tokens or not tokens == len(reply.logprobs) == len(reply.top):
            return Judgement(True, "an answer without log probabilities, which nothing is compared with")
        with self._lock:
            if not namespace:
                place = (engine, question)
                self._passing[place], judgement = weigh(self._passing.get(place, ()), engine, reply)
                return judgement
            key = f"{question} in {namespace}"
            before = self._kept.get(key, [])
            after, judgement = weigh(before, engine, reply)
            if after != before:
                self._kept[key] = after
                self._save()
            return judgement

    def forget(self, engine: str) -> None:
        """The engine was started anew: without a namespace it may be another one now."""
        with self._lock:
            self._passing = {place: known for place, known in self._passing.items() if place[0] != engine}

    def _save(self) -> None:
        """Write the file. What cannot be written is learned again by the next watchdog."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(self._path, msgspec.json.encode(_Content(_VERSION, self._kept)), sync=False)
        except OSError as error:
            logger.warning("cannot write the known answers to %s: %s", self._path, error.strerror)


def _read(path: Path | None) -> dict[str, list[Opinion]]:
    """What a file holds; nothing where it is missing or not understood: it is learned again."""
    if path is None:
        return {}
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("known answers in %s are not read, and learned again: %s", path, error)
        return {}
    return content.answers if content.version == _VERSION else {}
