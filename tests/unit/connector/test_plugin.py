"""The connector is known to vLLM by name, through the package's entry point."""

from importlib.metadata import entry_points

import pytest

pytest.importorskip("vllm", reason="the registry is vLLM's")

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma

from kveik.connector.plugin import NAME, register
from kveik.connector.vllm import KveikConnector


def test_registering_twice_does_no_harm() -> None:
    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name(NAME) is KveikConnector


def test_vllm_finds_the_entry_point() -> None:
    (point,) = [point for point in entry_points(group="vllm.general_plugins") if point.name == "kveik"]
    assert point.load() is register


def test_it_supports_models_with_several_groups() -> None:
    assert supports_hma(KveikConnector)
    assert KveikConnector.build_kv_connector_stats({"add": {"tokens_used": 3}, "set": {}}) is not None
