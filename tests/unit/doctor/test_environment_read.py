"""Environments are read from text and from processes; names from installed code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.doctor.environment_read import environment_in, environment_of, names_in_libraries, names_that_vllm_reads
from kveik.errors import DoctorError


def test_lines_of_shells_docker_and_compose_are_read() -> None:
    text = """
# comment
A=1
export B="two words"
  -e C='3' \\
  - D=4
  E: 5
echo hello
A=6
"""
    assert environment_in(text) == {"A": "6", "B": "two words", "C": "3", "D": "4", "E": "5"}


def test_a_running_process_is_looked_at() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environ = {**os.environ, "DS_WORKER_ADDR": "192.0.2.7:1"}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is itself: until then the kernel may show no environment at all
        found = environment_of(process.pid)
        process.communicate(b"\n")
    assert found["DS_WORKER_ADDR"] == "192.0.2.7:1"


def test_a_process_that_is_not_there_is_said() -> None:
    with pytest.raises(DoctorError, match="cannot read the environment of process 4194999"):
        environment_of(4194999)


def test_the_installed_vllm_says_itself_which_names_it_reads(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    envs = tmp_path / "vllm" / "envs.py"
    envs.write_text("environment_variables: dict = {'VLLM_A': lambda: 1, 'VLLM_B': lambda: 2}\nother = {'C': 1}\n")
    assert names_that_vllm_reads(tmp_path) == {"VLLM_A", "VLLM_B"}
    envs.write_text("environment_variables = {'VLLM_C': 1}\n")
    assert names_that_vllm_reads(tmp_path) == {"VLLM_C"}
    envs.write_text("this is no Python")
    assert names_that_vllm_reads(tmp_path) == frozenset()
    assert names_that_vllm_reads(tmp_path / "nowhere") == frozenset()


def test_a_library_is_searched_for_the_names_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libdatasystem.so.1").write_bytes(b"\0DS_H2D_MEMCPY_POLICY\0x")
    (tmp_path / "lib" / "notes.txt").write_bytes(b"DS_H2D_PARALLEL_WORKER_NUM")
    wanted = ["DS_H2D_MEMCPY_POLICY", "DS_H2D_PARALLEL_WORKER_NUM"]
    assert names_in_libraries(tmp_path, wanted) == {"DS_H2D_MEMCPY_POLICY"}
