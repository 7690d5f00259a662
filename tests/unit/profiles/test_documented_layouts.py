"""Engines of the layouts that guides document, word for word: what was read and checked stays as it is."""

import json
from typing import Any

import pytest

from kveik.profiles.docker_words import docker_options
from kveik.profiles.node import Node, Process
from kveik.profiles.nodes import nodes
from kveik.profiles.wish import Given, wish

TWO = ("10.0.0.1", "10.0.0.2")
FOUR = (*TWO, "10.0.0.3", "10.0.0.4")


def launched(hardware: str, model: str, tier: str, given: Given) -> tuple[Node, ...]:
    return nodes(wish(hardware, model, tier, given))


def last(node: Node) -> Process:
    """The last process of a node is its last engine."""
    return node.processes[-1]


def options(process: Process) -> dict[str, Any]:
    """Options in order; values that are JSON as what they say."""
    return {name: json.loads(value) if value.startswith("{") else value for name, value, _ in process.options}


def test_glm_5_on_2_a2_with_yuanrong() -> None:
    found = launched("a2", "glm-5", "yuanrong", Given(nodes=2, addresses=TWO, interfaces=("bond0", "enp61s0f2")))
    assert options(last(found[0])) == {
        "--host": "0.0.0.0",
        "--port": "8000",
        "--served-model-name": "glm-5",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "2",
        "--data-parallel-size-local": "1",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--max-model-len": "131072",
        "--max-num-seqs": "2",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.95",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--seed": "1024",
        "--trust-remote-code": "",
        "--quantization": "ascend",
        "--async-scheduling": "",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": True},
        "--additional-config": {
            "multistream_overlap_shared_expert": True,
            "scheduler_config": {"enable_balance_scheduling": True},
        },
        "--kv-transfer-config": {
            "kv_connector": "AscendStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backend": "yuanrong", "lookup_rpc_port": "0"},
        },
    }
    assert options(last(found[1])) == {
        "--headless": "",
        "--served-model-name": "glm-5",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "2",
        "--data-parallel-size-local": "1",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--data-parallel-start-rank": "1",
        "--max-model-len": "131072",
        "--max-num-seqs": "2",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.95",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--seed": "1024",
        "--trust-remote-code": "",
        "--quantization": "ascend",
        "--async-scheduling": "",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": True},
        "--additional-config": {
            "multistream_overlap_shared_expert": True,
            "scheduler_config": {"enable_balance_scheduling": True},
        },
        "--kv-transfer-config": {
            "kv_connector": "AscendStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backend": "yuanrong", "lookup_rpc_port": "1"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "HCCL_BUFFSIZE": "200",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        "PYTHONHASHSEED": "0",
        "HCCL_IF_IP": "10.0.0.1",
        "HCCL_SOCKET_IFNAME": "bond0",
        "GLOO_SOCKET_IFNAME": "bond0",
        "TP_SOCKET_IFNAME": "bond0",
        "YR_CONFIG_PATH": "/etc/kveik-launch/yuanrong.json",
        "DATASYSTEM_CLIENT_LOG_DIR": "/var/log/yuanrong/client",
    }


def test_glm_5_on_1_a3_with_yuanrong() -> None:
    found = launched("a3", "glm-5", "yuanrong", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--served-model-name": "glm-5",
        "--tensor-parallel-size": "16",
        "--max-model-len": "200000",
        "--max-num-seqs": "16",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.95",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--seed": "1024",
        "--trust-remote-code": "",
        "--quantization": "ascend",
        "--async-scheduling": "",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": True},
        "--additional-config": {
            "multistream_overlap_shared_expert": True,
            "scheduler_config": {"enable_balance_scheduling": True},
        },
        "--hf-overrides": {"use_index_cache": True, "index_topk_freq": 4},
        "--kv-transfer-config": {
            "kv_connector": "AscendStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backend": "yuanrong", "lookup_rpc_port": "0"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "HCCL_BUFFSIZE": "200",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        "PYTHONHASHSEED": "0",
        "YR_CONFIG_PATH": "/etc/kveik-launch/yuanrong.json",
        "DATASYSTEM_CLIENT_LOG_DIR": "/var/log/yuanrong/client",
    }


def test_glm_5_on_1_a2_with_none() -> None:
    found = launched("a2", "glm-5", "none", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--served-model-name": "glm-5",
        "--tensor-parallel-size": "8",
        "--max-model-len": "32768",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.95",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--seed": "1024",
        "--trust-remote-code": "",
        "--quantization": "ascend",
        "--async-scheduling": "",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": True},
        "--additional-config": {
            "multistream_overlap_shared_expert": True,
            "scheduler_config": {"enable_balance_scheduling": True},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "HCCL_BUFFSIZE": "200",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        "PYTHONHASHSEED": "0",
    }


def test_deepseek_v4_1_flash_on_2_a3_with_ucm() -> None:
    found = launched("a3", "deepseek-v4.1-flash", "ucm", Given(nodes=2, addresses=TWO, shared_folder="/mnt/kv"))
    assert options(last(found[0])) == {
        "--host": "0.0.0.0",
        "--port": "8000",
        "--served-model-name": "deepseek-v41",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "4",
        "--data-parallel-size-local": "2",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--max-model-len": "1048576",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--block-size": "128",
        "--tokenizer-mode": "deepseek_v41",
        "--reasoning-parser": "deepseek_v41",
        "--tool-call-parser": "deepseek_v41",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
        "--safetensors-load-strategy": "lazy",
        "--quantization": "ascend",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "dspark", "num_speculative_tokens": 5, "enforce_eager": True},
        "--additional-config": {
            "enable_cpu_binding": True,
            "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": False},
        },
        "--no-disable-hybrid-kv-cache-manager": "",
        "--kv-transfer-config": {
            "kv_connector": "UCMConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"UCM_CONFIG_FILE": "/etc/kveik-launch/ucm.yaml"},
        },
    }
    assert options(last(found[1])) == {
        "--headless": "",
        "--served-model-name": "deepseek-v41",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "4",
        "--data-parallel-size-local": "2",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--data-parallel-start-rank": "2",
        "--max-model-len": "1048576",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--block-size": "128",
        "--tokenizer-mode": "deepseek_v41",
        "--reasoning-parser": "deepseek_v41",
        "--tool-call-parser": "deepseek_v41",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
        "--safetensors-load-strategy": "lazy",
        "--quantization": "ascend",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "dspark", "num_speculative_tokens": 5, "enforce_eager": True},
        "--additional-config": {
            "enable_cpu_binding": True,
            "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": False},
        },
        "--no-disable-hybrid-kv-cache-manager": "",
        "--kv-transfer-config": {
            "kv_connector": "UCMConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"UCM_CONFIG_FILE": "/etc/kveik-launch/ucm.yaml"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "PYTHONHASHSEED": "0",
        "HCCL_IF_IP": "10.0.0.1",
        "HCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
    }


