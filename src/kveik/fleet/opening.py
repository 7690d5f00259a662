"""Opens the registry that the settings ask for."""

import logging
from pathlib import Path

from kveik.config import RouterSettings
from kveik.errors import RegistryError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.etcd import EtcdRegistry
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway
from kveik.fleet.member_file import MemberFile, default_file
from kveik.fleet.membership import Retention
from kveik.fleet.registry import Registry
from kveik.records import Listener, ignore

logger = logging.getLogger("kveik.fleet")


def open_registry(settings: RouterSettings, listener: Listener = ignore) -> Registry:
    """The router's registry, running. Raises :class:`ConfigError` and :class:`RegistryError`."""
    retention = Retention(lost_s=settings.lost_kept_s, hold_s=settings.hold_kept_hours * 3600)
    path = Path(settings.registry_file) if settings.registry_file else default_file()
    if not settings.registry:
        return EmbeddedRegistry(MemberFile(path), retention=retention, listener=listener)
    gateway = EtcdGateway(EtcdAddress.parse(settings.registry), deadline_s=settings.registry_deadline_s)
    return EtcdRegistry(gateway, copy=_copy(path), retention=retention, listener=listener)


def _copy(path: Path) -> MemberFile | None:
    """The copy of what etcd says. It is of use in few cases, so a router starts without it too."""
    try:
        return MemberFile(path, lock_wait_s=0.0)
    except RegistryError as error:
        logger.warning("no copy of the fleet is kept: %s", error)
        return None
