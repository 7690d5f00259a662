"""What vLLM on CPU does by the kind of processor."""

from pathlib import Path

#: With these units vLLM computes in bfloat16 by other kernels: MLA keeps prefix caching, and takes no float32.
HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf8")
