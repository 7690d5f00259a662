"""What one vLLM takes: from the committed table of vLLM 0.32, or from the document of an installed one.

The table is written by ``scripts/vllm_options.py`` from the real parser, and a test holds it to that.
"""

import difflib
import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kveik.profiles.catalog import DATA

#: What vllm-ascend and UCM register beside vLLM's own (vllm-ascend 0.30, ``distributed/kv_transfer/__init__.py``).
PLUGIN_CONNECTORS = frozenset((
    "AscendStoreConnector", "MooncakeConnectorV1", "MooncakeConnectorV2", "MooncakePullConnector",
    "MooncakeD2RHConnectorV1", "MooncakeHybridConnector", "MooncakeConnectorStoreV1", "MooncakeLayerwiseConnector",
    "UCMConnector", "PreemptOffloadConnector", "SfaRemoteD2HConnector", "KveikConnector",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """Options by spelling, environment variables and connectors of a version."""

    version: str
    options: Mapping[str, Mapping[str, Any]]
    environment: Collection[str]
    connectors: Collection[str]

    def find(self, name: str) -> str:
        """What the parser takes ``name`` for: underscores are dashes, a clear beginning is enough. Empty: nothing."""
        spelled = name if name.startswith("-") and not name.startswith("--") else "--" + name[2:].replace("_", "-")
        if spelled in self.options:
            return spelled
        begun = [option for option in self.options if spelled.startswith("--") and option.startswith(spelled)]
        return begun[0] if len(begun) == 1 else ""

    def nearest(self, name: str) -> str:
        """The option that was probably meant; empty if none is near."""
        near = difflib.get_close_matches(name.replace("_", "-"), self.options, n=1, cutoff=0.8)
        return near[0] if near else ""

    def nearest_variable(self, name: str) -> str:
        """The variable that was probably meant; empty if none is near."""
        near = difflib.get_close_matches(name, list(self.environment), n=1, cutoff=0.85)
        return near[0] if near else ""


@functools.cache
def committed() -> Known:
    """The table of the vLLM that Kveik is tested with."""
    return of_document(json.loads((DATA / "vllm_options.json").read_text("utf8")))


def of_document(document: Mapping[str, Any]) -> Known:
    """From what :mod:`kveik.connector.vllm_options` writes."""
    return Known(
        version=document["version"],
        options=document["options"],
        environment=frozenset(document["environment"]),
        connectors=frozenset(document["connectors"]) | PLUGIN_CONNECTORS,
    )
