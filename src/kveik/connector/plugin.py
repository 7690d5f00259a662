"""vLLM's plug-in entry point: makes the connector known by name in every process.

With the name registered, ``"kv_connector": "KveikConnector"`` works without a module path, and the
connector can be a child of vLLM's MultiConnector, which looks children up by name.
"""

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

NAME = "KveikConnector"


def register() -> None:
    """Register the connector; called by vLLM at the start of each process, maybe more than once."""
    try:
        KVConnectorFactory.get_connector_class_by_name(NAME)
    except ValueError:
        KVConnectorFactory.register_connector(NAME, "kveik.connector.vllm", NAME)