def test_deepseek_v4_1_flash_on_1_a3_with_memcache() -> None:
    found = launched("a3", "deepseek-v4.1-flash", "memcache", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--served-model-name": "deepseek-v41",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "2",
        "--data-parallel-size-local": "2",
        "--max-model-len": "600000",
        "--max-num-seqs": "16",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--block-size": "128",
        "--tokenizer-mode": "deepseek_v41",
        "--reasoning-parser": "deepseek_v41",
        "--tool-call-parser": "deepseek_v41",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
        "--safetensors-load-strategy": "lazy",
        "--quantization": "ascend",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "dspark", "num_speculative_tokens": 5, "enforce_eager": True},
        "--additional-config": {
            "enable_cpu_binding": True,
            "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": False},
        },
        "--engram-config": {"cpu_offload": True, "dp_shared_memory": True},
        "--no-disable-hybrid-kv-cache-manager": "",
        "--kv-transfer-config": {
            "kv_connector": "AscendStoreConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"backend": "memcache", "lookup_rpc_port": "0"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "PYTHONHASHSEED": "0",
        "ACL_OP_INIT_MODE": "1",
        "ASCEND_ENABLE_USE_FABRIC_MEM": "1",
        "MMC_LOCAL_CONFIG_PATH": "/etc/kveik-launch/mmc-local.conf",
    }


