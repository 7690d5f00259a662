"""The check ``versions``: which packages are here, whether they go together, and whether somebody patched them."""

from collections.abc import Iterator
from pathlib import Path

from kveik.doctor.check import Context, Outcome, Point, Verdict
from kveik.doctor.installed import Package, cann_version, driver_version, packages_of
from kveik.doctor.patched import PatchLook, look_for_patches
from kveik.doctor.version_judge import judge
from kveik.doctor.version_names import plain, products_of, versions_in
from kveik.doctor.version_table import VersionTable, read_versions

_FILES_SHOWN = 10
_PATCH_SOURCE = "RECORD of the package (PyPA, Recording installed projects)"
_PATCH_REMEDY = (
    "install the package anew; if it was patched to repair something, take the release that has it repaired: "
    "a patched engine is one that nobody else has"
)
_HOOKS = "*ucm*.pth"
_HOOK_REMEDY = "know it when answers or errors surprise you; uninstall UCM where it is not used"
_NOTHING = Point(
    Outcome.UNKNOWN,
    "versions",
    "no product that the table knows was found",
    "name the engines' interpreter (--python), or give a list (--from)",
)


def check_versions(context: Context) -> Verdict:
    """Look, or read what was pasted, and judge. Raises :class:`kveik.errors.DoctorError`."""
    table = read_versions()
    if context.pasted is not None:
        installed = versions_in(context.pasted, table)
        return Verdict(_evidence(installed, table), judge(installed, table) or [_NOTHING])
    here = packages_of(context.python)
    installed = {
        "python": here.python,
        **products_of(((package.name, package.version) for package in here.packages), table),
    }
    for name, found in (("cann", cann_version(context.ascend)), ("hdk", driver_version(context.ascend))):
        if found:
            installed[name] = found.version
    points = [*_patches(here.packages, table), *_hooks(here.packages), *judge(installed, table)]
    return Verdict([f"interpreter {context.python}", *_evidence(installed, table)], points or [_NOTHING])


def _evidence(installed: dict[str, str], table: VersionTable) -> list[str]:
    notes = {name: table.note(name, version) for name, version in installed.items()}
    return [
        f"{table.title(name)} {version}{f' ({note})' if (note := notes[name]) else ''}"
        for name, version in installed.items()
    ]


def _hooks(packages: tuple[Package, ...]) -> Iterator[Point]:
    """UCM leaves a file beside the packages that has vLLM changed while it is imported; no record shows that."""
    folders = {Path(package.info).parent for package in packages if package.info}
    for hook in sorted(file for folder in folders for file in folder.glob(_HOOKS)):
        told = "vLLM is changed by UCM whenever Python starts: what runs is not what vLLM's files say"
        yield Point(Outcome.BEWARE, hook.name, told, _HOOK_REMEDY, "UCM 0.9.0rc3, its package was installed")


def _patches(packages: tuple[Package, ...], table: VersionTable) -> Iterator[Point]:
    """What is to be said of packages that are compared with their record."""
    titles = {package: product.title for product in table.product if product.is_patched for package in product.packages}
    for package in packages:
        name = plain(package.name)
        title = titles.get(name) or (table.title("ucm") if name.startswith("uc-manager-") else "")
        if title and package.info:
            yield _patch_point(f"{title} {package.version}", look_for_patches(Path(package.info)))


def _patch_point(about: str, look: PatchLook) -> Point:
    about = f"files of {about}"
    if look.why_not:
        return Point(Outcome.UNKNOWN, about, f"they cannot be compared: {look.why_not}")
    if not look.is_patched:
        return Point(Outcome.WELL, about, f"all {look.files} are as they were delivered", source=_PATCH_SOURCE)
    parts = (("changed", look.changed), ("removed", look.missing), ("added", look.added))
    told = "; ".join(f"{len(files)} {how}: {_some(files)}" for how, files in parts if files)
    return Point(Outcome.WRONG, about, f"patched by hand: {told}", _PATCH_REMEDY, _PATCH_SOURCE)


def _some(files: tuple[str, ...]) -> str:
    more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
    return f"{', '.join(files[:_FILES_SHOWN])}{more}"
