"""Takes out of texts what looks like a secret, before they are kept in events and evidence or sent anywhere."""

import re
from collections.abc import Mapping

HIDDEN = "***"

#: Words in the names of variables, flags and fields whose values are nobody's business.
_TELLING = (
    r"(?:api[_-]?key|key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|auth|cookie|bearer|salt)"
)
_PATTERNS = (
    # Keys of OpenAI's form, Kveik's among them; tokens of Hugging Face and GitHub; JSON web tokens.
    (re.compile(r"\b(?:sk|hf|ghp|gho|github_pat)[-_][A-Za-z0-9_\-]{8,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]{6,}=*"), rf"\1 {HIDDEN}"),
    # name: value, name=value, "name": "value", --name value
    (
        re.compile(
            rf"(?i)((?:^|[\s,;{{(&?'\"]|--)[\w.\-]*{_TELLING}['\"]?\s*[=:]\s*)"
            r"(?:'[^']*'|\"[^\"]*\"|[^\s,;&'\"})]+)"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(rf"(?i)(--[\w\-]*{_TELLING}\s+)(?!-)\S+"), rf"\1{HIDDEN}"),
    # user:password@ in an address
    (re.compile(r"(?i)\b([a-z][a-z0-9+.\-]*://)[^\s/@:]*:[^\s/@]+@"), rf"\1{HIDDEN}@"),
)
_TELLING_NAME = re.compile(rf"(?i){_TELLING}(?:$|[_\-.0-9])")
#: Names that tell like those above and hold no secret: people need them.
_HARMLESS = re.compile(r"(?i)(tokens?_(?:s|max|min|total|length)|max_\w*tokens?|hash_?seed|tokeni[sz]er\w*)$")


def redacted(text: str) -> str:
    """The text with everything that looks like a secret hidden."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def redacted_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by name, with the values hidden of those whose name or value looks like a secret."""
    return {name: HIDDEN if tells(name) else redacted(value) for name, value in environment.items()}


def tells(name: str) -> bool:
    """Whether what is called so is probably a secret."""
    return bool(_TELLING_NAME.search(name)) and not _HARMLESS.search(name)