def test_deepseek_v4_1_flash_on_4_a2_with_none() -> None:
    found = launched("a2", "deepseek-v4.1-flash", "none", Given(nodes=4, addresses=FOUR))
    assert options(last(found[0])) == {
        "--host": "0.0.0.0",
        "--port": "8000",
        "--served-model-name": "deepseek-v41",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "4",
        "--data-parallel-size-local": "1",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--max-model-len": "1048576",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--block-size": "128",
        "--tokenizer-mode": "deepseek_v41",
        "--reasoning-parser": "deepseek_v41",
        "--tool-call-parser": "deepseek_v41",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
        "--safetensors-load-strategy": "lazy",
        "--quantization": "ascend",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "dspark", "num_speculative_tokens": 5, "enforce_eager": True},
        "--additional-config": {
            "enable_cpu_binding": True,
            "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": False},
        },
    }
    assert options(last(found[3])) == {
        "--headless": "",
        "--served-model-name": "deepseek-v41",
        "--tensor-parallel-size": "8",
        "--data-parallel-size": "4",
        "--data-parallel-size-local": "1",
        "--data-parallel-address": "10.0.0.1",
        "--data-parallel-rpc-port": "13399",
        "--data-parallel-start-rank": "3",
        "--max-model-len": "1048576",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--enable-expert-parallel": "",
        "--block-size": "128",
        "--tokenizer-mode": "deepseek_v41",
        "--reasoning-parser": "deepseek_v41",
        "--tool-call-parser": "deepseek_v41",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
        "--safetensors-load-strategy": "lazy",
        "--quantization": "ascend",
        "--compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "--speculative-config": {"method": "dspark", "num_speculative_tokens": 5, "enforce_eager": True},
        "--additional-config": {
            "enable_cpu_binding": True,
            "ascend_compilation_config": {"enable_npugraph_ex": False, "enable_static_kernel": False},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "PYTHONHASHSEED": "0",
        "HCCL_IF_IP": "10.0.0.1",
        "HCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
    }


def test_qwen3_32b_on_1_a5_with_mooncake() -> None:
    found = launched("a5", "qwen3-32b", "mooncake", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8003",
        "--served-model-name": "qwen3-32b",
        "--tensor-parallel-size": "2",
        "--max-model-len": "40960",
        "--max-num-seqs": "64",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--reasoning-parser": "qwen3",
        "--async-scheduling": "",
        "--kv-transfer-config": {
            "kv_connector": "AscendStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backend": "mooncake", "lookup_rpc_port": "3"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "ASCEND_RT_VISIBLE_DEVICES": "6,7",
        "ASCEND_GLOBAL_RESOURCE_CONFIG": '{"comm_resource_config.protocol_desc":["uboe:device"]}',
        "MOONCAKE_CONFIG_PATH": "/etc/kveik-launch/mooncake.json",
    }


def test_llama_3_1_8b_on_1_cuda_with_kveik() -> None:
    found = launched("cuda", "llama-3.1-8b", "kveik", Given(shared_folder="/mnt/kv"))
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8007",
        "--served-model-name": "llama-3.1-8b",
        "--tensor-parallel-size": "1",
        "--max-model-len": "131072",
        "--max-num-seqs": "128",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--kv-transfer-config": {
            "kv_connector": "KveikConnector",
            "kv_connector_module_path": "kveik.connector.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": "/run/kveik/agent.sock"},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "7",
    }


def test_qwen3_32b_on_1_cuda_with_mooncake() -> None:
    found = launched("cuda", "qwen3-32b", "mooncake", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8003",
        "--served-model-name": "qwen3-32b",
        "--tensor-parallel-size": "2",
        "--max-model-len": "40960",
        "--max-num-seqs": "128",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.9",
        "--enable-prompt-tokens-details": "",
        "--reasoning-parser": "qwen3",
        "--kv-transfer-config": {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"},
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "6,7",
        "MOONCAKE_CONFIG_PATH": "/etc/kveik-launch/mooncake.json",
    }


def test_smollm2_135m_on_1_cpu_with_kveik() -> None:
    found = launched("cpu", "smollm2-135m", "kveik", Given())
    assert options(last(found[0])) == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--served-model-name": "smollm2-135m-instruct",
        "--max-model-len": "8192",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "2048",
        "--enable-prompt-tokens-details": "",
        "--dtype": "bfloat16",
        "--kv-transfer-config": {
            "kv_connector": "KveikConnector",
            "kv_connector_module_path": "kveik.connector.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {},
        },
    }
    assert {one.name: one.value for one in last(found[0]).variables} == {
        "VLLM_CPU_KVCACHE_SPACE": "8",
        "PYTHONHASHSEED": "0",
    }


def test_docker_on_a2() -> None:
    (node,) = launched("a2", "glm-5", "yuanrong", Given())
    words = docker_options(node, last(node))
    assert [word for word in words if not word.startswith("--env")] == [
        "--name=kveik-engine",
        "--init",
        "--entrypoint=",
        "--net=host",
        "--ipc=host",
        "--device=/dev/davinci0",
        "--device=/dev/davinci1",
        "--device=/dev/davinci2",
        "--device=/dev/davinci3",
        "--device=/dev/davinci4",
        "--device=/dev/davinci5",
        "--device=/dev/davinci6",
        "--device=/dev/davinci7",
        "--device=/dev/davinci_manager",
        "--device=/dev/devmm_svm",
        "--device=/dev/hisi_hdc",
        "--volume=/usr/local/dcmi:/usr/local/dcmi:ro",
        "--volume=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro",
        "--volume=/usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool:ro",
        "--volume=/usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro",
        "--volume=/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info:ro",
        "--volume=/etc/ascend_install.info:/etc/ascend_install.info:ro",
        "--volume=/etc/hccn.conf:/etc/hccn.conf:ro",
        "--volume=/models/GLM-5-w4a8:/models/GLM-5-w4a8:ro",
        "--volume=@HERE@/yuanrong.json:/etc/kveik-launch/yuanrong.json:ro",
    ]
    given = {f"--env={one.name}={one.value}" for one in last(node).variables}
    assert {word for word in words if word.startswith("--env")} == given


