"""Real logs: what processes wrote while all was well, and while something was not."""

from pathlib import Path

from kveik.doctor.log_dictionary import Dictionary, read_entries
from kveik.doctor.log_file import lines_of
from kveik.doctor.log_ranking import Ranked, rank
from kveik.doctor.log_scan import LogScan

LOGS = Path(__file__).parent / "data" / "logs"
CLEAN = sorted(LOGS.glob("clean_*.log"))
FAULTY = sorted(LOGS.glob("faulty_*.log"))
DICTIONARY = Dictionary(read_entries())


def scanned(*lines: str, dictionary: Dictionary = DICTIONARY) -> LogScan:
    """A scan that has seen these lines."""
    scan = LogScan(dictionary)
    for line in lines:
        scan.feed(line)
    scan.settle()
    return scan


def ranked(*lines: str, dictionary: Dictionary = DICTIONARY) -> Ranked:
    """What is made of these lines."""
    return rank(scanned(*lines, dictionary=dictionary))


def ranked_file(path: Path) -> Ranked:
    """What is made of a log."""
    with path.open("rb") as file:
        return ranked(*lines_of(file))


def causes(found: Ranked) -> list[str]:
    """The ids of what follows from nothing else, in order."""
    return [finding.entry.id for finding in found.findings if not finding.because_of]
