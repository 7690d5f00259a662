"""Wait until an engine's counters hold what it has done, and until its saves are done."""

import time
from dataclasses import dataclass

from kveik.engine.client import EngineClient
from kveik.engine.metrics import Metric, MetricsSnapshot, TokenEvidence, token_evidence
from kveik.errors import VerifyError

POLL_S = 0.05
#: The connector reports once a step; this long without news means that nothing more comes.
QUIET_S = 0.5


@dataclass(frozen=True, slots=True)
class Settled:
    """Counters at rest: the snapshot, and the difference to the one before."""

    snapshot: MetricsSnapshot
    evidence: TokenEvidence


def wait_counted(client: EngineClient, before: MetricsSnapshot, prompt_tokens: int, timeout_s: float) -> Settled:
    """The counters once they hold ``prompt_tokens`` more: vLLM counts a moment after it answers.

    After ``timeout_s`` the counters as they are; the caller sees that they fall short.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        snapshot = client.metrics()
        evidence = token_evidence(before, snapshot)
        complete = evidence.prompt >= prompt_tokens and evidence.used >= evidence.external and not snapshot.busy
        if complete or time.monotonic() > until_s:
            return Settled(snapshot, evidence)
        time.sleep(POLL_S)


def wait_saved(
    client: EngineClient, before: MetricsSnapshot, blocks: int, timeout_s: float, quiet_s: float = QUIET_S
) -> None:
    """Wait until at least ``blocks`` blocks are saved or known to be there, and none is under way.

    Raises :class:`~kveik.errors.VerifyError` when that does not happen in time or blocks were
    dropped: no later leg could prove anything about them.
    """
    until_s = time.monotonic() + timeout_s
    quiet_since_s, last = time.monotonic(), -1
    while True:
        snapshot = client.metrics()
        evidence = token_evidence(before, snapshot)
        now_s = time.monotonic()
        if evidence.dropped_blocks:
            reasons = snapshot.by_label(Metric.KVEIK_SAVE_DROPPED, "reason")
            raise VerifyError(
                f"{client.url} dropped {evidence.dropped_blocks} blocks instead of saving them, "
                f"for these reasons: {', '.join(reasons)}"
            )
        if evidence.settled_blocks != last or snapshot.total(Metric.KVEIK_PINNED_BLOCKS):
            quiet_since_s, last = now_s, evidence.settled_blocks
        if evidence.settled_blocks >= blocks and now_s - quiet_since_s >= quiet_s:
            return
        if now_s > until_s:
            raise VerifyError(
                f"{client.url} saved {evidence.settled_blocks} blocks in {timeout_s:g} s, expected at least {blocks}"
            )
        time.sleep(POLL_S)
