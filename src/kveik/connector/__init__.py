"""Inside the engine: the only package that imports vLLM and torch.

Pure decisions are in :mod:`~kveik.connector.plan`, everything that knows vLLM's classes in
:mod:`~kveik.connector.vllm`, :mod:`~kveik.connector.identity` and
:mod:`~kveik.connector.layout`, and the lines that differ between devices in
:mod:`~kveik.connector.device`.
"""
