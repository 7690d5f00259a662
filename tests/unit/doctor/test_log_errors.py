"""The dictionary of log lines is sound, tells faulty logs by their cause, and claims nothing of clean ones."""

import re
from pathlib import Path

import pytest

from kveik.doctor.log_dictionary import Entry, Severity, read_entries
from kveik.doctor.log_line import read_line
from tests.log_samples import CLEAN, DICTIONARY, FAULTY, causes, ranked, ranked_file

ENTRIES = read_entries()
BY_ID = {entry.id: entry for entry in ENTRIES}

#: What each real log should be told by, first cause first.
TOLD = {
    "faulty_vllm_no_compiler": ["vllm-no-compiler"],
    "faulty_vllm_no_memory": ["vllm-no-room-for-kv"],
    "faulty_vllm_no_model": ["vllm-model-not-found"],
    "faulty_vllm_port": ["os-port-in-use"],
    "faulty_vllm_length": ["vllm-length-over-model"],
    "faulty_vllm_stopped_early": ["os-interrupted"],
    "faulty_vllm_worker_killed": ["vllm-worker-gone", "vllm-dump"],
    "faulty_mooncake_master_gone": ["mooncake-master-gone", "mooncake-own-segment"],
    "faulty_mooncake_full": ["mooncake-no-room", "mooncake-own-segment"],
    "faulty_mooncake_master_full": ["mooncake-no-room", "mooncake-segment-told-twice"],
    "faulty_etcd_full": ["etcd-space"],
    "faulty_etcd_port": ["os-port-in-use"],
    "faulty_etcd_no_peer": ["etcd-peer-gone"],
    "faulty_yuanrong_worker_gone": ["yuanrong-rpc", "yuanrong-exists"],
}


def test_there_are_entries_for_all_products_that_a_fleet_is_made_of() -> None:
    assert len(ENTRIES) >= 97
    assert len(BY_ID) == len(ENTRIES)
    products = {entry.product for entry in ENTRIES}
    assert products >= {"vLLM", "vllm-ascend", "CANN", "HCCL", "Mooncake", "MemCache", "UCM", "etcd", "openYuanrong"}
    assert products >= {"LMCache", "Kveik"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_is_the_first_that_fits_its_own_sample_and_is_complete(entry: Entry) -> None:
    assert DICTIONARY.find(read_line(entry.sample)) == entry
    assert entry.causes
    assert all((entry.meaning, entry.remedy, entry.source))
    assert all(re.fullmatch(r"\w+", word) for word in entry.words)
    assert entry.pattern == "" or re.compile(entry.pattern)
    assert entry.id == entry.id.lower()


def test_entries_name_each_other_rightly_and_never_in_a_circle() -> None:
    assert {id_ for entry in ENTRIES for id_ in entry.explains} <= BY_ID.keys()

    def below(id_: str, path: tuple[str, ...]) -> None:
        assert id_ not in path, (*path, id_)
        for next_ in BY_ID[id_].explains:
            below(next_, (*path, id_))

    for id_ in BY_ID:
        below(id_, ())


def test_no_pattern_takes_long_on_a_line_made_to_confuse_it() -> None:
    """Patterns are linear: a line of all words, repeated, costs no more than its length."""
    for entry in ENTRIES:
        line = read_line("ERROR: " + " ".join(entry.words * 200) + " 0" * 2000)
        DICTIONARY.find(line)


@pytest.mark.parametrize("log", CLEAN, ids=lambda path: path.stem)
def test_nothing_is_claimed_of_a_clean_log(log: Path) -> None:
    found = ranked_file(log)
    assert not found.has_trouble
    assert [finding.entry.severity for finding in found.findings] == [Severity.NOTE] * len(found.findings)


def test_there_are_clean_logs_of_every_kind_of_process() -> None:
    names = " ".join(path.stem for path in CLEAN)
    assert all(kind in names for kind in ("vllm", "mooncake_master", "yuanrong_worker", "etcd", "kveik_router"))


@pytest.mark.parametrize("log", FAULTY, ids=lambda path: path.stem)
def test_a_faulty_log_is_told_by_its_cause_and_nothing_in_it_is_unknown(log: Path) -> None:
    found = ranked_file(log)
    assert causes(found) == TOLD[log.stem]
    assert [group.first.text for group in found.unknown] == []


def test_the_field_report_of_a_pool_that_stores_and_never_hits_is_told_by_its_lines() -> None:
    found = ranked(
        "DEBUG 11-30 01:00:22 [pool_worker.py:2259] KV pool coordinator lookup group=0 keys=96 exists_chunks=96/96",
        "DEBUG 11-30 01:00:22 [pool_worker.py:2259] KV pool coordinator lookup group=1 keys=386 exists_chunks=5/386",
        "DEBUG 11-30 01:00:22 [pool_worker.py:2276] KV pool coordinator lookup final token_len=50048 groups=[0] hit=0",
    )
    assert causes(found) == ["pool-hit-zero", "pool-found"]


def test_a_device_copy_that_times_out_is_the_cause_of_failed_puts_and_of_the_engine_s_end() -> None:
    found = ranked(
        "EE1002 Execution_Error_Stream_Synchronize_Timeout: Stream synchronize timeout",
        "ERROR 11-30 01:00:22 [memcache_backend.py:1] Failed to put 8 keys out of 8. error_codes=[-1]",
        "ERROR 11-30 01:00:22 [memcache_backend.py:1] Failed to put 8 keys out of 8. error_codes=[-1]",
        "(EngineCore pid=1) ERROR 11-30 01:00:23 [core.py:1512] EngineCore encountered a fatal error.",
    )
    assert causes(found) == ["cann-ee1002"]
    assert found.findings[0].followed_by == ["memcache-put-failed", "vllm-engine-dead"]


def test_codes_are_told_from_other_numbers() -> None:
    harmless = [
        "INFO 11-30 01:00:22 [a.py:1] 507035 tokens in 207001 blocks",
        "ERROR 11-30 01:00:22 [a.py:1] request 507018 of port 107002 has no flux",
        "WARNING 11-30 01:00:22 [a.py:255] Found ulimit of 20000; can cause `OSError: [Errno 24] Too many open files`",
    ]
    assert [finding.entry.id for finding in ranked(*harmless).findings] == []
