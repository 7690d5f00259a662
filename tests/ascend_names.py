"""The names that vllm-ascend and UCM bring to vLLM, so that its parser knows them on a machine without NPUs.

Only names: connectors (vllm-ascend 0.30, ``distributed/kv_transfer/__init__.py``; UCM) and the quantization method.
What they do is not here, and nothing may be concluded from values that another platform resolves.
"""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.platforms import current_platform

_CONNECTORS = (
    "AscendStoreConnector", "MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeLayerwiseConnector",
    "UCMConnector",
)  # fmt: skip


def register() -> None:
    """Make the names known; once is enough, and again does no harm."""
    for name in _CONNECTORS:
        if name not in KVConnectorFactory._registry:
            module = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector"
            KVConnectorFactory.register_connector(name, module, "ExampleConnector")
    if "ascend" not in current_platform.supported_quantization:
        register_quantization_config("ascend")(_Ascend)
        current_platform.supported_quantization.append("ascend")


class _Ascend(QuantizationConfig):  # type: ignore[misc, unused-ignore]
    def get_name(self) -> str:
        return "ascend"

    def get_supported_act_dtypes(self) -> list[Any]:
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "_Ascend":
        return cls()

    def get_quant_method(self, layer: Any, prefix: str) -> None:
        return None
