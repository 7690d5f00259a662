"""Which versions go together: data with sources, from ``data/versions.toml``."""

from collections.abc import Mapping

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from kveik.doctor.data_file import read_data

_FILE = "versions.toml"


class Product(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something with versions. ``packages``: names on the package index; ``image``: end of its container image's name.

    ``is_patched``: whether its installed files are compared with what was delivered.
    """

    name: str
    title: str
    packages: tuple[str, ...] = ()
    image: str = ""
    is_patched: bool = False


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a version of a product goes with.

    ``needs``: without one of these versions it does not work. ``made_with``: it was built and tried with these; others
    may work. Each is a list of specifiers of which one has to hold.
    """

    product: str
    version: str
    source: str
    needs: Mapping[str, tuple[str, ...]] = {}
    made_with: Mapping[str, tuple[str, ...]] = {}
    note: str = ""


class Mismatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens if a need is not met."""

    product: str
    other: str
    effect: str


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A combination that is known to be broken. ``only``: what must hold besides, which versions do not tell."""

    id: str
    when: Mapping[str, str]
    effect: str
    fix: str
    source: str
    only: str = ""


class VersionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    product: tuple[Product, ...]
    release: tuple[Release, ...]
    mismatch: tuple[Mismatch, ...]
    fault: tuple[Fault, ...]

    def title(self, name: str) -> str:
        """How people write a product's name."""
        return next((product.title for product in self.product if product.name == name), name)

    def note(self, name: str, version: str) -> str:
        """What is worth knowing of a release, or nothing."""
        rows = (row.note for row in self.release if row.product == name and row.note and holds(row.version, version))
        return next(rows, "")


def read_versions() -> VersionTable:
    """The table of the package."""
    return read_data(_FILE, VersionTable)


def parsed(version: str) -> Version | None:
    """A version as the package index orders them (PEP 440); CANN's ``8.3.RC2`` and dated builds are read, too."""
    try:
        return Version(version.partition("_")[0].strip())
    except InvalidVersion:
        return None


def holds(specifier: str, version: str) -> bool | None:
    """Whether a version is one of those meant; None if the version cannot be read. Candidates count like releases."""
    found = parsed(version)
    return None if found is None else SpecifierSet(specifier).contains(found, prereleases=True)
