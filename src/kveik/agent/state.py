"""The arena's state as plain values, for ``kveik stats``."""

from kveik.agent.namespaces import Namespaces
from kveik.store.arena import Arena


def arena_state(arena: Arena, namespaces: Namespaces) -> dict[str, object]:
    """The entries ``arena`` and ``namespaces`` of the agent's state."""
    stats, recovered = arena.stats(), arena.recovered
    return {
        "arena": {
            "path": arena.file.path,
            "bytes": stats.arena_bytes,
            "faulted_in_bytes": arena.file.mapping.populated_bytes,
            "slab_bytes": stats.slab_bytes,
            "slabs": stats.slabs,
            "free_slabs": stats.free_slabs,
            "slabs_by_slot_bytes": {str(size): count for size, count in stats.slabs_by_slot_bytes.items()},
            "blocks": stats.blocks,
            "payload_bytes": stats.payload_bytes,
            "pinned": stats.pinned,
            "reserved": stats.reserved,
            "quarantined": stats.quarantined,
            "unverified": stats.unverified,
            "evicted": stats.evicted,
            "recovered_blocks": len(recovered.blocks),
            "recovery_s": round(recovered.seconds, 4),
        },
        "namespaces": [
            {
                "digest": digest.hex(),
                "label": namespaces.label(digest),
                "facts": namespaces.facts(digest),
                "blocks": blocks,
                "bytes": size,
            }
            for digest, (blocks, size) in sorted(stats.by_namespace.items())
        ],
    }
