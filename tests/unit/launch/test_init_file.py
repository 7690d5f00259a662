"""The file that `kveik init` writes is one that Kveik reads, for every section and every kind of machine."""

from pathlib import Path

import pytest

from kveik.config import SECTIONS, EngineSettings, load, read_toml
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.init_file import init_text
from kveik.launch.machine import Machine
from kveik.launch.model_facts import ModelFacts
from kveik.launch.sizes import fitting
from tests.unit.launch.test_sizes import GIB, LARGE, SMALL, on_cpu, with_devices

MACHINES = {
    "cpu": on_cpu(),
    "numa": on_cpu(32, 256, 128, 4),
    "cuda": with_devices(8, 80),
    "ascend": with_devices(4, 64),
}


def written(folder: Path, machine: Machine, model: ModelFacts | None, python: str = "") -> Path:
    file = folder / "kveik.toml"
    model_folder = Path('/models/with "quotes" and ä') if model else None
    file.write_text(init_text(machine, model_folder, model, fitting(machine, model), python), encoding="utf8")
    return file


@pytest.mark.parametrize("kind", MACHINES)
def test_every_section_of_it_loads_and_the_fleet_is_what_fits(tmp_path: Path, kind: str) -> None:
    model = SMALL if kind in {"cpu", "numa"} else LARGE
    file = written(tmp_path, MACHINES[kind], model)
    for settings in SECTIONS.values():
        load(settings, file=file)
    sizes = fitting(MACHINES[kind], model)
    spec = read_fleet(file, {})
    assert [engine.name for engine in spec.engines] == [engine.name for engine in sizes.engines]
    assert [engine.entry.cores for engine in spec.engines] == [engine.cores for engine in sizes.engines]
    assert [engine.entry.devices for engine in spec.engines] == [engine.devices for engine in sizes.engines]
    first = spec.engines[0]
    assert first.settings.kv_cache_bytes == sizes.kv_cache_bytes
    assert first.settings.max_model_tokens == sizes.max_model_tokens
    assert first.settings.model == '/models/with "quotes" and ä'
    assert first.arguments == (["--tensor-parallel-size", "2"] if kind in {"cuda", "ascend"} else [])


def test_lines_that_are_commented_out_are_settings_that_exist(tmp_path: Path) -> None:
    text = written(tmp_path, MACHINES["cpu"], SMALL).read_text()
    file = tmp_path / "all.toml"
    lines = [
        line.removeprefix("# ") if " = " in line or line.startswith("# [[") else line for line in text.splitlines()
    ]
    file.write_text("\n".join(lines).replace('name = "engine-1"\n', 'name = "engine-1"\nnode = "n0"\n'))
    for settings in SECTIONS.values():
        load(settings, file=file)
    assert read_fleet(file, {}).nodes[0].name == "n0"
    assert load(EngineSettings, file=file).mode == "eager"


def test_a_file_without_a_model_says_what_to_set(tmp_path: Path) -> None:
    text = written(tmp_path, MACHINES["cpu"], None).read_text()
    assert 'model = ""                 # SET ME: the folder of a model' in text


def test_the_engines_python_is_written_down(tmp_path: Path) -> None:
    assert read_fleet(written(tmp_path, MACHINES["cpu"], SMALL, "/opt/vllm/bin/python"), {}).engines[
        0
    ].settings.python == ("/opt/vllm/bin/python")


def test_sizes_are_written_as_people_read_them_and_read_back_exactly(tmp_path: Path) -> None:
    file = written(tmp_path, on_cpu(shared_gib=4 / 0.85), SMALL)
    assert read_toml(file)["agent"]["arena_bytes"] in {"4 GiB", f"{3 * GIB // (1 << 20) + 768} MiB"}
    assert read_fleet(file, {}).engines[0].settings.kv_cache_bytes == fitting(on_cpu(), SMALL).kv_cache_bytes


def test_what_could_not_be_found_out_stands_in_the_file(tmp_path: Path) -> None:
    machine = Machine((0,), ((0,),), 24 * GIB, 24 * GIB, 24 * GIB, notes=("nvidia-smi told nothing",))
    assert "# Not found out: nvidia-smi told nothing." in written(tmp_path, machine, SMALL).read_text()
