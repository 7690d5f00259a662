"""All checks of the doctor: its own, and those that need what stands above it. A new one is a row here or there."""

from collections.abc import Sequence

from kveik.diagnose.devices_check import check_devices
from kveik.diagnose.options_check import check_options
from kveik.diagnose.prefixes_check import check_prefixes
from kveik.diagnose.start_check import check_ports, check_start
from kveik.doctor.check import Check
from kveik.doctor.checks import CHECKS

ALL_CHECKS: Sequence[Check] = (
    *CHECKS,
    Check(
        "start",
        "machine",
        "would this node start as it is configured?",
        check_start,
        120.0,
        needs_fleet=True,
    ),
    Check(
        "ports",
        "machine",
        "do the parts that run listen at their ports themselves, and nobody else?",
        check_ports,
        60.0,
        needs_fleet=True,
        of_machine=True,
    ),
    Check(
        "devices",
        "machine",
        "are the devices and cores that engines want here, of the right kind, and mounted?",
        check_devices,
        60.0,
        needs_fleet=True,
        of_machine=True,
    ),
    Check(
        "options",
        "settings",
        "does the installed vLLM take all options and variables that engines are started with?",
        check_options,
        300.0,
        needs_fleet=True,
        of_machine=True,
    ),
    Check(
        "prefixes",
        "engines",
        "do clients write prompts whose beginnings can be shared?",
        check_prefixes,
        60.0,
        needs_fleet=True,
    ),
)
