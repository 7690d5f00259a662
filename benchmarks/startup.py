"""Start-up: how much longer an engine takes to its first answer with Kveik's connector than without.

What: seconds from starting the process to the answer of one tiny request.
Each round: one start with the connector (the agent runs) and one without, in turn; who is first
changes with each round. One start of each kind before the first round fills file caches, and the
connector's note of the weights' digest, which the first start with some weights has to compute.
"""

import argparse

from benchmarks.options import Recorder, parser, rig_spec, say
from benchmarks.result import Claim
from benchmarks.rig import Rig

WITH, WITHOUT, GROUP = "with connector", "without", "engine start"
MOST_LONGER_S = 2.0


def main() -> None:
    """Measure, print and write down."""
    given = parser(__doc__ or "", rounds=4).parse_args()
    recorder = Recorder("startup", f"Engine start-up with Kveik's connector and without, {given.model.name}", given)
    claim = Claim(group=GROUP, first=WITH, second=WITHOUT, direction="at most", bound=MOST_LONGER_S, kind="difference")
    with recorder.writing(conditions(given), [claim]), Rig(rig_spec(given), say) as rig:
        rig.start_agent()
        for label in (WITH, WITHOUT):
            say(f"not counted: {label} {start(rig, label):.1f} s")
        for number in range(given.rounds):
            order = [WITH, WITHOUT] if number % 2 == 0 else [WITHOUT, WITH]
            with recorder.round(GROUP) as one:
                for label in order:
                    one.add(label, start(rig, label))


def start(rig: Rig, label: str) -> float:
    """Seconds of one start."""
    return rig.start_and_stop(label.replace(" ", "-"), connector=label == WITH)


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "seconds from starting the process to the answer of one tiny request",
        "model": f"{given.model.name}, {given.dtype}",
        "engine": f"computing on core {given.core}, eager; one at a time",
        "rounds": f"{given.rounds} pairs; each side is first in half of them",
    }


if __name__ == "__main__":
    main()
