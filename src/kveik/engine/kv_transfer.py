"""What an existing vLLM needs to use Kveik: one JSON argument and a few environment variables."""

import json
from collections.abc import Mapping
from typing import Any

from kveik.config import ConnectorSettings, load
from kveik.errors import ConfigError

CONNECTOR_CLASS = "KveikConnector"
CONNECTOR_MODULE = "kveik.connector.vllm"
PLATFORMS = ("cpu", "cuda", "ascend")

#: Equal everywhere, or engines give one prompt different block hashes (vLLM before 0.32, xxhash).
HASH_SEED = "0"


def kv_transfer_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of ``--kv-transfer-config``; ``given`` are settings of the ``[connector]`` table.

    Only what is given is written down, in its own type, so that defaults stay defaults. ``recompute`` is not a
    taste: with vLLM's default one lost block fails the request. Raises
    :class:`~kveik.errors.ConfigError` for an unknown setting or a bad value.
    """
    settings = load(ConnectorSettings, given=given)
    return {
        "kv_connector": CONNECTOR_CLASS,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {name: getattr(settings, name) for name in given},
    }


def kv_transfer_argument(given: Mapping[str, Any]) -> str:
    """The same as compact JSON, ready for a command line."""
    return json.dumps(kv_transfer_config(given), separators=(",", ":"))


def required_environment(platform: str) -> dict[str, str]:
    """Environment variables that each engine on this platform should get.

    Raises :class:`~kveik.errors.ConfigError` for an unknown platform.
    """
    if platform not in PLATFORMS:
        raise ConfigError(f"platform is {platform!r}, expected one of {', '.join(PLATFORMS)}")
    environment = {"PYTHONHASHSEED": HASH_SEED}
    if platform == "cpu":
        # With a connector vLLM reserves one core more, and the thread count changes rounding.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "FIRST-LAST (the cores of this engine, for example 0-7)"
    return environment
