"""What was found, in words and as values."""

import json

from kveik.doctor.log_report import is_worth_telling, text_of, told, values_of
from tests.log_samples import ranked, scanned

LINES = (
    "E1130 03:18:01.056640 8 client_service.cpp:1] Failed to ping master",
    "E1130 03:18:02.056640 8 client_service.cpp:1] Failed to ping master",
    "(EngineCore pid=1) ERROR 11-30 01:00:23 [core.py:1512] EngineDeadError",
    "ERROR 11-30 01:00:24 [a.py:1] no flux, api_key=sk-verysecret1",
)


def text(*lines: str) -> str:
    return "\n".join(text_of("x.log", scanned(*lines), ranked(*lines)))


def test_a_report_tells_cause_consequence_and_what_is_unknown_in_this_order() -> None:
    report = text(*LINES)
    assert report.startswith("x.log: 4 lines; 2 kind(s) of known lines, 1 unknown fault(s)")
    order = [
        "1. error, Mooncake",
        "2 times, line 1",
        "likely:",
        "do:",
        "source:",
        "then: The engine's core",
        "unknown, so",
    ]
    assert [report.index(part) for part in order] == sorted(report.index(part) for part in order)


def test_a_clean_log_is_one_line() -> None:
    assert text("INFO: all is well") == "x.log: 1 lines; nothing found that is known to be wrong"


def test_secrets_in_lines_are_not_repeated() -> None:
    assert "verysecret" not in text(*LINES)
    assert "verysecret" not in json.dumps(values_of("x.log", scanned(*LINES), ranked(*LINES)))


def test_programs_get_all_of_it_as_values() -> None:
    values = json.loads(json.dumps(values_of("x.log", scanned(*LINES), ranked(*LINES))))
    assert values["trouble"] is True
    cause, consequence = values["findings"]
    assert (cause["id"], cause["count"], cause["followed_by"]) == ("mooncake-master-gone", 2, ["vllm-engine-dead"])
    assert consequence["because_of"] == "mooncake-master-gone"
    assert cause["first"] == {"line": 1, "time": "1130 03:18:01.056640", "text": "Failed to ping master"}
    assert values["unknown"][0]["first"]["text"].startswith("no flux")


def test_many_kinds_of_unknown_faults_are_shown_in_part() -> None:
    lines = [f"ERROR: flux of {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(60)]
    assert "and 40 more kinds" in text(*lines)


def test_who_follows_hears_of_a_thing_at_each_power_of_ten() -> None:
    scan = scanned(*[LINES[0]] * 9)
    (group,) = scan.found.values()
    assert not is_worth_telling(group)
    assert scan.feed(LINES[0]) == [group]
    assert is_worth_telling(group)
    assert told(group).startswith("line 10: error (10 times): Mooncake's master does not answer.")
    (unknown,) = scanned("ERROR: no flux").unknown.values()
    assert told(unknown) == "line 1: unknown: no flux"
