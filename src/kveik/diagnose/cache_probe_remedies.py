"""What to do about each way in which a probe of the cache can end. Text alone."""

WRONG = (
    "Do not serve from this cache: take the connector out now, then find where it breaks with `kveik verify`. What is "
    "stored may be wrong, or be read into the wrong place; a version that does not know the model's KV layout does "
    "that (`kveik doctor versions`). Empty the store before the next try."
)
SLOW = (
    "At this length the tier that has the blocks is slower than the engine computes; longer prompts may pay (`kveik "
    "breakeven` shows from which length on). Kveik's connector leaves such hits alone once it has measured them "
    "(connector.load_choice = measured). Of a shared folder, look at its bandwidth."
)
PENDING = "It digests the weights, once, and says so in the engine's log: try again when that is done."
NOT_SERVING = (
    "The engine's log says why, in the line `Kveik does not cache for this engine`: a KV cache layout that is not "
    "understood, prefix caching that is off, or weights that cannot be read."
)
NO_AGENT = (
    "Does the node's agent run (`kveik stats`), and does the connector's `socket` name the socket that it listens on? "
    "In a container the socket and the arena must be mounted, and the user must be the same."
)
NO_ANSWER = (
    "The agent, or a tier below it, is slow or hangs: `kveik stats` and `kveik events` show tiers that are left out. "
    "On a machine that is too busy a higher connector.lookup_deadline_s helps."
)
LOAD_FAILED = (
    "`timeout`: the tier is slower than computing, or hangs. `checksum`: bytes were damaged (`kveik fsck`). `miss` or "
    "`reused`: the blocks left the cache meanwhile, it is too small. `unavailable`: the agent went away. The engine's "
    "log tells more."
)
NOT_TAKEN = "The engine may have had no KV memory free for them, or the request was preempted: its log says so."
NOT_ALLOWED = (
    "That is right, if it is so: `kveik breakeven` shows what each tier costs and from which length on it pays. To "
    "see the blocks loaded all the same, set connector.load_choice = always."
)
TOO_SHORT = (
    "Hits come in whole units, and connector.min_hit_tokens sets a least length: use longer prompts, or lower it."
)
SAVE_DROPPED = (
    "`no_room`: the arena is too small, or full of blocks in use. `queue_full`: more blocks wait than "
    "connector.save_queue_blocks. `timeout`: the agent is too slow (connector.save_deadline_s). `unavailable`: it was "
    "away."
)
SAVES_NOTHING = "Is connector.save off on this engine? Then another engine has to fill the cache."
GROUP_LACKS = (
    "A KV cache group or a rank lacks blocks: those of a window were evicted or dropped, or one rank does not save. "
    "`kveik explain request` names the group and the first block that is missing."
)
OTHER_NAMESPACE = (
    "Weights, dtype, block sizes, hash seed or version differ. Each engine's log lists its facts in the line `Kveik "
    "namespace`, and the agent tells the difference to each that attaches (`kveik doctor`)."
)
NOT_SHARED = (
    "Two nodes share only what lies in a tier that both have, and only once it was written there: compare `kveik "
    "stats` of both agents. A folder that is called shared may be one on each node; `kveik doctor` finds that."
)
EVICTED = (
    "They were evicted meanwhile: the shared cache is smaller than what was pushed through the engine (`kveik cache "
    "du`), or lower tiers take only what is wanted twice (agent.admission)."
)
NO_CONNECTOR = (
    "Start the engine with --kv-transfer-config (`kveik connect` prints it) and with prefix caching on. `kveik "
    "doctor` says whether it has them."
)
GRANULARITY = (
    "It is stored in one granularity and counted in another, or the prompt is shorter than the smallest unit of all "
    "KV cache groups. vllm-ascend counts right from 0.30.0rc1 on; compare hash_block_size and lcm_block_size in its "
    "start-up lines. An older branch cannot be patched in one line: each kind of group has a fault of its own."
)
MIN_RETRIEVE = "Lower min_retrieve_tokens in LMCache's configuration, or use longer prompts."
OTHER_LOAD_FAILED = "The load failed or was given up; errors in the log say why (`kveik explain log`)."
PUTS_FAIL = (
    "Its puts fail, or go elsewhere: a wrong address, no room, a role that only reads, a transport that does not "
    "work. The log's errors say which (`kveik explain log`)."
)
OTHER_HASHES = (
    "The engines hash differently (PYTHONHASHSEED, --prefix-caching-hash-algo, block sizes), the pool was too small, "
    "or each node has a pool of its own (addresses on loopback): `kveik doctor`. The connector's log at DEBUG says "
    "what was looked for (--log)."
)
SAY_MORE = (
    "Start the engine with VLLM_LOGGING_LEVEL=DEBUG and give its log with --log, or the page on which its store "
    "counts with --store-metrics."
)
