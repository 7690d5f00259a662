"""``/dashboard``: one page that a browser shows without anything from elsewhere, and that holds no data itself.

It is put together once from the files in ``dashboard_page/``. Its policy names the digests of its own style and
script, so nothing else runs in it, whatever engines and models are called.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

HTML_TYPE = b"text/html; charset=utf-8"
SCRIPTS = ("text.js", "chart.js", "tables.js", "page.js")
STYLE = "style.css"


def _read(name: str) -> str:
    return (files("kveik.router") / "dashboard_page" / name).read_text(encoding="utf8")


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def assembled(style: str, script: str, body: str) -> tuple[bytes, str]:
    """The page and its content security policy."""
    page = body.replace("/*style*/", style).replace("/*script*/", script)
    policy: Mapping[str, str] = {
        "default-src": "'none'",
        "style-src": _source(style),
        "script-src": _source(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return page.encode(), "; ".join(f"{name} {value}" for name, value in policy.items())


#: The page.
PAGE, POLICY = assembled(_read(STYLE), "".join(_read(name) for name in SCRIPTS), _read("page.html"))
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-cache"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
