"""Finds products and versions in pasted text: pip's lists, image names, CANN's own files. Pure."""

import re
from collections.abc import Iterable, Iterator

from kveik.doctor.version_table import Product, VersionTable

#: name==1.2, name 1.2, name (1.2), name: 1.2, name = 1.2, name @ url/name-1.2-...whl
_PACKAGE = re.compile(r"^\s*([A-Za-z][\w.-]*)\s*(?:==|\s|\(|:|=)\s*[(v]?(\d[\w.!+-]*)\)?")
_WHEEL = re.compile(r"([A-Za-z][\w.]*)-(\d[\w.!+]*)-[\w.]+-[\w.]+-[\w.]+\.whl")
_IMAGE = re.compile(r"([\w.-]+(?:[:/][\w.-]+)*/[\w.-]+):([\w.-]+)")
_TAG_VERSION = re.compile(r"v?(\d[\w.]*)")
#: A wheel of UCM says in its name which CANN it is built for: uc-manager-cann920-a3.
_UCM_BUILD = re.compile(r"^uc-manager-cann(\d)(\d)(\d)-")
#: The CANN that a package of UCM is built for, as a product of its own.
UCM_CANN = "ucm-cann"


def versions_in(text: str, table: VersionTable) -> dict[str, str]:
    """Versions by the table's names of products. Of a product that is named twice the first counts."""
    packages = [found for line in text.splitlines() for found in _packages_in(line)]
    versions = products_of(packages, table)
    for line in text.splitlines():
        for name, version in _images_in(line, table):
            versions.setdefault(name, version)
    return versions


def products_of(packages: Iterable[tuple[str, str]], table: VersionTable) -> dict[str, str]:
    """The same from names and versions of packages."""
    by_package = {package: product.name for product in table.product for package in product.packages}
    versions: dict[str, str] = {}
    for package, version in packages:
        name = plain(package)
        if built := _UCM_BUILD.match(name):
            versions.setdefault("ucm", version)
            versions.setdefault(UCM_CANN, ".".join(built.groups()))
        elif name in by_package:
            versions.setdefault(by_package[name], version)
    return versions


def plain(package: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _packages_in(line: str) -> Iterator[tuple[str, str]]:
    if wheel := _WHEEL.search(line):
        yield wheel[1], wheel[2]
    elif found := _PACKAGE.match(line):
        yield found[1], found[2]


def _images_in(line: str, table: VersionTable) -> Iterator[tuple[str, str]]:
    for image, tag in _IMAGE.findall(line):
        version = _TAG_VERSION.match(tag)
        product = _product_of_image(image, table.product)
        if version and product:
            yield product.name, version[1]


def _product_of_image(image: str, products: Iterable[Product]) -> Product | None:
    return next((product for product in products if product.image and image.endswith(product.image)), None)
