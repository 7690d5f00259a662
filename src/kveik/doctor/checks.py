"""All checks of the doctor, in the order in which they run. A new one is a row here."""

from collections.abc import Sequence

from kveik.doctor.check import Check
from kveik.doctor.environment_check import check_environment
from kveik.doctor.versions_check import check_versions
from kveik.errors import ConfigError

CHECKS: tuple[Check, ...] = (
    Check(
        "versions",
        "software",
        "do the installed versions go together, and are their files as they were delivered?",
        check_versions,
        120.0,
    ),
    Check(
        "environment",
        "settings",
        "do the variables that are set have values that are taken, and does anything read them?",
        check_environment,
        120.0,
    ),
)


def chosen_checks(names: Sequence[str], group: str = "") -> list[Check]:
    """Those of the names, or of a group, or all. Raises :class:`ConfigError` for what is not there."""
    known = {check.name: check for check in CHECKS}
    groups = sorted({check.group for check in CHECKS})
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no check {unknown[0]!r}, expected some of {', '.join(known)}")
    if group and group not in groups:
        raise ConfigError(f"there is no group {group!r}, expected one of {', '.join(groups)}")
    return [check for check in CHECKS if (not names or check.name in names) and group in {"", check.group}]