def test_docker_on_a3() -> None:
    (node,) = launched("a3", "glm-5", "none", Given())
    words = docker_options(node, last(node))
    assert [word for word in words if not word.startswith("--env")] == [
        "--name=kveik-engine",
        "--init",
        "--entrypoint=",
        "--net=host",
        "--shm-size=16g",
        "--device=/dev/davinci0",
        "--device=/dev/davinci1",
        "--device=/dev/davinci2",
        "--device=/dev/davinci3",
        "--device=/dev/davinci4",
        "--device=/dev/davinci5",
        "--device=/dev/davinci6",
        "--device=/dev/davinci7",
        "--device=/dev/davinci8",
        "--device=/dev/davinci9",
        "--device=/dev/davinci10",
        "--device=/dev/davinci11",
        "--device=/dev/davinci12",
        "--device=/dev/davinci13",
        "--device=/dev/davinci14",
        "--device=/dev/davinci15",
        "--device=/dev/davinci_manager",
        "--device=/dev/devmm_svm",
        "--device=/dev/hisi_hdc",
        "--volume=/usr/local/dcmi:/usr/local/dcmi:ro",
        "--volume=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro",
        "--volume=/usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool:ro",
        "--volume=/usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro",
        "--volume=/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info:ro",
        "--volume=/etc/ascend_install.info:/etc/ascend_install.info:ro",
        "--volume=/etc/hccn.conf:/etc/hccn.conf:ro",
        "--volume=/models/GLM-5-w4a8:/models/GLM-5-w4a8:ro",
    ]
    given = {f"--env={one.name}={one.value}" for one in last(node).variables}
    assert {word for word in words if word.startswith("--env")} == given


def test_docker_on_a5() -> None:
    (node,) = launched("a5", "smollm2-135m", "none", Given())
    words = docker_options(node, last(node))
    assert [word for word in words if not word.startswith("--env")] == [
        "--name=kveik-engine-7",
        "--init",
        "--entrypoint=",
        "--net=host",
        "--shm-size=16g",
        "--device=/dev/davinci0",
        "--device=/dev/davinci1",
        "--device=/dev/davinci2",
        "--device=/dev/davinci3",
        "--device=/dev/davinci4",
        "--device=/dev/davinci5",
        "--device=/dev/davinci6",
        "--device=/dev/davinci7",
        "--device=/dev/davinci_manager",
        "--device=/dev/hisi_hdc",
        "--device=/dev/ummu",
        "--device=/dev/uburma",
        "--volume=/usr/local/dcmi:/usr/local/dcmi:ro",
        "--volume=/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
        "--volume=/etc/hixlep:/etc/hixlep:ro",
        "--volume=/usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro",
        "--volume=/usr/bin/urma_admin:/usr/bin/urma_admin:ro",
        "--volume=/lib/route.conf:/lib/route.conf:ro",
        "--volume=/etc/hccl_rootinfo.json:/etc/hccl_rootinfo.json:ro",
        "--volume=/etc/hccn.conf:/etc/hccn.conf:ro",
        "--volume=/models/smollm2-135m-instruct:/models/smollm2-135m-instruct:ro",
    ]
    given = {f"--env={one.name}={one.value}" for one in last(node).variables}
    assert {word for word in words if word.startswith("--env")} == given


def test_docker_on_cuda() -> None:
    (node,) = launched("cuda", "smollm2-135m", "kveik", Given(shared_folder="/mnt/kv"))
    words = docker_options(node, last(node))
    assert [word for word in words if not word.startswith("--env")] == [
        "--name=kveik-engine-7",
        "--init",
        "--entrypoint=",
        "--gpus=all",
        "--net=host",
        "--ipc=host",
        "--ulimit=memlock=-1",
        "--pid=host",
        "--volume=/models/smollm2-135m-instruct:/models/smollm2-135m-instruct:ro",
        "--volume=/dev/shm:/dev/shm",
        "--volume=/run/kveik:/run/kveik",
    ]
    given = {f"--env={one.name}={one.value}" for one in last(node).variables}
    assert {word for word in words if word.startswith("--env")} == given


@pytest.mark.parametrize("hardware", ["a2", "a3", "a5", "cuda"])
def test_the_store_of_a_node_gets_no_accelerator(hardware: str) -> None:
    tier = "kveik" if hardware == "cuda" else "yuanrong"
    (node,) = launched(hardware, "smollm2-135m", tier, Given())
    for process in node.processes:
        wanted = process.command[:2] == ("vllm", "serve") and hardware != "cuda"
        assert any(word.startswith("--device=") for word in docker_options(node, process)) == wanted
