"""Hashes are vLLM's: the values here were computed by vLLM 0.32 itself."""

import hashlib

import pytest

from kveik.simulate.block_hashes import HashChain, cbor, short_hash

TOKENS = tuple(range(16))

#: algorithm, seed, hash of TOKENS, of the block 1000 to 1015 after it, and of a salted first block.
VLLM = [
    (
        "sha256",
        "vllm-none-hash",
        "fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798",
        "0dbacfbef4c198d05669a1196fda3c6cc9b72d13839d37dd3265f6d03827e0ac",
        "81a1ff4dff766ae3ff1c68d32971e0d8d85a47e368cfe3bd004b0e0d42340bde",
    ),
    (
        "sha256",
        "0",
        "6358e31578a64b75ebe28cdb99d3beae65de82a2087321dc6ec84ae048faaaa6",
        "b034f69aea6830389fb47a3fc0f45c95cca35e8ac9643c4c9b681a5a7e099252",
        "cb95aa180d205936c63ca6adf1fe1509546b7947551d80e70eef50b6b5baae6b",
    ),
    (
        "sha256_cbor",
        "vllm-none-hash",
        "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
        "9401c2b375d6eca6f066c4258df430e87e46f6abed1c7520be6e288507fc9c2c",
        "f08a0aac0e51e863469bffaad98093d5aa6a4c9e3e116eecdfc275acce3fb1f2",
    ),
    (
        "sha256_cbor",
        "0",
        "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
        "d36f6c6fb9d31ddcf7699d8c86ea1fe3897ce82a35d6a9e87411bb38614a38b5",
        "7c8dc406de38b7c6aa20cddeae621fcd2ae48463f1535d9f21386ea33bc73017",
    ),
]


@pytest.mark.parametrize(("algorithm", "seed", "first", "second", "salted"), VLLM)
def test_hashes_are_vllm_s(algorithm: str, seed: str, first: str, second: str, salted: str) -> None:
    chain = HashChain(algorithm, seed)
    found = chain.next(chain.root, TOKENS)
    assert found.hex() == first
    assert chain.next(found, range(1000, 1016)).hex() == second
    assert chain.next(chain.root, (4294967295, *range(15)), "pepper").hex() == salted


def test_the_first_hash_depends_on_algorithm_seed_and_salt() -> None:
    chains = [HashChain("sha256"), HashChain("sha256_cbor"), HashChain("sha256", "0"), HashChain("sha256_cbor", "0")]
    hashes = {chain.next(chain.root, TOKENS, salt) for chain in chains for salt in ("", "a", "b")}
    assert len(hashes) == 12
    assert {len(one) for one in hashes} == {32}


def test_a_hash_covers_all_tokens_before_it() -> None:
    chain = HashChain()
    first, other = chain.next(chain.root, TOKENS), chain.next(chain.root, (9, *TOKENS[1:]))
    assert chain.next(first, TOKENS) != chain.next(other, TOKENS)


def test_the_short_hash_is_the_low_64_bits() -> None:
    assert short_hash(bytes(24) + bytes(range(8))) == 0x0001020304050607


@pytest.mark.parametrize(
    ("value", "encoded"),
    [  # from RFC 8949, appendix A
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (100, "1864"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (18446744073709551615, "1bffffffffffffffff"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("IETF", "6449455446"),
        ("ü", "62c3bc"),
        (None, "f6"),
        ((1, (2, 3), (4, 5)), "8301820203820405"),
        (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ],
)
def test_cbor_is_that_of_the_standard(value: object, encoded: str) -> None:
    assert cbor(value).hex() == encoded


@pytest.mark.parametrize("value", [-1, 1.5, [1], 1 << 64, object()])
def test_what_is_no_part_of_a_hash_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        cbor(value)


def test_the_root_is_the_hash_of_the_seed() -> None:
    assert HashChain("sha256_cbor", "abc").root == hashlib.sha256(b"\x63abc").digest()
