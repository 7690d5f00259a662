"""A node as a shell script: looks first, starts in order, waits for each process. Pure; clean by shellcheck.

Every value is quoted by this module, so that none can become code.
"""

import shlex
from collections.abc import Iterable

from kveik.profiles.docker_words import container_name, docker_options
from kveik.profiles.node import HERE, Node, Process
from kveik.profiles.wish import PLACEHOLDER

_FUNCTIONS = r"""
fail() { printf '%s\n' "$*" >&2; exit 1; }
say() { printf '[%5d s] %s\n' "$SECONDS" "$*"; }
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
answers() { curl --silent --fail --max-time 5 --output /dev/null "http://$1:$2$3"; }

# wait_for WHAT SECONDS ALIVE QUESTION...: until QUESTION succeeds; ends if ALIVE fails or the time is over.
wait_for() {
    local what="$1" until=$((SECONDS + $2)) alive="$3" told=$SECONDS
    shift 3
    until "$@"; do
        "$alive" "$what" || fail "$what ended before it was ready: see its log"
        ((SECONDS < until)) || fail "$what is not ready after its time: see its log"
        ((SECONDS < told + 30)) || { told=$SECONDS; say "waiting for $what"; }
        sleep 1
    done
    say "$what is ready"
}
"""
_IN_CONTAINER = r"""
runs() { [[ "$(docker inspect --format '{{.State.Running}}' "$1" 2>/dev/null)" == true ]]; }
"""
_IN_SHELL = r"""
pids=()
# Asked of what was started last.
runs() { kill -0 "${pids[-1]}" 2>/dev/null; }
trap '((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true' EXIT
"""


def shell_files(node: Node) -> dict[str, str]:
    """The node's files: ``start.sh``, ``stop.sh`` where there are containers, and what processes read."""
    files = {"start.sh": _start(node), **node.files}
    if node.in_containers:
        files["stop.sh"] = _stop(node)
    if node.dockerfile:
        files["Dockerfile"] = node.dockerfile
    return files


def _start(node: Node) -> str:
    parts = ["#!/usr/bin/env bash", *(f"# {line}" for line in node.head), "set -euo pipefail", _FUNCTIONS.strip("\n")]
    parts.append((_IN_CONTAINER if node.in_containers else _IN_SHELL).strip("\n"))
    if node.in_containers and (node.files or node.dockerfile):
        parts.append('here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"')
    parts += [
        "",
        "# Looked at before anything starts: docker would make an empty folder of a file that is not there.",
        *_looks(node),
    ]
    if node.built_image:
        image = shlex.quote(node.built_image)
        parts += [
            "",
            "# The image with what the tier needs, made once.",
            f"docker image inspect {image} >/dev/null 2>&1 ||",
        ]
        parts.append(f'    docker build --tag {image} "$here"')
    for process in node.processes:
        parts += ["", *_process(node, process)]
    if not node.in_containers:
        parts += ["", "# Ends with its last process, and ends the others then.", 'wait "${pids[-1]}"']
    return "\n".join(parts) + "\n"


def _stop(node: Node) -> str:
    lines = [
        "#!/usr/bin/env bash",
        "# Ends what start.sh started, last first. Containers and their logs go.",
        "set -uo pipefail",
        'end() { docker stop --time=60 "$1"; docker rm "$1"; }',
        *(f"end {container_name(process)}" for process in reversed(node.processes)),
    ]
    return "\n".join(lines) + "\n"


def _looks(node: Node) -> list[str]:
    lines = []
    if node.address.startswith(PLACEHOLDER):
        lines.append(f'fail "{node.address} is a placeholder: write this again with --address for each node"')
    elif node.interface:
        nic, address = shlex.quote(node.interface), shlex.quote(node.address)
        lines.append(f'[[ "$(ip -o addr show dev {nic})" == *" "{address}/* ]] ||')
        lines.append(f"    fail the interface {nic} does not own {address}, the address of this node")
    lines += _each("device", '[[ -c "$device" ]]', node.device_files, "$device is not there, or is no device")
    lines += _each("folder", '[[ -d "$folder" ]]', node.folders, "the folder $folder is not there")
    lines += _each("file", '[[ -f "$file" ]]', node.plain_files, "the file $file is not there, or is no file")
    return lines


