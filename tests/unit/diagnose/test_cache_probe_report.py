"""What a probe came to, for people and for programs."""

import json

from kveik.diagnose.cache_counters import Amount, Connector, Counts, KveikCounts
from kveik.diagnose.cache_log import LogEvidence, Share
from kveik.diagnose.cache_probe import Course, Step
from kveik.diagnose.cache_probe_report import faults_in, lines_of, values_of
from kveik.diagnose.cache_probe_verdict import Answer, Observed, judge
from kveik.engine.client import Completion

ANSWER = Completion((5,), "x", (-1.0,), ({5: -1.0},), 0.1, 0.2, 1000, 992, "length")
HIT = KveikCounts(asked=999, known_blocks=62, found=992, allowed=992, used=992, lookups={"hit": 1}, attached=True)
AGAIN = Counts(prompt=1000, computed=8, external=992, queried=999, kveik=HIT)
SEEN = Observed(
    connector=Connector.KVEIK,
    prompt_tokens=1000,
    unit_tokens=16,
    fill=Counts(prompt=1000, computed=1000, kveik=KveikCounts(saved_blocks=62, attached=True)),
    again=AGAIN,
    cold_s=2.0,
    hit_s=0.1,
    answer=Answer("float32"),
    reported_tokens=992,
    own_tokens=992,
)
COURSE = Course(
    model="smollm2",
    dtype="float32",
    cache_tokens=4096,
    pushed_prompts=5,
    steps=[Step("again", "engine 1", "kveik-probe-1-again", ANSWER, AGAIN)],
)


def told(seen: Observed, course: Course = COURSE) -> str:
    return "\n".join(lines_of(seen, judge(seen), course))


def test_the_first_line_is_the_result_and_the_rest_what_it_rests_on() -> None:
    text = told(SEEN)
    assert text.startswith("works: 992 of 1,000 tokens came from the shared cache")
    for part in (
        "Kveik, attached to its agent",
        "1,000 tokens computed, 62 blocks stored",
        "5 unrelated prompts, own cache of 4,096 tokens",
        "8 computed, 0 from its own cache, 992 from outside",
        "999 tokens asked for, 62 blocks known, 992 usable, 992 allowed, 992 used",
        "0.100 s to the first token; 2.000 s where all was computed",
        "as the cold one",
        "kveik-probe-1-again",
    ):
        assert part in text, part
    assert "do:" not in text


def test_what_does_not_work_ends_with_what_to_do() -> None:
    seen = Observed(
        connector=Connector.SILENT,
        prompt_tokens=1000,
        unit_tokens=16,
        fill=Counts(prompt=1000, computed=1000, queried=999, stored=Amount(96, "keys")),
        again=Counts(prompt=1000, computed=1000, queried=999, found=Amount(0, "tokens")),
        cold_s=2.0,
        hit_s=2.0,
        answer=Answer("float32"),
        across=True,
        log=LogEvidence(exists=[Share(96, 96)], hit_tokens=0, lines=["final hit=0"]),
        log_read=True,
    )
    text = told(seen)
    assert text.startswith("found, but nothing usable:")
    assert "on the second engine" in text
    assert "1,000 tokens computed, 96 keys stored" in text
    assert "999 tokens asked for, 0 tokens found, 0 used" in text
    assert "log          final hit=0" in text
    assert text.splitlines()[-1].startswith("do: ")


def test_programs_get_every_number() -> None:
    values = json.loads(json.dumps(values_of(SEEN, judge(SEEN), COURSE)))
    assert (values["result"], values["works"], values["used_tokens"]) == ("works", True, 992)
    assert values["again"]["kveik"]["found"] == 992
    assert values["filled"]["kveik"]["saved_blocks"] == 62
    assert values["steps"] == [
        {
            "step": "again",
            "engine": "engine 1",
            "request": "kveik-probe-1-again",
            "ttft_s": 0.1,
            "cached_tokens": 992,
            "computed": 8,
            "own_cache": 0,
            "external": 992,
        }
    ]


def test_known_faults_of_the_log_are_named_and_no_others() -> None:
    fault = "NotImplementedError: MooncakeBackend does not support protocol 'tcp'."
    well = "INFO 11-30 01:00:22 [core.py:133] all is well"
    course = Course(log_lines=[well, f"ERROR 11-30 01:00:22 [mooncake_backend.py:194] {fault}"])
    assert len(faults_in(course)) == 1
    assert "protocol" in faults_in(course)[0]
    assert faults_in(Course(log_lines=[well])) == []
    assert faults_in(Course()) == []
