"""What came first stands first; what followed stands below it."""

from kveik.doctor.log_dictionary import Dictionary, Entry, Severity
from tests.log_samples import causes, ranked


def entry(id_: str, severity: Severity = Severity.ERROR, *, symptom: bool = False, explains: str = "") -> Entry:
    return Entry(
        id=id_,
        product="test",
        severity=severity,
        words=(id_,),
        meaning="",
        causes=(),
        remedy="",
        source="",
        sample="",
        symptom=symptom,
        explains=tuple(explains.split()),
        quiet=True,
    )


DICTIONARY = Dictionary(
    [
        entry("cable", explains="transfer"),
        entry("transfer", explains="load"),
        entry("load"),
        entry("disk"),
        entry("dead", Severity.FATAL, symptom=True, explains="loop"),
        entry("loop", Severity.FATAL, symptom=True),
        entry("slow", Severity.WARNING),
        entry("hello", Severity.NOTE, explains="dead"),
    ]
)


def found(*words: str) -> dict[str, str]:
    return {
        finding.entry.id: finding.because_of
        for finding in ranked(*(f"ERROR: {word}" for word in words), dictionary=DICTIONARY).findings
    }


def test_the_first_fault_stands_before_the_avalanche_after_it() -> None:
    result = ranked("ERROR: disk", *["ERROR: load"] * 1000, dictionary=DICTIONARY)
    assert causes(result) == ["disk", "load"]


def test_a_root_cause_stands_before_its_consequences_of_any_order_and_length() -> None:
    assert found("load", "transfer", "cable") == {"cable": "", "load": "transfer", "transfer": "cable"}
    result = ranked(*(f"ERROR: {word}" for word in ("load", "transfer", "cable")), dictionary=DICTIONARY)
    assert result.findings[0].followed_by == ["load", "transfer"]


def test_what_comes_long_after_explains_nothing() -> None:
    lines = ["ERROR: transfer", *["INFO: x"] * 1000, "ERROR: cable"]
    assert causes(ranked(*lines, dictionary=DICTIONARY)) == ["transfer", "cable"]


def test_a_symptom_follows_from_the_last_fault_that_began_before_it() -> None:
    assert found("disk", "slow", "cable", "transfer", "dead") == {
        "disk": "",
        "cable": "",
        "slow": "",
        "transfer": "cable",
        "dead": "cable",
    }


def test_a_symptom_alone_is_shown_as_what_there_is() -> None:
    result = ranked("ERROR: loop", "ERROR: dead", dictionary=DICTIONARY)
    assert causes(result) == ["dead"]
    assert not result.unknown_first


def test_a_note_is_named_as_a_cause_only_where_there_is_no_fault() -> None:
    assert found("hello", "dead")["dead"] == "hello"
    assert found("hello", "disk", "dead")["dead"] == "disk"


def test_faults_stand_before_warnings_and_warnings_before_notes() -> None:
    assert list(found("hello", "slow", "disk")) == ["disk", "slow", "hello"]


def test_an_unknown_fault_above_all_others_may_be_their_cause() -> None:
    assert ranked("ERROR: flux", "ERROR: disk", dictionary=DICTIONARY).unknown_first
    assert not ranked("ERROR: disk", "ERROR: flux", dictionary=DICTIONARY).unknown_first
    assert ranked("ERROR: dead", "ERROR: flux", dictionary=DICTIONARY).unknown_first


def test_notes_alone_are_no_trouble() -> None:
    assert not ranked("INFO: hello", dictionary=DICTIONARY).has_trouble
    assert ranked("INFO: slow", dictionary=DICTIONARY).has_trouble
    assert ranked("ERROR: flux", dictionary=DICTIONARY).has_trouble
