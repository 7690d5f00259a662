"""The settings table: each setting once, with type, unit, default, bounds and help.

The fields of the frozen dataclasses below, of those in :mod:`kveik.config_fleet` and of those in
:mod:`kveik.config_stores` *are* the table. The configuration file, environment variables, command-line flags, the
connector's extra config and ``docs/configuration.md`` all derive from them. Precedence, lowest first: default, file
(``[section]`` of a TOML file), environment (``KVEIK_SECTION_NAME``), what the caller passes.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kveik.config_fleet import EngineSettings, FleetSettings, WatchdogSettings
from kveik.config_stores import MooncakeSettings, RedisSettings, StoreSettings, YuanrongSettings
from kveik.errors import ConfigError
from kveik.setting import WAIT_MAX_S, SettingInfo, checked, default_runtime_dir, setting

__all__ = [
    "SECTIONS", "TABLE_LISTS", "WAIT_MAX_S", "AgentSettings", "ConnectorSettings", "EngineSettings", "FleetSettings",
    "MooncakeSettings", "RedisSettings", "RouterSettings", "SettingInfo", "SimEngineSettings", "StoreSettings",
    "WatchdogSettings", "YuanrongSettings", "default_runtime_dir", "load", "load_stores", "read_toml", "rows",
    "setting",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """``[agent]``: the node's store process."""

    socket: str = setting("", "Unix socket to listen on; empty: agent.sock in the runtime directory.", unit="path")
    arena: str = setting("", "File that backs the arena; empty: /dev/shm/kveik-UID.arena.", unit="path")
    arena_bytes: int = setting(0, "Size of the DRAM tier; 0: a quarter of the free memory.", unit="bytes", minimum=0)
    slab_bytes: int = setting(
        0,
        "Unit in which the arena is given to block sizes; 0: about a 32nd of the arena, 16 MiB to 1 GiB.",
        unit="bytes",
        minimum=0,
    )
    huge_pages: bool = setting(True, "Ask the kernel for huge pages in the arena; it may refuse.")
    tiers: str = setting(
        "", "Order of the tiers below the arena, nearest first; empty: mooncake,yuanrong,redis,filesystem."
    )
    filesystem: str = setting("", "Folder of the filesystem tier, local or shared; empty: no such tier.", unit="path")
    filesystem_bytes: int = setting(
        0, "Size limit of the filesystem tier; 0: no limit but free space.", unit="bytes", minimum=0
    )
    filesystem_reserve_bytes: int = setting(
        1 << 30, "Free space that the filesystem tier leaves to others.", unit="bytes", minimum=0
    )
    filesystem_fsync: bool = setting(
        False, "Force each block to disk before it counts as stored; survives power loss, costs time."
    )
    filesystem_threads: int = setting(
        0,
        "Threads that read the filesystem tier; 0: 4 on a disk of this machine, 16 on a network file system.",
        minimum=0,
        maximum=256,
    )
    tier_deadline_s: float = setting(
        5.0,
        "Longest wait for one transfer of a lower tier, which is then a failure, and for its opening at start.",
        unit="s",
        minimum=0.01,
        maximum=WAIT_MAX_S,
    )
    cascade_queue_bytes: int = setting(
        1 << 30, "Blocks waiting to be written to lower tiers; more are not written.", unit="bytes", minimum=0
    )
    cascade_bytes_per_s: int = setting(
        0, "Most that is written to each lower tier; 0: as fast as it goes.", unit="bytes/s", minimum=0
    )
    funnel_requests: int = setting(
        2048,
        "Requests of all engines of the node of which is kept what became of their hits: up to 3 KiB each; 0: none.",
        unit="requests",
        minimum=0,
        maximum=65536,
    )
    admission: str = setting(
        "all",
        "Which blocks go down to lower tiers: all of them, or only those that are computed or asked for a second time; "
        "either way these go first.",
        choices=("all", "second_touch"),
    )
    breaker_failures: int = setting(3, "Failures in a row that leave a tier out.", minimum=1)
    breaker_open_s: float = setting(
        1.0, "First pause of a tier that is left out; doubles.", unit="s", minimum=0.01, maximum=WAIT_MAX_S
    )
    breaker_open_max_s: float = setting(30.0, "Longest such pause.", unit="s", minimum=0.01, maximum=WAIT_MAX_S)
    probe_period_s: float = setting(
        15.0,
        "How often a small known block is put into each lower tier and read back, and the other nodes' blocks are "
        "looked for; 0: never.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    fleet: str = setting(
        "", "Name of the fleet; nodes of one fleet look for each other in shared tiers. kveik up gives it."
    )
    node: str = setting("", "This node's name there; empty: one of its own, which nobody looks for. kveik up gives it.")
    nodes: str = setting(
        "", "All nodes of the fleet that have an agent, with commas; empty: only this one. kveik up gives them."
    )
    metrics_port: int = setting(
        0, "Port on loopback for Prometheus metrics; 0: none.", unit="port", minimum=0, maximum=65535
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectorSettings:
    """``[connector]``: inside the engine; keys of ``kv_connector_extra_config``."""

    socket: str = setting("", "Socket of the agent; empty: agent.sock in the runtime directory.", unit="path")
    lookup_deadline_s: float = setting(
        0.05, "Longest wait for a lookup; then the request computes.", unit="s", minimum=0.001, maximum=10.0
    )
    load_deadline_s: float = setting(
        0.0,
        "Longest wait for a load; 0: what computing these tokens would take, as measured.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    load_deadline_max_s: float = setting(
        30.0, "Upper bound of the measured load deadline.", unit="s", minimum=0.05, maximum=600.0
    )
    load_choice: str = setting(
        "measured",
        "How much of a hit is loaded: what is faster than computing by what was measured, or always all of it.",
        choices=("measured", "always"),
    )
    save: bool = setting(True, "Save new blocks; false: only read what others saved.")
    save_decoded: bool = setting(True, "Save blocks of generated text too: next turns and preempted requests hit.")
    save_deadline_s: float = setting(
        2.0,
        "Longest wait of one save for the agent; then it is dropped.",
        unit="s",
        minimum=0.01,
        maximum=WAIT_MAX_S,
    )
    save_queue_blocks: int = setting(
        512, "Blocks of the engine that may wait for being saved; more are not saved.", unit="blocks", minimum=1
    )
    min_hit_tokens: int = setting(
        1, "Fewer tokens than this beyond the engine's own hit are not loaded.", unit="tokens", minimum=1
    )
    whole_prompt_hits: bool = setting(
        True,
        "Load a prompt that ends with a block to its end, so that only its last token is computed; "
        "false: compute its last block, as after a hit in the engine's own cache.",
    )
    batch_bytes: int = setting(
        32 << 20, "Bytes that one step of a load or save handles; steps overlap.", unit="bytes", minimum=1
    )
    load_rest_s: float = setting(
        0.002,
        "How long the engine's scheduler rests between two looks while all that it has to do is wait for loads; a "
        "request that comes then waits as long. 0: it looks a thousand times a second, on cores that loads may need.",
        unit="s",
        minimum=0.0,
        maximum=0.1,
    )
    funnel_requests: int = setting(
        512,
        "Requests of which each engine keeps what became of their hits, for kveik explain request; 0: none.",
        unit="requests",
        minimum=0,
        maximum=65536,
    )
    read_back_every: int = setting(
        0, "Compare every N-th loaded block with what lies in the engine's memory; 0: never.", minimum=0
    )
    weights_digest: str = setting(
        "full",
        "How the weights are identified: every byte (cached by file identity) or samples of each file.",
        choices=("full", "sampled"),
    )
    strict: bool = setting(
        False, "Refuse to start the engine where the cache cannot be used safely, instead of serving without it."
    )
    plant_fault: str = setting(
        "",
        "FOR TESTS ONLY: damage saved blocks under a valid checksum, to see whether verify notices.",
        choices=("", "swap_layers", "shift_block"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSettings:
    """``[router]``: the one address that clients know."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8100, "Port to listen on; 0: any free one.", unit="port", minimum=0, maximum=65535)
    connect_timeout_s: float = setting(
        1.0, "Longest wait for a connection to an engine.", unit="s", minimum=0.01, maximum=60.0
    )
    first_byte_s: float = setting(
        3.0,
        "An engine that gave no byte for so long, and for as long as computing the prompt takes, is looked at: "
        "if its counters stand still, the request goes to another engine.",
        unit="s",
        minimum=0.1,
        maximum=WAIT_MAX_S,
    )
    first_byte_max_s: float = setting(
        600.0,
        "Longest wait for the first byte of an answer, whatever the engine does.",
        unit="s",
        minimum=1.0,
        maximum=WAIT_MAX_S,
    )
    slow_prefill_tokens_s: float = setting(
        150.0,
        "Prompt tokens a second that an engine computes at least; longer prompts are given more time.",
        unit="tokens/s",
        minimum=1.0,
    )
    stream_idle_s: float = setting(
        60.0,
        "Longest pause within a stream; then it ends with an error event.",
        unit="s",
        minimum=0.5,
        maximum=WAIT_MAX_S,
    )
    resume_streams: bool = setting(
        False,
        "Let another engine go on with a stream of plain text (greedy or seeded) whose engine was lost.",
    )
    comment_after_s: float = setting(
        15.0,
        "Send a comment line into a stream that has not begun after so long, so that no proxy cuts it; 0: never.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    engine_idle_s: float = setting(
        4.0,
        "Use a connection to an engine again within so long; must be less than the engine's own limit (vLLM: 5 s).",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    attempts_max: int = setting(
        3, "Engines that one request is sent to at most, one after another.", unit="engines", minimum=1
    )
    retry_share: float = setting(
        0.2,
        "Retries as a share of all requests, above a small reserve; more are not made.",
        unit="share",
        minimum=0.0,
        maximum=10.0,
    )
    engine_wait_s: float = setting(
        5.0,
        "How long a request waits for an engine when none is there; then 503.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    breaker_failures: int = setting(3, "Failures in a row after which an engine gets no more requests.", minimum=1)
    breaker_open_s: float = setting(
        0.5, "Pause before an engine without requests is tried again, by a request of the router's own.", unit="s",
        minimum=0.05, maximum=WAIT_MAX_S,
    )  # fmt: skip
    breaker_open_max_s: float = setting(
        10.0,
        "Upper bound of that pause, which doubles with each trial that fails.",
        unit="s",
        minimum=0.05,
        maximum=WAIT_MAX_S,
    )
    slow_start_s: float = setting(
        5.0,
        "Time in which a returned engine's share of the load grows to a full one.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    policy: str = setting(
        "cache-aware",
        "How an engine is chosen: by the expected time to the first token, by load alone, in turn, "
        "or by a hash of the session or of the prompt's beginning.",
        choices=("cache-aware", "least-load", "round-robin", "session", "prefix-hash"),
    )
    session_header: str = setting(
        "x-session-id", "Header that names a request's session, for the policy that goes by it."
    )
    prefix_blocks_max: int = setting(
        1 << 20,
        "Most prefix blocks (256 bytes of prompt, 20 bytes of memory) that are remembered; the oldest go first. "
        "Rounded down to a power of two.",
        unit="blocks",
        minimum=1024,
        maximum=1 << 30,
    )
    prefix_expire_min: float = setting(
        30.0, "How long an engine is expected to hold a prefix that it was sent.", unit="min", minimum=0.01,
        maximum=43200.0,
    )  # fmt: skip
    exact_index: bool = setting(
        True,
        "Follow the KV events of engines that announce where they publish them, to know exactly what they hold.",
    )
    exact_blocks_max: int = setting(
        1 << 20,
        "Most KV blocks of one engine (50 to 110 bytes of memory each) that are followed; an engine that holds more is "
        "answered for approximately.",
        unit="blocks",
        minimum=1024,
        maximum=1 << 28,
    )
    models_folder: str = setting(
        "",
        "Folder with the models' folders (tokenizer and chat template). An engine's model is looked up there by its "
        "label model_path, or else by the model's name; empty: the label is a path.",
    )
    render_deadline_s: float = setting(
        0.1,
        "Longest that a request waits for its prompt to be tokenized; after that its engine is chosen without.",
        unit="s",
        minimum=0.001,
        maximum=10.0,
    )
    prefix_file: str = setting(
        "",
        "Where remembered prefixes are saved, so that a router that restarts sends prompts where they were "
        "before; empty: prefixes beside the registry's file.",
        unit="path",
    )
    prefix_save_s: float = setting(
        10.0, "How often they are saved; 0: never.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    prefill_tokens_s: float = setting(
        8000.0, "Prompt tokens that an engine computes in a second, until its own rate is known.", unit="tokens/s",
        minimum=1.0, maximum=1e9,
    )  # fmt: skip
    load_tokens_s: float = setting(
        40000.0, "Tokens that an engine loads from the shared cache in a second.", unit="tokens/s",
        minimum=1.0, maximum=1e9,
    )  # fmt: skip
    in_flight_s: float = setting(
        0.01, "How much later a first token is expected for each request that the engine works on.", unit="s",
        minimum=0.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    probe_deadline_s: float = setting(
        15.0, "Longest wait for the answer to a request of the router's own.", unit="s", minimum=0.1, maximum=WAIT_MAX_S
    )
    quarantine_kills: int = setting(
        2, "Engines that may die while they run one request; then it is refused until it is released; 0: no limit.",
        unit="engines", minimum=0,
    )  # fmt: skip
    head_bytes_max: int = setting(65536, "Longest head of a request.", unit="bytes", minimum=1024)
    body_bytes_max: int = setting(64 << 20, "Longest body of a request.", unit="bytes", minimum=1024)
    head_timeout_s: float = setting(
        10.0, "Longest wait for a whole head of a request.", unit="s", minimum=0.1, maximum=WAIT_MAX_S
    )
    body_timeout_s: float = setting(
        30.0,
        "Longest wait for a whole body, beyond one second for each 10,000 bytes.",
        unit="s",
        minimum=0.1,
        maximum=WAIT_MAX_S,
    )
    client_idle_s: float = setting(
        120.0,
        "How long a client's connection is kept without a request, or while it takes nothing of its answer.",
        unit="s",
        minimum=0.1,
        maximum=WAIT_MAX_S,
    )
    drain_s: float = setting(
        30.0, "At the end: how long requests under way may go on.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    registry: str = setting(
        "",
        "Where engines are registered: etcd://HOST:PORT[,HOST:PORT][/PREFIX], which several routers share; "
        "empty: a file of this router.",
        unit="url",
    )
    registry_file: str = setting(
        "", "File of the registry, with etcd its copy; empty: fleet.json in the runtime directory.", unit="path"
    )
    registry_deadline_s: float = setting(
        2.0, "Longest wait for one answer of etcd.", unit="s", minimum=0.05, maximum=60.0
    )
    admission_token_file: str = setting(
        "",
        "File with the token that engines and operators show; empty: KVEIK_ADMISSION_TOKEN, "
        "or none, and then only loopback may register.",
        unit="path",
    )
    engines_poll_s: float = setting(
        1.0,
        "How often the list of engines in the configuration file is looked at.",
        unit="s",
        minimum=0.05,
        maximum=60.0,
    )
    lost_kept_s: float = setting(
        600.0, "How long an engine whose lease ended is still shown.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    hold_kept_hours: float = setting(
        24.0,
        "How long an engine that is draining or isolated stays so after its lease ended.",
        unit="hours",
        minimum=0.0,
        maximum=8_760.0,
    )
    keys_file: str = setting(
        "",
        "File of API keys, as `kveik key` writes it; followed while the router runs. Empty: no key is asked for.",
        unit="path",
    )
    tenant_isolation: bool = setting(
        False,
        "Give each tenant cached prompts of its own: the router sets vLLM's cache_salt, a client's own only divides "
        "its tenant's share further.",
    )
    pass_authorization: bool = setting(
        False, "Pass the client's Authorization header on to engines; false: engines never see a client's key."
    )
    concurrent_max: int = setting(
        0, "Requests that run at once, of all clients; 0: no limit.", unit="requests", minimum=0
    )
    key_concurrent_max: int = setting(
        0, "Requests that run at once for a key that sets no limit of its own; 0: no limit.", unit="requests", minimum=0
    )
    queue_max: int = setting(
        1000,
        "Requests that may wait for a place; with more, the key with most of them is refused.",
        unit="requests",
        minimum=0,
    )
    queue_timeout_s: float = setting(
        30.0, "Longest wait for a place, then 503 with Retry-After.", unit="s", minimum=0.01, maximum=WAIT_MAX_S
    )
    usage_file: str = setting(
        "", "SQLite file in which usage is counted by key and model; empty: since the start only.", unit="path"
    )
    funnel_requests: int = setting(
        512, "Requests of which is kept where they went, for kveik explain request; 0: none.",
        unit="requests", minimum=0, maximum=65536,
    )  # fmt: skip
    explain_prompts: int = setting(
        256, "Prompts of a model of which hashes are kept, for kveik explain prefixes; 0: none.", unit="prompts",
        minimum=0, maximum=65536,
    )  # fmt: skip
    explain_contents: bool = setting(
        False, "Let kveik explain prefixes show a little of the text at which prompts began to differ."
    )
    access_log: str = setting(
        "", "Where one JSON line a request goes: a path, - for standard error; empty: nowhere.", unit="path"
    )
    telemetry_flush_s: float = setting(
        1.0,
        "How often access lines and usage are written; what is younger is lost if the router is killed.",
        unit="s",
        minimum=0.05,
        maximum=60.0,
    )
    traces_endpoint: str = setting(
        "",
        "OTLP/HTTP address that gets one span a request (needs the extra `otel`); empty: trace context is only "
        "passed on.",
        unit="url",
    )
    traces_ratio: float = setting(
        1.0,
        "Share of the requests without trace context of their own that get a span.",
        unit="share",
        minimum=0.0,
        maximum=1.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SimEngineSettings:
    """``[sim_engine]``: an engine that computes nothing, for load and fault tests."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0: a free one.", unit="port", minimum=0, maximum=65535)
    control_port: int = setting(
        0,
        "Second port, on loopback, that serves the same and that faults leave alone; 0: none.",
        unit="port",
        minimum=0,
        maximum=65535,
    )
    model: str = setting("simulated", "Name of the model that it pretends to serve.")
    api_key: str = setting("", "Key that requests to /v1 must bring; empty: none.")
    tokenizer: str = setting(
        "",
        "Folder with a model's tokenizer and chat template for prompts; empty: its own, four bytes a token.",
        unit="path",
    )
    max_model_tokens: int = setting(
        32768, "Longest prompt and answer together.", unit="tokens", minimum=2, maximum=1 << 24
    )
    block_tokens: int = setting(16, "Block size of the prefix cache.", unit="tokens", minimum=1, maximum=1 << 16)
    cache_blocks: int = setting(8192, "Size of the prefix cache.", unit="blocks", minimum=1)
    prefill_tokens_s: float = setting(
        0.0, "Prompt tokens computed in a second, one prompt after the other; 0: no time.", unit="tokens/s", minimum=0.0
    )
    decode_s: float = setting(
        0.0,
        "Time of each token of an answer after the first; 0: none.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    capacity: int = setting(256, "Requests that run at a time; more wait.", unit="requests", minimum=1)
    answer_tokens: int = setting(
        128, "Length of answers that neither the request nor the model's limit cuts.", unit="tokens", minimum=1
    )
    early_headers: bool = setting(
        True, "Send the headers of a stream at once, as vLLM does; false: with the first token."
    )
    keep_alive_s: float = setting(
        5.0, "How long an idle connection stays open, as uvicorn's default.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    drain_s: float = setting(
        0.0, "How long running requests may go on after SIGTERM.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    events: str = setting("", "ZMQ endpoint for KV events, such as tcp://127.0.0.1:5557; empty: none.")
    events_replay: str = setting("", "ZMQ endpoint that replays KV events; empty: none.")
    events_topic: str = setting("", "Topic of the KV events.")
    events_short_hashes: bool = setting(True, "Write block hashes into events as 64-bit numbers, as vLLM's default.")
    hash_algorithm: str = setting("sha256", "How events hash blocks.", choices=("sha256", "sha256_cbor"))
    hash_seed: str = setting("vllm-none-hash", "What the hash before the first block comes from, as PYTHONHASHSEED.")
    group_tokens: int = setting(
        64, "Prompts that begin with the same so many tokens count as one prefix group.", unit="tokens", minimum=1
    )


SECTIONS: Mapping[str, type] = {
    "fleet": FleetSettings,
    "engine": EngineSettings,
    "agent": AgentSettings,
    "mooncake": MooncakeSettings,
    "yuanrong": YuanrongSettings,
    "redis": RedisSettings,
    "connector": ConnectorSettings,
    "router": RouterSettings,
    "watchdog": WatchdogSettings,
    "sim_engine": SimEngineSettings,
}
#: Lists of tables in the same file that are no settings, and who reads them: ``[[engines]]``, kveik.fleet.static_list;
#: ``[[launch]]`` and ``[[nodes]]``, kveik.launch.fleet_spec.
TABLE_LISTS = ("engines", "launch", "nodes")
_Section = TypeVar("_Section")


def rows(section: str) -> Iterator[SettingInfo]:
    """The rows of one section, in order."""
    cls = SECTIONS[section]
    kinds = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        default: Any = field.default  # every row has one, since `setting` demands it
        yield SettingInfo(section, field.name, kinds[field.name], default=default, **field.metadata)


def load(
    cls: type[_Section],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> _Section:
    """The settings of one section from file, environment and what the caller gives.

    Raises :class:`ConfigError` for an unknown name, a wrong type or a value out of range; the
    message names the setting, the value, where it came from and what was expected.
    """
    section = next(name for name, known in SECTIONS.items() if known is cls)
    table = {row.name: row for row in rows(section)}
    values: dict[str, Any] = {}
    for name, value in _from_file(file, section).items():
        values[name] = checked(table, name, value, f"{file} [{section}]")
    for row in table.values():
        if environ is not None and row.env in environ:
            values[row.name] = checked(table, row.name, environ[row.env], row.env)
    for name, value in (given or {}).items():
        values[name] = checked(table, name, value, section)
    return cls(**values)


def load_stores(*, file: Path | None = None, environ: Mapping[str, str] | None = None) -> StoreSettings:
    """The sections of all distributed stores; errors as :func:`load`."""
    return StoreSettings(
        mooncake=load(MooncakeSettings, file=file, environ=environ),
        yuanrong=load(YuanrongSettings, file=file, environ=environ),
        redis=load(RedisSettings, file=file, environ=environ),
    )


def read_toml(file: Path) -> dict[str, Any]:
    """A whole configuration file. Raises :class:`ConfigError` if it cannot be read or is no TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _from_file(file: Path | None, section: str) -> Mapping[str, Any]:
    if file is None:
        return {}
    document = read_toml(file)
    unknown = sorted(document.keys() - SECTIONS.keys() - set(TABLE_LISTS))
    if unknown:
        raise ConfigError(f"{file}: unknown section {unknown[0]!r}; known are {', '.join(SECTIONS)}")
    values = document.get(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: {section} must be a table, written as [{section}]")
    return values
