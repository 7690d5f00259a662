"""All checks of the doctor, in the order in which they run. A new one is a row here.

Those that need what stands above it are rows of :mod:`kveik.diagnose.all_checks`.
"""

from collections.abc import Callable, Sequence

from kveik.doctor.check import Check, Context, Verdict
from kveik.doctor.environment_check import check_environment
from kveik.doctor.fleet_addresses import check_addresses
from kveik.doctor.fleet_answers import check_answers
from kveik.doctor.fleet_clocks import check_clocks
from kveik.doctor.fleet_connector import check_connector, check_prefix_caching
from kveik.doctor.fleet_counters import check_counters
from kveik.doctor.fleet_etcd import check_etcd
from kveik.doctor.fleet_hash_check import check_hashes
from kveik.doctor.fleet_memory import check_huge_pages, check_memory
from kveik.doctor.fleet_rendering import check_rendering
from kveik.doctor.mount_check import check_mount
from kveik.doctor.nodes_check import check_nodes
from kveik.doctor.store_check import check_stores
from kveik.doctor.store_pairs_check import check_pairs
from kveik.doctor.versions_check import check_versions
from kveik.errors import ConfigError

#: Long enough for a fleet in which an engine is silent: it is read by whoever asks first.
_FLEET_S = 120.0
#: A mount that hangs is waited for several times.
_MOUNT_S = 90.0


def _of_fleet(
    name: str, group: str, question: str, run: Callable[[Context], Verdict], *, of_machine: bool = False
) -> Check:
    return Check(name, group, question, run, _FLEET_S, needs_fleet=True, of_machine=of_machine)


CHECKS: tuple[Check, ...] = (
    Check(
        "versions",
        "software",
        "do the installed versions go together, and are their files as they were delivered?",
        check_versions,
        120.0,
        of_machine=True,
    ),
    Check(
        "environment",
        "settings",
        "do the variables that are set have values that are taken, and does anything read them?",
        check_environment,
        120.0,
        of_machine=True,
    ),
    _of_fleet("answers", "engines", "does everybody answer, and get requests?", check_answers),
    _of_fleet(
        "connector",
        "engines",
        "does each engine load the connector, is it attached, and does it serve?",
        check_connector,
    ),
    _of_fleet("prefix-caching", "engines", "is prefix caching on at each engine?", check_prefix_caching),
    _of_fleet("hashes", "engines", "do all engines of a model give a prompt the same block hashes?", check_hashes),
    _of_fleet("rendering", "engines", "do all engines of a model make the same tokens of a request?", check_rendering),
    _of_fleet("counters", "engines", "does what engines count of hits agree with the time they take?", check_counters),
    _of_fleet("clocks", "network", "do the clocks of all machines agree?", check_clocks),
    _of_fleet("etcd", "network", "is there one etcd for all, and is it healthy?", check_etcd),
    _of_fleet(
        "addresses",
        "network",
        "can others reach what is configured, and is it this machine's?",
        check_addresses,
        of_machine=True,
    ),
    _of_fleet("stores", "stores", "does each store keep blocks and serve them to this machine?", check_stores),
    _of_fleet("pairs", "stores", "does each node find in shared tiers what the others put there?", check_pairs),
    Check("mount", "stores", "can the folder of the cache be shared, and is it fit for it?", check_mount, _MOUNT_S),
    _of_fleet(
        "memory",
        "machine",
        "does what is asked of memory fit into this machine and its limits?",
        check_memory,
        of_machine=True,
    ),
    _of_fleet(
        "huge-pages",
        "machine",
        "are there reserved huge pages for those who ask for them?",
        check_huge_pages,
        of_machine=True,
    ),
    _of_fleet("nodes", "machine", "what do these checks say on the other nodes' machines?", check_nodes),
)


def chosen_checks(
    names: Sequence[str], group: str = "", checks: Sequence[Check] = CHECKS, *, machine: bool = False
) -> list[Check]:
    """Those of the names, or of a group, or all; with ``machine`` of these those that look at this machine alone.

    Raises :class:`ConfigError` for what is not there.
    """
    known = {check.name: check for check in checks}
    groups = sorted({check.group for check in checks})
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"there is no check {unknown[0]!r}, expected some of {', '.join(known)}")
    if group and group not in groups:
        raise ConfigError(f"there is no group {group!r}, expected one of {', '.join(groups)}")
    return [
        check
        for check in checks
        if (not names or check.name in names) and group in {"", check.group} and (check.of_machine or not machine)
    ]
