"""Names of the filesystem tier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.kv.keys import BlockKey
from kveik.store import filesystem_layout as layout
from kveik.store.filesystem_layout import FileWriter

WRITER = FileWriter("0123abcd", 4321)
keys = st.builds(
    BlockKey.of,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
)
other_names = st.text(st.sampled_from("0123456789abcdefgr-._tmpkvbad"), max_size=140) | st.text(max_size=20)


@given(keys)
def test_a_block_lies_below_its_namespace_and_the_first_bytes_of_its_hash(key: BlockKey) -> None:
    namespace, first, second = layout.leaf_of(key)

    assert namespace == key.namespace.hex()
    assert first + second == key.block_hash.hex()[:4]
    assert layout.is_namespace_directory(namespace)
    assert layout.is_fan_directory(first)


@given(keys)
def test_a_file_name_gives_its_key_back(key: BlockKey) -> None:
    assert layout.parse_block_name(layout.block_name(key)) == key


@given(keys, st.integers(0, 10**9))
def test_temporary_names_say_who_writes_and_are_no_blocks(key: BlockKey, number: int) -> None:
    name = layout.temporary_name(key.text, WRITER, number)

    assert layout.parse_temporary_name(name) == WRITER
    assert layout.parse_block_name(name) is None
    assert len(name) < 255


@pytest.mark.parametrize("stem", ["namespace", "sweeper", "stale", "check"])
def test_small_files_use_temporary_names_of_the_same_form(stem: str) -> None:
    assert layout.parse_temporary_name(layout.temporary_name(stem, WRITER, 1)) == WRITER


@given(keys, st.sampled_from(["truncated", "checksum", "foreign"]))
def test_quarantine_names_tell_key_reason_and_time_and_are_no_blocks(key: BlockKey, reason: str) -> None:
    name = layout.quarantine_name(key, reason, 1_700_000_000.9, WRITER, 7)

    assert name.startswith(f"{key.text}.{reason}.1700000000.")
    assert layout.parse_quarantine_name(name) == 1_700_000_000
    assert layout.parse_block_name(name) is None
    assert layout.parse_temporary_name(name) is None
    assert len(name) < 255


@given(other_names)
def test_a_name_is_ours_only_if_we_would_have_made_it(name: str) -> None:
    key = layout.parse_block_name(name)
    assert key is None or layout.block_name(key) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "notes.txt",
        "model.kvb",
        ".tmp",
        f"{'a' * 32}-g0-r0-{'b' * 64}.KVB",
        f"{'a' * 32}-g0-r0-{'b' * 64}.kvb.bak",
        f"{'a' * 32}-g00-r0-{'b' * 64}.kvb",
        ".swp.0123abcd.12.tmp",
        ".x.0123abcd.pid.1.tmp",
        f".{'a' * 32}.0123abcd.1.1.tmp~",
        ".x.0123ABCD.1.1.tmp",
        ".x/y.0123abcd.1.1.tmp",
    ],
)
def test_names_of_others_are_not_ours(name: str) -> None:
    assert layout.parse_block_name(name) is None
    assert layout.parse_temporary_name(name) is None
    assert layout.parse_quarantine_name(name) is None


@pytest.mark.parametrize("name", ["quarantine", "lost+found", "A" * 32, "a" * 31, "..", ""])
def test_other_directories_hold_no_namespace(name: str) -> None:
    assert not layout.is_namespace_directory(name)
    assert not layout.is_fan_directory(name)


def test_a_writers_file_has_its_name() -> None:
    assert layout.is_writer_name(layout.writer_name("0123456789abcdef"))
    assert not layout.is_writer_name("0123456789abcde.writer")
    assert not layout.is_writer_name("notes")


@pytest.mark.parametrize("size", [16, 32])
def test_the_path_of_a_block_is_its_leaf_and_its_name(size: int) -> None:
    key = BlockKey.of(bytes(range(16)), bytes(range(200, 200 + size)), 3, 11)

    assert layout.block_path(key) == "/".join((*layout.leaf_of(key), layout.block_name(key)))
