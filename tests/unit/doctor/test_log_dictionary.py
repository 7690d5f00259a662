"""Lines are looked up by their words; patterns decide, in the order of the entries."""

from kveik.doctor.log_dictionary import Dictionary, Entry, Severity
from kveik.doctor.log_line import Level, LogLine


def entry(id_: str, words: str, pattern: str = "", *, quiet: bool = False, code: bool = False) -> Entry:
    return Entry(
        id=id_,
        product="test",
        severity=Severity.ERROR,
        words=tuple(words.split()),
        meaning="",
        causes=(),
        remedy="",
        source="",
        sample="",
        pattern=pattern,
        quiet=quiet,
        code=code,
    )


def line(text: str, level: Level = Level.ERROR) -> LogLine:
    return LogLine(level, "", "", "", text)


DICTIONARY = Dictionary(
    [
        entry("special", "store", r"store \d+ failed: full"),
        entry("general", "store shop", r"failed"),
        entry("word", "EI0006"),
        entry("hint", "hit", r"hit=0\b", quiet=True),
        entry("source", "assert", r"assert backend", code=True),
    ]
)


def found(text: str, level: Level = Level.ERROR, *, in_code: bool = False) -> str:
    entry_ = DICTIONARY.find(line(text, level), in_code=in_code)
    return entry_.id if entry_ else ""


def test_the_first_entry_that_fits_is_the_line_s() -> None:
    assert found("store 7 failed: full") == "special"
    assert found("store 7 failed: gone") == "general"
    assert found("the shop failed") == "general"


def test_a_word_counts_as_a_whole_only() -> None:
    assert found("EI0006 timeout") == "word"
    assert found("(EI0006)") == "word"
    assert found("EI00061 timeout") == ""
    assert found("restore 7 failed: full") == ""


def test_a_pattern_without_its_words_is_not_tried() -> None:
    assert found("something failed") == ""


def test_lines_that_call_themselves_information_are_asked_for_quiet_entries_only() -> None:
    assert found("hit=0", Level.INFO) == "hint"
    assert found("hit=0", Level.DEBUG) == "hint"
    assert found("hit=0") == "hint"
    assert found("EI0006", Level.INFO) == ""
    assert found("EI0006", Level.PLAIN) == "word"
    assert found("EI0006", Level.WARNING) == "word"


def test_lines_of_code_are_asked_for_entries_of_code_only() -> None:
    assert found("    assert backend is not None", in_code=True) == "source"
    assert found("    raise EI0006", in_code=True) == ""


def test_entries_are_known_by_their_ids_and_kept_in_order() -> None:
    assert list(DICTIONARY.entries) == ["special", "general", "word", "hint", "source"]
    assert [entry_.id for entry_ in DICTIONARY] == list(DICTIONARY.entries)


def test_faults_and_weak_causes_are_told_by_severity_and_symptom() -> None:
    fault = entry("a", "a")
    assert fault.is_fault
    assert not fault.is_weak_cause
