"""A probe's blocks: nobody else's key, and bytes that follow from it."""

from kveik.kv import frame
from kveik.store.canary import LARGE_BYTES, PROBE_NAMESPACE, Canary


def test_each_round_and_each_agent_has_a_key_of_its_own() -> None:
    keys = {Canary.of(owner, number).key for owner in ("a/redis", "b/redis") for number in range(20)}
    assert len(keys) == 40
    assert {key.namespace for key in keys} == {PROBE_NAMESPACE}
    assert Canary.of("a", 1).key != Canary.of("a", 1, LARGE_BYTES).key


def test_its_frame_is_a_sound_one_and_is_recognised() -> None:
    canary = Canary.of("a", 1)
    sealed = canary.sealed(1_700_000_000.0)
    assert frame.verify(sealed, canary.key).payload_bytes == canary.payload_bytes
    assert canary.is_in(sealed)
    assert len(canary.buffer()) == len(sealed)


def test_sound_frames_with_other_bytes_or_of_another_canary_are_not_it() -> None:
    canary, other = Canary.of("a", 1), Canary.of("a", 2)
    assert not canary.is_in(other.sealed(0.0))
    assert not canary.is_in(canary.buffer())
    forged = canary.sealed(0.0)
    forged[frame.HEADER_BYTES] ^= 1
    frame.seal(forged, canary.key, canary.payload_bytes, 0.0)
    assert not canary.is_in(forged)
