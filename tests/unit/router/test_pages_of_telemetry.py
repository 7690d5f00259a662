"""The pages about keys, metrics and access lines say what the code does."""

import dataclasses
import re
from pathlib import Path

from kveik.config import rows
from kveik.router.gate import REFUSALS
from kveik.router.keys_file import ApiKey
from kveik.router.metrics import COUNTERS, all_rows
from kveik.router.records import RequestRecord

DOCS = Path(__file__).resolve().parents[3] / "docs"
OBSERVABILITY = (DOCS / "observability.md").read_text(encoding="utf8")
KEYS = (DOCS / "keys-and-limits.md").read_text(encoding="utf8")


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    written = re.findall(r"^\| `(\w+)` \| (.*?) \| (.+) \|$", section(OBSERVABILITY, "Metrics"), re.MULTILINE)
    assert [(name, re.findall(r"`(\w+)`", labels), text) for name, labels, text in written] == [
        (row.name + ("_total" if row in COUNTERS else ""), list(row.labels), row.help) for row in all_rows()
    ]


def test_every_field_of_an_access_line_is_explained_in_order() -> None:
    logged = [field.name for field in dataclasses.fields(RequestRecord) if field.name != "facts"]
    assert first_cells(section(OBSERVABILITY, "Access lines")) == ["time", *logged]


def test_every_way_to_be_refused_is_listed_with_its_status() -> None:
    limits = section(KEYS, "Limits")
    for row in REFUSALS.values():
        assert re.search(rf"^\| {row.status}\b.*`{row.code}`", limits, re.MULTILINE), row


def test_every_field_of_a_key_is_explained() -> None:
    explained = {
        name for line in re.findall(r"^\| (.+?) \|", KEYS, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    }
    assert set(ApiKey.__struct_fields__) - {"hash", "created"} <= explained


def test_settings_that_the_pages_name_exist() -> None:
    known = {row.name for row in rows("router")}
    for name in ("keys_file", "tenant_isolation", "pass_authorization", "concurrent_max", "key_concurrent_max",
                 "queue_max", "queue_timeout_s", "usage_file", "stream_idle_s", "comment_after_s"):  # fmt: skip
        assert name in known
        assert f"`{name}`" in KEYS
    for name in ("access_log", "traces_endpoint", "traces_ratio"):
        assert name in known
        assert f"`{name}`" in OBSERVABILITY
