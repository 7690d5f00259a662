"""What a probe of the cache came to, as lines for people and as values for programs. Pure."""

from collections.abc import Iterator
from typing import Any

from kveik.diagnose.cache_counters import Counts, KveikCounts
from kveik.diagnose.cache_probe import Course, Step
from kveik.diagnose.cache_probe_verdict import Observed, ProbeVerdict, in_words
from kveik.doctor.log_dictionary import Dictionary, read_entries
from kveik.doctor.log_ranking import rank
from kveik.doctor.log_scan import LogScan
from kveik.telemetry.redaction import redacted

_WIDTH = 12
_FINDINGS_SHOWN = 3


def lines_of(seen: Observed, verdict: ProbeVerdict, course: Course) -> Iterator[str]:
    """The result first, then what it rests on, then what to do."""
    yield f"{verdict.result.value}: {verdict.told}"
    yield ""
    for name, text in _evidence(seen, course):
        yield f"  {name:<{_WIDTH}} {text}"
    for note in [*verdict.notes, *faults_in(course)]:
        yield f"  {'note':<{_WIDTH}} {note}"
    if verdict.remedy:
        yield ""
        yield f"do: {verdict.remedy}"


def values_of(seen: Observed, verdict: ProbeVerdict, course: Course) -> dict[str, Any]:
    """The same for programs. Tokens, blocks and seconds."""
    return {
        "result": verdict.result.name.lower(),
        "works": verdict.works,
        "told": verdict.told,
        "remedy": verdict.remedy,
        "notes": [*verdict.notes, *faults_in(course)],
        "model": course.model,
        "connector": seen.connector.name.lower(),
        "across": seen.across,
        "prompt_tokens": seen.prompt_tokens,
        "unit_tokens": seen.unit_tokens,
        "own_cache_tokens": course.cache_tokens,
        "pushed_prompts": course.pushed_prompts,
        "used_tokens": seen.used_tokens,
        "reported_tokens": seen.reported_tokens,
        "foreign_tokens": seen.foreign_tokens,
        "cold_s": round(seen.cold_s, 4),
        "hit_s": round(seen.hit_s, 4),
        "namespaces": list(seen.namespaces),
        "answer": {
            "rule": seen.answer.rule,
            "complaint": seen.answer.complaint,
            "compared": seen.answer.compared,
        },
        "filled": _counts_values(seen.fill),
        "again": _counts_values(seen.again),
        "log": {
            "read": seen.log_read,
            "exists": [[share.count, share.of] for share in seen.log.exists],
            "hit_tokens": seen.log.hit_tokens,
            "need_tokens": seen.log.need_tokens,
            "lines": [redacted(line) for line in seen.log.lines],
        },
        "steps": [_step_values(step) for step in course.steps],
    }


def faults_in(course: Course) -> list[str]:
    """Known faults in the lines that the logs got while the probe ran; causes, not what follows from them."""
    if not course.log_lines:
        return []
    scan = LogScan(Dictionary(read_entries()))
    for line in course.log_lines:
        scan.feed(line)
    scan.settle()
    faults = [found for found in rank(scan).findings if found.entry.is_fault and not found.because_of]
    return [f"the log says, too: {found.entry.meaning} ({found.entry.id})" for found in faults[:_FINDINGS_SHOWN]]


def _evidence(seen: Observed, course: Course) -> Iterator[tuple[str, str]]:
    yield "model", f"{course.model}{f', {course.dtype}' if course.dtype else ''}"
    yield "connector", _connector_line(seen)
    yield "prompt", f"{seen.prompt_tokens:,} tokens; hits come in units of {seen.unit_tokens:,}"
    yield "filled", _filled_line(seen.fill)
    if seen.across:
        yield "asked again", "on the second engine, which had never seen it"
    elif course.pushed_prompts:
        yield "pushed out", f"{course.pushed_prompts} unrelated prompts, own cache of {course.cache_tokens:,} tokens"
    else:
        yield "pushed out", "the engine's own cache was emptied by a request"
    yield from _way_lines(seen)
    yield "took", f"{seen.hit_s:.3f} s to the first token; {seen.cold_s:.3f} s where all was computed"
    if seen.used_tokens:
        yield (
            "answer",
            seen.answer.complaint
            or (f"as the cold one ({seen.answer.rule})" if seen.answer.compared else "not compared"),
        )
    for line in seen.log.lines:
        yield "log", redacted(line)
    if course.steps:
        yield "request", f"{course.steps[-1].request_id}, the last one"


def _connector_line(seen: Observed) -> str:
    kveik = seen.again.kveik
    if kveik is None or kveik.attached is None:
        return seen.connector.value
    return f"{seen.connector.value}, {'attached to its agent' if kveik.attached else 'without an agent'}"


def _filled_line(fill: Counts) -> str:
    told = f"{fill.computed:,} tokens computed"
    if fill.kveik is not None:
        told += f", {fill.kveik.saved_blocks:,} blocks stored"
        if fill.kveik.skipped_blocks:
            told += f", {fill.kveik.skipped_blocks:,} there already"
        if fill.kveik.dropped:
            told += f", dropped: {in_words(fill.kveik.dropped)}"
        return told
    return f"{told}, {fill.stored} stored" if fill.stored is not None else told


def _way_lines(seen: Observed) -> Iterator[tuple[str, str]]:
    again = seen.again
    yield (
        "vLLM counts",
        f"{again.computed:,} computed, {again.local:,} from its own cache, {again.external:,} from outside",
    )
    if again.kveik is not None:
        yield "way", _kveik_way(again.kveik)
        if again.kveik.lookups:
            yield "lookups", in_words(again.kveik.lookups)
        if again.kveik.failures:
            yield "failed", in_words(again.kveik.failures)
    else:
        found = f", {again.found} found" if again.found is not None else ""
        yield "way", f"{again.queried:,} tokens asked for{found}, {again.external:,} used"


def _kveik_way(kveik: KveikCounts) -> str:
    steps = [f"{kveik.asked:,} tokens asked for"]
    if kveik.known_blocks is not None:
        steps.append(f"{kveik.known_blocks:,} blocks known")
    steps += [f"{kveik.found:,} usable", f"{kveik.allowed:,} allowed", f"{kveik.used:,} used"]
    return ", ".join(steps)


def _counts_values(counts: Counts) -> dict[str, Any]:
    values: dict[str, Any] = {
        "prompt": counts.prompt,
        "computed": counts.computed,
        "own_cache": counts.local,
        "external": counts.external,
        "queried": counts.queried,
        "stored": None if counts.stored is None else {counts.stored.unit: counts.stored.count},
        "found": None if counts.found is None else {counts.found.unit: counts.found.count},
    }
    kveik = counts.kveik
    if kveik is not None:
        values["kveik"] = {name: getattr(kveik, name) for name in KveikCounts.__slots__}
    return values


def _step_values(step: Step) -> dict[str, Any]:
    return {
        "step": step.name,
        "engine": step.engine,
        "request": step.request_id,
        "ttft_s": round(step.completion.ttft_s, 4),
        "cached_tokens": step.completion.cached_tokens,
        "computed": step.counts.computed,
        "own_cache": step.counts.local,
        "external": step.counts.external,
    }
