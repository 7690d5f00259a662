"""The page as it is sent: nothing from elsewhere, no data, and a policy that lets nothing else run."""

import base64
import hashlib
import re
from importlib.resources import files

import pytest

from kveik.router.dashboard import HEADERS, PAGE, POLICY, SCRIPTS, STYLE, assembled

TEXT = PAGE.decode()


def inside(tag: str) -> str:
    (found,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("tag", ["style", "script"])
def test_the_policy_names_the_digest_of_what_is_in_the_page(tag: str) -> None:
    digest = base64.b64encode(hashlib.sha256(inside(tag).encode()).digest()).decode()
    assert f"{tag}-src 'sha256-{digest}'" in POLICY


def test_the_policy_allows_nothing_unsafe_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    directives = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert directives["default-src"] == directives["base-uri"] == directives["frame-ancestors"] == "'none'"
    assert directives["connect-src"] == "'self'"
    assert dict(HEADERS)[b"content-security-policy"] == POLICY.encode()


def test_the_page_loads_nothing_and_leads_nowhere_else() -> None:
    addresses = set(re.findall(r"https?://[\w.]+", TEXT))
    assert addresses == {"http://www.w3.org"}, "names of SVG only"
    assert not re.search(r"<(img|iframe|object|embed|base|link rel=.stylesheet)", TEXT)
    assert re.findall(r"<script[^>]*>", TEXT) == ["<script>"]
    assert "@import" not in TEXT
    assert "url(" not in inside("style")


def test_the_script_makes_no_markup_of_text() -> None:
    script = inside("script")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert way not in script
    assert not re.search(r"\son\w+=", TEXT), "handlers in markup"
    assert not re.search(r'\sstyle="', TEXT)


def test_the_token_is_kept_in_the_tab_only() -> None:
    script = inside("script")
    assert "sessionStorage" in script
    for place in ("localStorage", "document.cookie", "indexedDB", "location.search", "history.pushState"):
        assert place not in script


def test_every_file_of_the_page_is_in_it() -> None:
    folder = files("kveik.router") / "dashboard_page"
    names = {entry.name for entry in folder.iterdir()}
    assert names == {*SCRIPTS, STYLE, "page.html"}
    for name in (*SCRIPTS, STYLE):
        assert (folder / name).read_text(encoding="utf8") in TEXT


def test_the_page_is_small_and_one_change_is_another_policy() -> None:
    assert len(PAGE) < 80_000
    body = "<style>/*style*/</style><script>/*script*/</script>"
    page, policy = assembled("a{}", "1;", body)
    assert page == b"<style>a{}</style><script>1;</script>"
    assert assembled("a{}", "2;", body)[1] != policy


def test_the_page_works_in_both_schemes_and_says_its_language() -> None:
    assert '<html lang="en">' in TEXT
    assert "prefers-color-scheme: dark" in inside("style")
    assert '<meta name="color-scheme" content="light dark">' in TEXT


def colours(scheme: str) -> dict[str, str]:
    """The colours of a scheme: the first block of the style is the light one, the second one changes it."""
    light, dark = re.findall(r":root \{(.*?)\}", inside("style"), re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found if scheme == "light" else {**found, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_on_its_ground_in_both_schemes(scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3 (AA): 4.5 to 1."""
    known = colours(scheme)
    pairs = [(text, ground) for text in ("ink", "muted", "accent", "bad") for ground in ("ground", "card")]
    pairs += [(kind, f"{kind}-ground") for kind in ("good", "warn", "bad", "idle")] + [("warn", "card")]
    assert {pair: round(contrast(known[pair[0]], known[pair[1]]), 2) for pair in pairs
            if contrast(known[pair[0]], known[pair[1]]) < 4.5} == {}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_line_of_a_plot_can_be_seen_and_has_a_dash_of_its_own_beside_its_colour(scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.11 (AA): 3 to 1."""
    known = colours(scheme)
    assert min(contrast(known[f"s{number}"], known["card"]) for number in range(8)) >= 3
    assert len({known[f"s{number}"] for number in range(8)}) == 8
    assert all(f".d{number} {{ stroke-dasharray" in inside("style") for number in (1, 2, 3))
