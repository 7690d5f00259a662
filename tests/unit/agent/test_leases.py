from kveik.agent.leases import Leases, ReadLease, WriteLease

READ = ReadLease((1, 2), 100, 10.0)
WRITE = WriteLease((3, -1, 4), 50, 10.0)


def test_a_lease_ends_once() -> None:
    leases = Leases()
    number = leases.add(READ)
    assert leases.peek(number) == READ
    assert leases.take(number) == READ
    assert leases.take(number) is None
    assert leases.peek(number) is None


def test_ids_are_never_shared_between_connections() -> None:
    first, second = Leases(), Leases()
    assert first.add(READ) != second.add(READ)


def test_a_write_lease_holds_the_slots_that_were_reserved() -> None:
    assert WRITE.held == [3, 4]


def test_only_old_read_leases_are_taken_back() -> None:
    leases = Leases()
    leases.add(READ)
    write = leases.add(WRITE)
    young = leases.add(ReadLease((9,), 1, 20.0))
    assert leases.take_old_reads(15.0) == [READ]
    assert leases.take_old_reads(15.0) == []
    assert (leases.peek(write), len(leases)) == (WRITE, 2)
    assert leases.take(young) is not None


def test_a_closed_connection_gets_no_new_lease() -> None:
    leases = Leases()
    leases.add(READ)
    leases.add(WRITE)
    assert sorted(map(repr, leases.close())) == sorted(map(repr, [READ, WRITE]))
    assert leases.add(READ) == 0
    assert leases.close() == []
    assert "closed" in repr(leases)
