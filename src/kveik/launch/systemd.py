"""systemd units for one node of a fleet: agent, engines with their registrations, router, watchdog, a target. Pure.

Who restarts what: agent, router and watchdog are brought back at once by systemd. An engine that ended is restarted by
the watchdog, which isolates it and saves evidence first; systemd does so later, for the case that there is none.
"""

import math
from collections.abc import Iterable

from kveik.launch.described import MARGIN_S, DescribedNode, command_of, health_url, title
from kveik.supervise.part import Part

UNIT_FOLDER = "/etc/systemd/system"


def systemd_files(node: DescribedNode) -> dict[str, str]:
    """Paths and texts of all files."""
    files = {f"{UNIT_FOLDER}/{_target(node)}": _target_unit(node)}
    for part in node.parts:
        files[f"{UNIT_FOLDER}/{unit_name(node, part.name)}"] = _part_unit(node, part)
        if part.kind == "engine":
            for number, command in enumerate(node.registrations(part)):
                name = _registration_name(part, number)
                files[f"{UNIT_FOLDER}/{unit_name(node, name)}"] = _registration_unit(node, part, command)
    if node.of_kind("watchdog"):
        files[_watchdog_file(node)] = node.watchdog_file(
            {part.name: _restart_command(node, part) for part in node.of_kind("engine")}
        )
        if node.user != "root":
            files[f"/etc/polkit-1/rules.d/50-kveik-{node.fleet}.rules"] = _may_restart(node)
    return files


def unit_name(node: DescribedNode, part: str) -> str:
    """The unit of a part."""
    return f"kveik-{node.fleet}-{part}.service"


def quoted(words: Iterable[str]) -> str:
    """A command line as systemd reads it: its quotes are no shell's, and ``%`` and ``$`` mean something to it."""
    return " ".join(_quoted(word.replace("%", "%%").replace("$", "$$")) for word in words)


def _quoted(word: str) -> str:
    if word and all(letter.isalnum() or letter in "-_./:=,@+%$" for letter in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _target(node: DescribedNode) -> str:
    return f"kveik-{node.fleet}.target"


def _target_unit(node: DescribedNode) -> str:
    names = [unit_name(node, part.name) for part in node.parts]
    return "\n".join(
        [
            "[Unit]",
            f"Description=Kveik fleet {node.fleet}, node {node.node}",
            f"Wants={' '.join(names)}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def _part_unit(node: DescribedNode, part: Part) -> str:
    command = command_of(part)
    if part.kind == "watchdog":
        command = [*node.kveik, "watchdog", "--config", _watchdog_file(node), "--node", node.node]
    lines = [
        "[Unit]",
        f"Description={title(node, part)}".replace("%", "%%"),
        f"PartOf={_target(node)}",
        f"After={' '.join(['network-online.target', *_before(node, part)])}",
        f"Wants={' '.join(['network-online.target', *_wanted(node, part)])}",
        *_limits(node, part),
        "",
        "[Service]",
        "Type=exec",
        f"User={node.user}",
        f"WorkingDirectory={node.folder.replace('%', '%%')}",
        *(f"Environment={_setting(name, value)}" for name, value in part.environment.items() if value is not None),
        *(f"UnsetEnvironment={name}" for name, value in part.environment.items() if value is None),
        f"ExecStart={quoted(command)}",
        *_readiness(node, part),
        f"TimeoutStartSec={math.ceil(part.start_s)}",
        *_restarts(node, part),
        "# The first process ends what it has; what is left after that is killed with all others.",
        "KillMode=mixed",
        f"TimeoutStopSec={math.ceil(_stop_s(node, part))}",
        "LimitNOFILE=1048576",
        "",
    ]
    return "\n".join(lines)


def _registration_unit(node: DescribedNode, part: Part, command: list[str]) -> str:
    engine = unit_name(node, part.name)
    return "\n".join(
        [
            "[Unit]",
            f"Description=Registration of {title(node, part)}".replace("%", "%%"),
            "# Ends before the engine does, and so takes it out of the routers before it stops answering.",
            f"PartOf={engine}",
            f"After={engine}",
            "",
            "[Service]",
            "Type=exec",
            f"User={node.user}",
            f"WorkingDirectory={node.folder.replace('%', '%%')}",
            f"ExecStart={quoted(command)}",
            "Restart=always",
            "RestartSec=1",
            f"TimeoutStopSec={math.ceil(MARGIN_S)}",
            "",
        ]
    )


def _before(node: DescribedNode, part: Part) -> list[str]:
    """What should run before it, if it starts with it. Engines and agent find each other whatever comes first."""
    return [unit_name(node, agent.name) for agent in node.of_kind("agent")] if part.kind == "engine" else []


def _wanted(node: DescribedNode, part: Part) -> list[str]:
    if part.kind != "engine":
        return []
    return [unit_name(node, _registration_name(part, number)) for number in range(len(node.registrations(part)))]


def _registration_name(part: Part, number: int) -> str:
    return f"register-{part.name}" + (f"-{number + 1}" if number else "")


def _limits(node: DescribedNode, part: Part) -> list[str]:
    if part.kind != "engine":
        return ["StartLimitIntervalSec=0"]
    settings = node.watchdog
    return [
        "# The watchdog's budget, and as much again for systemd: after that it stays down until a person starts it.",
        f"StartLimitIntervalSec={math.ceil(settings.restarts_window_s)}",
        f"StartLimitBurst={2 * settings.restarts_max}",
    ]


def _restarts(node: DescribedNode, part: Part) -> list[str]:
    if part.kind != "engine":
        return ["Restart=always", "RestartSec=1"]
    settings = node.watchdog
    later_s = 3 * settings.probe_period_s + settings.probe_deadline_s + MARGIN_S
    return [
        "# The watchdog restarts it sooner; this is for the case that there is none.",
        "Restart=on-failure",
        f"RestartSec={math.ceil(later_s)}",
    ]


def _readiness(node: DescribedNode, part: Part) -> list[str]:
    url = health_url(part)
    if url:
        asks = f"import urllib.request as r; r.urlopen('{url}', timeout=5)"
    elif part.readiness.kind == "socket":
        asks = f"import socket as s; s.socket(s.AF_UNIX).connect('{part.readiness.target}')"
    else:
        return []
    loop = 'until "$0" -c "$1" 2>/dev/null; do sleep 0.5; done'
    return [f"ExecStartPost={quoted(['/bin/sh', '-c', loop, node.kveik[0], asks])}"]


def _stop_s(node: DescribedNode, part: Part) -> float:
    return node.router.drain_s + MARGIN_S if part.kind == "router" else part.stop_grace_s


def _restart_command(node: DescribedNode, part: Part) -> list[str]:
    """Kill at once: a sick engine has nothing that it could end well."""
    units = [unit_name(node, one.name) for one in node.same_group(part)]
    return ["/bin/sh", "-c", 'systemctl kill --signal=SIGKILL "$@"; systemctl restart "$@"', "sh", *units]


def _watchdog_file(node: DescribedNode) -> str:
    return f"/etc/kveik/{node.fleet}-watchdog.toml"


def _may_restart(node: DescribedNode) -> str:
    return f"""\
// The watchdog runs as {node.user}, and may restart the units of this fleet and no others.
polkit.addRule(function(action, subject) {{
    if (action.id == "org.freedesktop.systemd1.manage-units" && subject.user == "{node.user}" &&
        action.lookup("unit").indexOf("kveik-{node.fleet}-") == 0) {{
        return polkit.Result.YES;
    }}
}});
"""


def _setting(name: str, value: str) -> str:
    return _quoted(f"{name}={value}".replace("%", "%%"))