def _each(name: str, holds: str, values: Iterable[str], otherwise: str) -> list[str]:
    words = [shlex.quote(value) for value in values]
    if not words:
        return []
    if len(words) == 1:
        return [f"{name}={words[0]}", f'{holds} || fail "{otherwise}"']
    body = [f'    {holds} || fail "{otherwise}"', "done"]
    return [f"for {name} in \\", *(f"    {word} \\" for word in words[:-1]), f"    {words[-1]}; do", *body]


def _process(node: Node, process: Process) -> list[str]:
    array = process.name.replace("-", "_")
    rest = [line for option in process.options for line in _option(*option)]
    lines = _array(array, [*(f"    {_word(word)}" for word in process.command), *rest])
    lines[:0] = _comment(f"{process.name}: {process.title}")
    if node.in_containers:
        lines += _in_container(node, process, array)
    else:
        # A variable of the machine would win over what is written here; so they are set for this process alone.
        settings = " ".join(f"{one.name}={shlex.quote(one.value)}" for one in process.variables)
        lines += [f"# {one.name}: {one.why}" for one in process.variables if one.why]
        lines += [f'{"env " + settings + " " if settings else ""}"${{{array}[@]}}" &', "pids+=($!)"]
    return [*lines, _wait(process, container_name(process) if node.in_containers else process.name)]


def _in_container(node: Node, process: Process, array: str) -> list[str]:
    why = {f"--env={one.name}={one.value}": one.why for one in process.variables}
    words: list[str] = []
    for word in docker_options(node, process):
        words += [f"    {line}" for line in _comment(why.get(word, ""))]
        words.append(f"    {_word(word)}")
    lines = _array(f"{array}_docker", words)
    first = process.container_words[: len(process.container_words) - len(process.words)]
    run = f'docker run --detach "${{{array}_docker[@]}}" {_word(process.image)}'
    run += "".join(f" {_word(word)}" for word in first)
    return [*lines, *_meant([run]), f'{run} "${{{array}[@]}}" >/dev/null']


def _array(name: str, lines: list[str]) -> list[str]:
    return [*_meant(lines), f"{name}=(", *lines, ")"]


def _meant(lines: Iterable[str]) -> list[str]:
    """Single quotes keep a dollar for the shell of a container, or from being anything but a letter of a name."""
    return (
        ["# shellcheck disable=SC2016 # not for this shell"]
        if any("'" in line and "$" in line for line in lines)
        else []
    )


def _wait(process: Process, name: str) -> str:
    ready = process.ready
    if ready.host == "unix":
        asked = f"test -S {_word(ready.path)}" if ready.path else "true"
    elif ready.path:
        asked = f"answers {_word(ready.host)} {ready.port} {_word(ready.path)}"
    else:
        asked = f"listens {_word(ready.host)} {ready.port}"
    return f"wait_for {_word(name)} {ready.within_s} runs {asked}"


def _option(name: str, value: str, why: str) -> list[str]:
    lines = [f"    {line}" for line in _comment(why)] if why else []
    return [*lines, f"    {_word(name)}{' ' + _word(value) if value else ''}"]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.splitlines()]


def _word(text: str) -> str:
    """A word for the shell; what begins at the written files begins with the folder of this script."""
    before, found, after = text.partition(HERE)
    if not found:
        return _quoted(text)
    return f'{_quoted(before) if before else ""}"$here"{_quoted(after)}'


def _quoted(text: str) -> str:
    """Quoted where it must be; also around commas, which shellcheck would take for a slip."""
    quoted = shlex.quote(text)
    return f"'{text}'" if "," in text and quoted == text else quoted
