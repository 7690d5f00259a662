"""The check ``environment``: whether the variables that are set do what they should."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from kveik.config import SECTIONS, rows
from kveik.doctor.check import Context, Outcome, Point, Verdict
from kveik.doctor.environment_judge import family_of, judge_environment
from kveik.doctor.environment_read import environment_in, environment_of, names_in_libraries, names_that_vllm_reads
from kveik.doctor.environment_table import EnvironmentTable, Family, read_environment_table
from kveik.doctor.installed import PythonPackages, packages_of
from kveik.doctor.version_names import plain, products_of, versions_in
from kveik.doctor.version_table import VersionTable, read_versions
from kveik.errors import DoctorError

_PARALLEL_COPIES = ("DS_H2D_PARALLEL_", "DS_D2H_PARALLEL_", "DS_H2D_FFTS_", "DS_D2H_FFTS_")
_YUANRONG = "openyuanrong-datasystem"
#: Kveik's variables that are no settings (docs and code name them).
_KVEIK_OTHERS = (
    *("KVEIK_ADMISSION_TOKEN", "KVEIK_API_KEY", "KVEIK_ENGINE_API_KEY", "KVEIK_ENGINE_PYTHON", "KVEIK_MODELS"),
    *("KVEIK_ENGINE", "KVEIK_ENGINE_CORES", "KVEIK_BROWSER", "KVEIK_ETCD", "KVEIK_REDIS", "KVEIK_PULSE", "KVEIK_WHY"),
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The environment, whose it is, and which versions will read it."""

    whose: str
    environ: Mapping[str, str]
    installed: Mapping[str, str]
    packages: Path | None = None
    dead: frozenset[str] = field(default=frozenset())


def check_environment(context: Context) -> Verdict:
    """Look, or read what was pasted, and judge: of a fleet the engines here. Raises :class:`DoctorError`."""
    versions = read_versions()
    seen = _look(context, versions)
    table = _table_for(seen, read_environment_table())
    engines = _of_engines(context)
    if not engines:
        return Verdict(_evidence(seen, table, versions), _points(seen, table, versions))
    evidence: list[str] = []
    points: list[Point] = []
    for name, environ in engines.items():
        one = replace(seen, whose=f"the environment of {name}", environ=environ)
        evidence += _evidence(one, table, versions)[:2]
        points += [replace(point, about=f"{point.about} of {name}") for point in _points(one, table, versions)]
    return Verdict([*evidence, *_evidence(seen, table, versions)[2:]], points)


def _of_engines(context: Context) -> Mapping[str, Mapping[str, str]]:
    """What the engines of this machine were started with, or will be; none where something else was asked for."""
    if context.fleet is None or context.pid or context.pasted is not None:
        return {}
    running = {engine.name: engine.environ for engine in context.fleet.view().engines if engine.environ is not None}
    configured = {engine.name: engine.environment for engine in context.fleet.described.here}
    return {**{name: {**context.environ, **environ} for name, environ in configured.items() if environ}, **running}


def _points(seen: _Seen, table: EnvironmentTable, versions: VersionTable) -> list[Point]:
    points = [*_dead_points(seen), *judge_environment(seen.environ, seen.installed, table, versions)]
    return [point for point in points if not _said_twice(point, seen.dead)]


def _evidence(seen: _Seen, table: EnvironmentTable, versions: VersionTable) -> list[str]:
    told = {variable.name for variable in table.variable}
    count = sum(name in told or family_of(name, table) is not None for name in seen.environ)
    read_by = ", ".join(f"{versions.title(name)} {version}" for name, version in seen.installed.items())
    return [seen.whose, f"{count} variables that parts of a fleet read", f"read by {read_by or 'unknown versions'}"]


def _look(context: Context, versions: VersionTable) -> _Seen:
    if context.pasted is not None:
        return _Seen("what was given", environment_in(context.pasted), versions_in(context.pasted, versions))
    environ = environment_of(context.pid) if context.pid else context.environ
    whose = f"the environment of process {context.pid}" if context.pid else "the environment of this command"
    try:
        here = packages_of(context.python)
    except DoctorError:
        return _Seen(whose, environ, {})  # judged without versions
    installed = products_of(((package.name, package.version) for package in here.packages), versions)
    return _Seen(whose, environ, installed, _packages_folder(here, "vllm"), _not_in_yuanrong(here, environ))


def _packages_folder(here: PythonPackages, name: str) -> Path | None:
    infos = (package.info for package in here.packages if plain(package.name).startswith(name) and package.info)
    return next((Path(info).parent for info in infos), None)


def _not_in_yuanrong(here: PythonPackages, environ: Mapping[str, str]) -> frozenset[str]:
    """Variables for parallel copies that are set and that the installed library does not even mention."""
    wanted = [name for name in environ if name.startswith(_PARALLEL_COPIES)]
    folder = _packages_folder(here, _YUANRONG)
    if not wanted or folder is None:
        return frozenset()
    return frozenset(wanted) - names_in_libraries(folder / "yr", wanted)


def _dead_points(seen: _Seen) -> list[Point]:
    told = "set, and the installed library does not know the name: copies are not made in parallel"
    return [
        Point(Outcome.WRONG, name, told, "openYuanrong datasystem 0.9.1.rc9 or newer", "strings of libdatasystem.so")
        for name in sorted(seen.dead)
    ]


def _said_twice(point: Point, dead: frozenset[str]) -> bool:
    return point.about in dead and point.source != "strings of libdatasystem.so"


def _table_for(seen: _Seen, table: EnvironmentTable) -> EnvironmentTable:
    """The table with the names that the installed vLLM itself knows, and with Kveik's own."""
    settings = [row.env for section in SECTIONS for row in rows(section)]
    kveik = Family(("KVEIK_",), "kveik", seen.installed.get("kveik", ""), (*settings, *_KVEIK_OTHERS))
    names = names_that_vllm_reads(seen.packages) if seen.packages else frozenset()
    families = [
        msgspec.structs.replace(family, names=tuple(names), version=seen.installed["vllm"])
        if names and family.owner == "vllm" and "vllm" in seen.installed
        else family
        for family in table.family
    ]
    return msgspec.structs.replace(table, family=(*families, kveik))
