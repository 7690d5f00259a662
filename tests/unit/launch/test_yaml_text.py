"""What is written as YAML is read back as it was, by a reader that is not ours."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kveik.launch.yaml_text import Block, yaml_text

LETTERS = "aZ9_-./:#'\"\\{}[]&*!|>%@` \t\nä漢"
scalars = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.text(LETTERS, max_size=8))
objects = st.dictionaries(st.text(LETTERS, max_size=5), scalars, max_size=3)


@given(
    st.dictionaries(
        st.text(LETTERS, max_size=5),
        st.one_of(scalars, objects, st.lists(scalars, max_size=3), st.lists(objects, max_size=3)),
        max_size=4,
        min_size=1,
    )
)
def test_every_document_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text({"outer": document, **document})) == {"outer": document, **document}


@pytest.mark.parametrize(
    "text", ["no", "Yes", "on", "null", "~", "1e3", "0x10", "8:30", "a: b", "- a", "", "#x", "it's"]
)
def test_text_stays_text(text: str) -> None:
    assert yaml.safe_load(yaml_text({"a": text, "b": [text], text: 1})) == {"a": text, "b": [text], text: 1}


def test_plain_words_are_written_without_quotes() -> None:
    assert yaml_text({"kind": "Deployment", "args": ["kveik.cli.main", "--x"]}) == (
        'kind: Deployment\nargs:\n- kveik.cli.main\n- "--x"\n'
    )


def test_a_block_keeps_its_lines() -> None:
    text = '[fleet]\nname = "a: b"\n\n# end\n'
    document = {"data": {"kveik.toml": Block(text)}, "after": 1}
    assert "    [fleet]" in yaml_text(document)
    assert yaml.safe_load(yaml_text(document)) == {"data": {"kveik.toml": text}, "after": 1}


def test_empty_values_are_written_as_such() -> None:
    assert yaml.safe_load(yaml_text({"a": {}, "b": [], "c": [{}]})) == {"a": {}, "b": [], "c": [{}]}
