"""The table of variables is sound."""

import re

import pytest

from kveik.doctor.environment_judge import conditions_are_sound
from kveik.doctor.environment_table import Rule, Variable, read_environment_table
from kveik.doctor.environment_values import KINDS, is_allowed
from kveik.doctor.version_table import holds, read_versions

TABLE = read_environment_table()
NAMES = {variable.name for variable in TABLE.variable}
PRODUCTS = {product.name for product in read_versions().product}


def test_every_variable_is_there_once() -> None:
    assert len(NAMES) == len(TABLE.variable)
    assert len({rule.id for rule in TABLE.rule}) == len(TABLE.rule)


@pytest.mark.parametrize("variable", TABLE.variable, ids=lambda variable: variable.name)
def test_a_variable_has_an_owner_a_kind_and_a_source(variable: Variable) -> None:
    assert variable.owner in PRODUCTS | {"machine"}
    assert variable.kind in KINDS
    assert variable.meaning
    assert variable.source
    assert bool(variable.choices) is (variable.kind in {"choice", "pattern"})
    assert variable.works_with.keys() <= PRODUCTS
    assert all(holds(specifier, "1.0") is not None for specifier in variable.works_with.values())
    if variable.minimum is not None or variable.maximum is not None:
        assert variable.kind in {"whole", "number"}


def test_defaults_that_are_values_are_allowed_values() -> None:
    written = [variable for variable in TABLE.variable if re.fullmatch(r"[\d.]+|[A-Z_]+", variable.default)]
    assert len(written) > 40
    assert [variable.name for variable in written if not is_allowed(variable, variable.default)] == []


@pytest.mark.parametrize("rule", TABLE.rule, ids=lambda rule: rule.id)
def test_a_rule_speaks_of_variables_of_the_table(rule: Rule) -> None:
    assert conditions_are_sound(rule, NAMES)
    assert all((rule.told, rule.fix, rule.source))


def test_a_rule_that_is_not_understood_is_found_out() -> None:
    def rule(*when: str) -> Rule:
        return Rule(id="x", when=when, told="", fix="", source="")

    assert not conditions_are_sound(rule("NOBODY set"), NAMES)
    assert not conditions_are_sound(rule("PYTHONHASHSEED about 3"), NAMES)
    assert not conditions_are_sound(rule("PYTHONHASHSEED =="), NAMES)
    assert conditions_are_sound(rule("PYTHONHASHSEED == 3", "OMP_PROC_BIND unset"), NAMES)


def test_the_names_of_vllm_mooncake_and_yuanrong_are_known() -> None:
    by_owner = {family.owner: family for family in TABLE.family}
    assert {"vllm", "mooncake", "yuanrong"} == by_owner.keys()
    assert "VLLM_PLUGINS" in by_owner["vllm"].names
    assert "VLLM_USE_V1" not in by_owner["vllm"].names
    assert "MC_TCP_BIND_ADDRESS" in by_owner["mooncake"].names
    assert "DS_H2D_PARALLEL_WORKER_NUM" not in by_owner["yuanrong"].names
    for family in TABLE.family:
        assert all(name.startswith(family.prefixes) for name in family.names)
        assert list(family.names) == sorted(set(family.names))
