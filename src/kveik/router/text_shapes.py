"""What a piece of text looks like: a date, an id, a number, white space. Pure."""

import re
from typing import Final

DATE: Final = "date"
ID: Final = "id"
NUMBER: Final = "number"
WHITESPACE: Final = "whitespace"

#: Text on both sides of a place that is looked at: a date may begin before what differs in it.
AROUND_CHARS = 48

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?)"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?(?:\s?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
_YEAR = r"(?:19|20)\d{2}"
_DATES = (
    rf"{_YEAR}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[t\s,]+{_CLOCK})?",
    r"\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d{2}|\d{1,2}[-/]\d{1,2}[-/]\d{2}\b",
    rf"(?:{_WEEKDAY},?\s+)?(?:\d{{1,2}}(?:st|nd|rd|th)?\.?\s+)?{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+{_YEAR})?",
    rf"(?:{_WEEKDAY},?\s+)?\d{{1,2}}(?:st|nd|rd|th)?\.?\s+{_MONTH}(?:\.?,?\s+{_YEAR})?",
    rf"\b{_WEEKDAY}\b",
    rf"{_YEAR}\s?年(?:\s?\d{{1,2}}\s?月)?(?:\s?\d{{1,2}}\s?[日号])?|\d{{1,2}}\s?月\s?\d{{1,2}}\s?[日号]",
    r"(?:星期|周)[一二三四五六日天]",
    rf"(?:[上下]午\s?)?{_CLOCK}",
    r"\d{1,2}\s?[点时]\s?\d{1,2}\s?分?",
    r"(?<![\w.])1[4-9]\d{8}(?:\d{3}|\.\d+)?(?![\w.])",  # seconds or milliseconds since 1970
)
_IDS = (
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    r"(?<![0-9a-z])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,}(?![0-9a-z])",
    # Letters and digits in a row that no word has: 2 changes between them, or a long one of both cases.
    r"(?<!\w)(?=\w{8,})(?:[a-z_]*\d+[a-z_]+\d+)\w*",
    r"(?-i:(?<!\w)(?=\w*[a-z])(?=\w*[A-Z])(?=\w*\d)\w{12,})",
    r"\b\w*(?:id|uuid|guid|nonce|token|session|trace|request|hash|etag|cch)\"?'?\s?[:=#]\s?\"?'?[\w.+/=-]+",
    r"\b(?:req|sess|session|run|msg|call|thread|conv|trace|job|task|user|uid)[-_][\w-]{4,}",
)
_NUMBERS = (r"\d+(?:[.,]\d+)*",)
_PATTERNS = tuple(
    (kind, re.compile("|".join(f"(?:{one})" for one in patterns), re.IGNORECASE))
    for kind, patterns in ((DATE, _DATES), (ID, _IDS), (NUMBER, _NUMBERS))
)


def shape_of(text: str, start: int, end: int) -> str:
    """What the part of a text from ``start`` to ``end`` is, or belongs to; empty for other text.

    A part of no length is what stands at that place. All of the part must belong to it, but white space and signs.
    """
    if start < end and not text[start:end].strip():
        return WHITESPACE
    low = max(0, start - AROUND_CHARS)
    around = text[low : end + AROUND_CHARS]
    begin, stop = start - low, end - low
    for kind, pattern in _PATTERNS:
        spans = [match.span() for match in pattern.finditer(around)]
        if any(left <= begin and stop <= right for left, right in spans) or _all_within(around, begin, stop, spans):
            return kind
    return ""


def _all_within(text: str, begin: int, stop: int, spans: list[tuple[int, int]]) -> bool:
    """Whether every letter and digit from ``begin`` to ``stop`` is in one of some spans, and there is one."""
    letters = [at for at in range(begin, stop) if text[at].isalnum()]
    return bool(letters) and all(any(left <= at < right for left, right in spans) for at in letters)
