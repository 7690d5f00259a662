"""Write the table of what the pinned vLLM takes, from vLLM itself: run it by the Python that has vLLM."""

import json
from pathlib import Path
from typing import Any

from kveik.connector.vllm_options import known, parser

TABLE = Path(__file__).resolve().parents[1] / "src" / "kveik" / "profiles" / "data" / "vllm_options.json"


def text(table: dict[str, Any]) -> str:
    """One option a line, so that differences read well."""
    rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table["options"].items()]
    lists = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in ("version", "environment", "connectors")]
    return "{\n" + ",\n".join([*lists, ' "options": {\n' + ",\n".join(rows) + "\n }"]) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(known(parser())), encoding="utf8")
