"""Rows of the settings table for a fleet that Kveik starts and watches: ``[fleet]``, ``[engine]``, ``[watchdog]``."""

from dataclasses import dataclass

from kveik.setting import WAIT_MAX_S, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSettings:
    """``[fleet]``: the engines, agent, router and watchdog that ``kveik up`` runs, and how it treats them."""

    name: str = setting("kveik", "Name of the fleet, for folders, units and labels.")
    node: str = setting("", "Which of the [[nodes]] this machine is; empty: the only one.")
    state_folder: str = setting(
        "",
        "Folder for logs, events, evidence and what is remembered between starts; empty: "
        "$XDG_STATE_HOME/kveik/NAME or ~/.local/state/kveik/NAME.",
        unit="path",
    )
    engines: int = setting(1, "Engines on this node, where no [[launch]] tables name them.", unit="engines", minimum=0)
    first_port: int = setting(
        8001, "Port of the first such engine; the others follow.", unit="port", minimum=1, maximum=65535
    )
    ready_min: int = setting(
        1, "Engines that stay in the pool while others are drained or rolled.", unit="engines", minimum=0
    )
    drain_s: float = setting(
        120.0,
        "How long requests under way may go on at an engine that is drained, rolled or stopped.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    restart_pause_s: float = setting(
        0.5, "First pause before a part that ended is started again; doubles.", unit="s", minimum=0.01, maximum=60.0
    )
    restart_pause_max_s: float = setting(30.0, "Longest such pause.", unit="s", minimum=0.01, maximum=WAIT_MAX_S)
    hung_s: float = setting(
        120.0,
        "How long agent, router or watchdog may give no sign of life before they are ended and started again; 0: for "
        "ever.",
        unit="s",
        minimum=0.0,
        maximum=WAIT_MAX_S,
    )
    log_bytes_max: int = setting(
        64 << 20, "Size at which a log file is set aside; one older file is kept.", unit="bytes", minimum=1 << 16
    )
    events_bytes_max: int = setting(4 << 20, "Size limit of the file of events.", unit="bytes", minimum=1 << 16)
    webhook: str = setting("", "Address to which each event is posted as JSON; empty: none.", unit="url")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """``[engine]``: what the engines that ``kveik up`` starts have in common; a [[launch]] table may differ."""

    python: str = setting("", "A Python that has vLLM and Kveik; empty: the one that runs kveik.", unit="path")
    model: str = setting("", "Folder of the model.", unit="path")
    served_name: str = setting("", "Name under which the model is served; empty: the folder's name.")
    host: str = setting("127.0.0.1", "Address that engines listen on.")
    dtype: str = setting("auto", "Number format of weights and activations, as vLLM's --dtype.")
    max_model_tokens: int = setting(0, "Longest prompt and answer; 0: what the model allows.", unit="tokens", minimum=0)
    kv_cache_bytes: int = setting(0, "Size of an engine's own KV cache; 0: vLLM's choice.", unit="bytes", minimum=0)
    shared_cache: bool = setting(True, "Load Kveik's connector, so that engines share their KV cache.")
    kv_events: bool = setting(True, "Publish KV events, so that the router knows exactly what an engine holds.")
    mode: str = setting(
        "auto",
        "How far the model is compiled: as vLLM chooses, or without (eager).",
        choices=("auto", "eager"),
    )
    proof_routes: bool = setting(
        True,
        "Serve vLLM's development routes on engines that only this machine reaches: `kveik verify` and `kveik roll` "
        "empty caches by them.",
    )
    simulated: bool = setting(
        False, "Start simulated engines, which compute nothing and say so everywhere, to try a fleet out."
    )
    fall_back: bool = setting(True, "Start an engine in the next simpler mode if a compiled or graph mode fails.")
    arguments: str = setting("", "Further arguments for vLLM, as in a shell.")
    environment: str = setting("", "Further environment variables, as NAME=VALUE NAME=VALUE.")
    start_s: float = setting(
        1800.0, "Longest start of an engine, from process to first answer.", unit="s", minimum=1.0, maximum=WAIT_MAX_S
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogSettings:
    """``[watchdog]``: probes the node's engines and restarts the right one once."""

    routers: str = setting(
        "", "Routers that engines are announced at, separated by commas; empty: the one of this configuration.",
        unit="url",
    )  # fmt: skip
    probe_period_s: float = setting(
        5.0, "How often an engine is asked for a real inference.", unit="s", minimum=0.1, maximum=WAIT_MAX_S
    )
    probe_deadline_s: float = setting(
        5.0, "A probe without an answer for so long is late.", unit="s", minimum=0.1, maximum=WAIT_MAX_S
    )
    hung_periods: int = setting(
        2,
        "Probe periods in which nothing moves, neither tokens nor the engine's processors, before an engine is hung.",
        unit="periods", minimum=1,
    )  # fmt: skip
    hung_computing_s: float = setting(
        300.0,
        "An engine whose processors work while no token moves (it compiles, or turns in circles) is hung then.",
        unit="s", minimum=1.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    hung_unseen_s: float = setting(
        60.0,
        "An engine on another machine, whose processors cannot be seen, is hung if no token moves for so long.",
        unit="s", minimum=1.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    restart_grace_s: float = setting(
        30.0,
        "How long a hung engine, already without requests, may come back by itself before it is restarted.",
        unit="s", minimum=0.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    good_probes: int = setting(
        3, "Good probes in a row before an engine gets requests again.", unit="probes", minimum=1
    )
    restart: bool = setting(True, "Restart engines; false: only isolate and report.")
    restarts_max: int = setting(
        5, "Restarts of one engine within restarts_window_s; then it stays isolated until a person readmits it.",
        unit="restarts", minimum=1,
    )  # fmt: skip
    restarts_window_s: float = setting(
        3600.0, "Time in which restarts are counted.", unit="s", minimum=1.0, maximum=WAIT_MAX_S
    )
    restart_pause_s: float = setting(
        1.0, "Pause before a second restart in a row; doubles.", unit="s", minimum=0.0, maximum=WAIT_MAX_S
    )
    restart_pause_max_s: float = setting(300.0, "Longest such pause.", unit="s", minimum=0.0, maximum=WAIT_MAX_S)
    restart_command_s: float = setting(
        120.0, "Longest run of a restart command; then it is ended and counts as failed.", unit="s", minimum=1.0,
        maximum=WAIT_MAX_S,
    )  # fmt: skip
    warm_up_s: float = setting(
        120.0, "Longest wait for each answer of a warm-up, before an engine gets requests.", unit="s", minimum=0.1,
        maximum=WAIT_MAX_S,
    )  # fmt: skip
    lease_s: float = setting(
        600.0,
        "How long routers keep an engine without a word from the watchdog: a watchdog that dies loses none.",
        unit="s", minimum=1.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    planned_restart_days: float = setting(
        0.0, "An engine whose memory will be used up in fewer days is restarted by a roll; 0: only warn.", unit="days",
        minimum=0.0,
    )  # fmt: skip
    report_period_s: float = setting(
        2.0, "How often the routers are told how the node is.", unit="s", minimum=0.1, maximum=60.0
    )
    checks_period_s: float = setting(
        600.0, "How often the doctor's checks of the machine are made for the fleet's other nodes to see; 0: never.",
        unit="s", minimum=0.0, maximum=WAIT_MAX_S,
    )  # fmt: skip
    evidence_max: int = setting(20, "Bundles of evidence that are kept; the oldest go.", unit="bundles", minimum=1)
