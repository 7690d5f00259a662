from kveik.agent.tally import Tally
from kveik.records import EvictionRecord, FailureRecord, LookupRecord, StateRecord, TransferRecord


def test_records_are_added_up_by_tier() -> None:
    tally = Tally()
    tally(LookupRecord("arena", 10, 4, 0.1))
    tally(LookupRecord("arena", 5, 5, 0.1))
    tally(TransferRecord("arena", "put", 2, 200, 0.1))
    tally(FailureRecord("filesystem", "get", "corrupt", "checksum", 1))
    tally(EvictionRecord("arena", 3, 300))
    tally(StateRecord("arena", "a", "b", "why"))
    assert tally.counts() == {
        "arena.asked": 15,
        "arena.evicted_blocks": 3,
        "arena.evicted_bytes": 300,
        "arena.found": 9,
        "arena.lookups": 2,
        "arena.put_blocks": 2,
        "arena.put_bytes": 200,
        "filesystem.get_corrupt.checksum": 1,
    }
