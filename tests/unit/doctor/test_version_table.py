"""The table of versions is sound."""

from kveik.doctor.version_table import holds, parsed, read_versions
from kveik.launch.preflight import KNOWN_VLLM

TABLE = read_versions()
NAMES = {product.name for product in TABLE.product}


def test_the_table_knows_all_parts_of_a_fleet() -> None:
    assert {"vllm", "vllm-ascend", "cann", "torch", "torch-npu", "mooncake", "memcache"} <= NAMES
    assert {"yuanrong", "ucm", "lmcache", "kveik"} <= NAMES


def test_every_specifier_can_be_read_and_every_product_is_there() -> None:
    for release in TABLE.release:
        assert release.product in NAMES
        assert release.source
        assert holds(release.version, "1.0") is not None
        for wanted in (release.needs, release.made_with):
            assert wanted.keys() <= NAMES
            assert all(holds(specifier, "1.0") is not None for either in wanted.values() for specifier in either)
    for fault in TABLE.fault:
        assert fault.when.keys() <= NAMES
        assert all(holds(specifier, "1.0") is not None for specifier in fault.when.values())
        assert all((fault.effect, fault.fix, fault.source))
    assert len({fault.id for fault in TABLE.fault}) == len(TABLE.fault)


def test_every_need_of_a_release_has_an_effect_if_it_is_not_met_or_speaks_for_itself() -> None:
    explained = {(row.product, row.other) for row in TABLE.mismatch}
    needed = {(release.product, other) for release in TABLE.release for other in release.needs}
    assert needed - explained <= {("kveik", "python")}
    assert explained <= needed


def test_the_table_says_of_kveik_what_its_connector_says() -> None:
    (row,) = [release for release in TABLE.release if release.product == "kveik"]
    assert row.needs["vllm"] == tuple(f"=={version}.*" for version in KNOWN_VLLM)


def test_versions_are_ordered_as_the_package_index_does_it() -> None:
    assert holds(">=0.23.0rc1,<0.30.0rc1", "0.29.0rc1")
    assert not holds(">=0.23.0rc1,<0.30.0rc1", "0.30.0rc1")
    assert holds("==0.32.*", "0.32.0+cpu")
    assert holds("==8.3rc2", "8.3.RC2")
    assert holds("==9.2.0", "9.2.0_20260930")
    assert holds("==1.0", "latest") is None
    assert parsed("latest") is None


def test_a_release_may_have_a_note() -> None:
    assert "backend `yuanrong`" in TABLE.note("vllm-ascend", "0.18.0")
    assert TABLE.note("vllm-ascend", "0.24.0rc1") == ""
    assert TABLE.title("nobody") == "nobody"
