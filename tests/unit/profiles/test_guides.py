"""Lines as guides and articles have them: what is wrong today is named, each with what works, and nothing else is.

The texts are those of a guide for GLM-5 with openYuanrong on Atlas A3 and A2, and of an introduction to vLLM on NPUs.
"""

import pytest

from kveik.profiles.line_check import check_text

ENVIRONMENT = """\
export HCCL_OP_EXPANSION_MODE="AIV"
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=1
export HCCL_BUFFSIZE=200
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export VLLM_ASCEND_BALANCE_SCHEDULING=1
export VLLM_USE_V1=1
export VLLM_ENGINE_READY_TIMEOUT_S=1800
export PYTHONHASHSEED=0
export DS_H2D_MEMCPY_POLICY="direct"
export DS_D2H_MEMCPY_POLICY="direct"
unset GOOGLE_LOGTOSTDERR GOOGLE_ALSOLOGTOSTDERR
"""

A3 = f"""\
#!/bin/bash
{ENVIRONMENT}
export DS_WORKER_ADDR="10.0.0.1:18481"

MODEL_PATH="/home/models/GLM-5-w4a8"

vllm serve $MODEL_PATH \\
  --host 0.0.0.0 \\
  --port 1025 \\
  --data-parallel-size 1 \\
  --tensor-parallel-size 16 \\
  --enable-expert-parallel \\
  --seed 1024 \\
  --served-model-name glm-5 \\
  --max-num-seqs 8 \\
  --max-model-len 200000 \\
  --max-num-batched-tokens 4096 \\
  --trust-remote-code \\
  --gpu-memory-utilization 0.95 \\
  --quantization ascend \\
  --enable-chunked-prefill \\
  --enable-prefix-caching \\
  --async-scheduling \\
  --additional-config '{{"multistream_overlap_shared_expert":true}}' \\
  --speculative-config '{{"num_speculative_tokens": 3, "method": "deepseek_mtp"}}' \\
  --compilation-config '{{"cudagraph_mode": "FULL_DECODE_ONLY"}}' \\
  --kv-transfer-config '{{
      "kv_connector": "AscendStoreConnector",
      "kv_role": "kv_both",
      "kv_connector_extra_config": {{
          "lookup_rpc_port": "0",
          "backend": "yuanrong"
      }}
  }}' 2>&1 | tee ./glm-5_yuanrong.log
"""

A2_SECOND_NODE = f"""\
#!/bin/bash
nic_name="enp61s0f2"
local_ip="10.0.0.2"
node0_ip="10.0.0.1"

export HCCL_IF_IP=$local_ip
export GLOO_SOCKET_IFNAME=$nic_name
export TP_SOCKET_IFNAME=$nic_name
export HCCL_SOCKET_IFNAME=$nic_name
{ENVIRONMENT}
export DS_WORKER_ADDR="${{local_ip}}:18481"

vllm serve /home/models/GLM-5-w4a8 \\
  --host 0.0.0.0 \\
  --port 1026 \\
  --headless \\
  --data-parallel-size 2 \\
  --data-parallel-size-local 1 \\
  --data-parallel-start-rank 1 \\
  --data-parallel-address $node0_ip \\
  --data-parallel-rpc-port 12890 \\
  --tensor-parallel-size 8 \\
  --quantization ascend \\
  --max-num-seqs 2 \\
  --max-model-len 131072 \\
  --max-num-batched-tokens 4096 \\
  --kv-transfer-config '{{
      "kv_connector": "AscendStoreConnector",
      "kv_role": "kv_both",
      "kv_connector_extra_config": {{"lookup_rpc_port": "1", "backend": "yuanrong"}}
  }}' 2>&1 | tee -a ./glm-5_yuanrong.log
"""

INTRODUCTION = """\
model = AscendForCausalLM.from_pretrained("Qwen/Qwen-72B", npu_config={"use_graph": True})
engine = LLMEngine(
    model="Qwen-72B",
    scheduler_config=SchedulerConfig(max_num_seqs=64, max_paddings=512, preemption_mode="recompute"),
    npu_config={"reserved_memory": 0.8, "stream_priority": [3, 2, 1]},
)
"""


def named(text: str, ascend: str = "0.30.0") -> list[str]:
    return [finding.name for finding in check_text(text, ascend).findings]


@pytest.mark.parametrize("script", [A3, A2_SECOND_NODE], ids=["a3", "a2-second-node"])
def test_the_yuanrong_guide_exports_what_nobody_reads_any_more(script: str) -> None:
    assert sorted(named(script)) == [
        "DS_WORKER_ADDR",
        "VLLM_ASCEND_BALANCE_SCHEDULING",
        "VLLM_USE_V1",
        "YR_CONFIG_PATH",
    ]


@pytest.mark.parametrize("script", [A3, A2_SECOND_NODE], ids=["a3", "a2-second-node"])
def test_with_an_image_of_its_time_most_of_it_would_have_been_right(script: str) -> None:
    assert named(script, "0.26.0rc1") == ["VLLM_USE_V1"]


def test_the_guides_own_image_has_no_such_backend() -> None:
    found = check_text(A3, "0.18.0rc1").findings
    assert [finding.name for finding in found] == ["VLLM_USE_V1", "--kv-transfer-config"]
    assert "0.19.1rc1 or later" in found[-1].instead


@pytest.mark.parametrize("script", [A3, A2_SECOND_NODE], ids=["a3", "a2-second-node"])
def test_corrected_as_it_is_told_the_guide_fits(script: str) -> None:
    gone = ("VLLM_USE_V1", "VLLM_ASCEND_BALANCE_SCHEDULING", "DS_WORKER_ADDR")
    kept = [line for line in script.splitlines() if not any(name in line for name in gone)]
    assert check_text("\n".join(["export YR_CONFIG_PATH=/etc/yuanrong.json", *kept]), "0.30.0").findings == ()


def test_the_guides_metrics_are_no_options_of_serve() -> None:
    found = check_text("vllm serve /m --enable-metrics --metrics-port 8001", "0.30.0")
    assert [finding.name for finding in found.findings] == ["--enable-metrics", "--metrics-port"]
    assert all("/metrics" in finding.instead for finding in found.findings)


def test_the_guides_check_of_communication_sets_a_value_that_there_is_not() -> None:
    (finding,) = check_text("export HCCL_DETERMINISTIC=1\nvllm serve /m", "0.30.0").findings
    assert "does not check communication" in finding.told
    assert finding.instead == "false, true, strict"


def test_the_guides_answer_to_too_little_memory_fits() -> None:
    assert named("vllm serve /m --max-model-len 65536 --max-num-seqs 4") == []


def test_the_introductions_arguments_are_of_the_past_or_of_nowhere() -> None:
    found = {finding.name: finding.told for finding in check_text(INTRODUCTION, "0.30.0").findings}
    assert set(found) == {"npu_config", "scheduler_config", "max_paddings", "preemption_mode"}
    assert found["max_paddings"].startswith("removed")
    assert found["npu_config"].startswith("never")


def test_the_introductions_arguments_as_options_are_told_as_well() -> None:
    line = "vllm serve /m --max-num-seqs 64 --max-paddings 512 --preemption-mode recompute --reserved-memory 0.8"
    assert named(line) == ["--max-paddings", "--preemption-mode", "--reserved-memory"]
    assert named(f"{line} --stream-priority 3") == [
        "--max-paddings",
        "--preemption-mode",
        "--reserved-memory",
        "--stream-priority",
    ]
