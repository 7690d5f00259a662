"""Kubernetes manifests for one node of a fleet. Pure.

All pods use the machine's network and shared memory, so that commands, ports and the arena are those of `kveik up`,
and engines of one node share one cache; each node's pods are bound to that node by its name. No liveness probe asks
engines: a server whose core hangs answers ``/health`` all the same, and one that compiles does not. The watchdog
judges engines and deletes the pod of a sick one.
"""

import math
from typing import Any

from kveik.launch.described import LEAVE_S, MARGIN_S, DescribedNode, command_of, drain_wait_s, health_url, plain
from kveik.launch.in_container import (
    CONFIG_FOLDER,
    PYTHON,
    image_of,
    in_container,
    mounts_of,
    variables_of,
)
from kveik.launch.yaml_text import Block, yaml_text
from kveik.supervise.part import Part

_GIB = 1 << 30
_RESOURCE = {"cuda": "nvidia.com/gpu", "ascend": "huawei.com/Ascend910"}
_HOSTNAME = "kubernetes.io/hostname"


def kubernetes_text(node: DescribedNode) -> str:
    """All manifests, for ``kubectl apply -f -``."""
    documents = [_workload(node, part) for part in node.parts]
    if node.of_kind("router"):
        documents.append(_service(node))
    if node.of_kind("watchdog"):
        documents += [_watchdog_config(node), *_rights(node)]
    return _HEAD + "".join(f"---\n{yaml_text(document)}" for document in documents)


_HEAD = """\
# Manifests by `kveik up --print kubernetes`. Set the images (the engines' has vLLM and Kveik, with one Python) and the
# name of the machine in nodeSelector. Paths are those of the machine.
"""


def _workload(node: DescribedNode, part: Part) -> dict[str, Any]:
    name, labels = _name(node, part.name), _labels(node, part)
    pod: dict[str, Any] = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": {_HOSTNAME: node.node},
        "terminationGracePeriodSeconds": math.ceil(_grace_s(node, part)),
        "containers": [_container(node, part)],
        "volumes": _volumes(node, part),
    }
    if part.kind == "engine":
        pod["hostIPC"] = True
        # Sidecars end after the engine: it is out of the routers by its preStop, and withdrawn when it has ended.
        if sidecars := [_sidecar(node, number, words) for number, words in enumerate(node.registrations(part), 1)]:
            pod["initContainers"] = sidecars
    if part.kind == "watchdog":
        pod["serviceAccountName"] = name
        pod["hostPID"] = True
    spec = {
        "replicas": 1,
        # Ports, devices and arena are the machine's: two of them cannot run side by side.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _container(node: DescribedNode, part: Part) -> dict[str, Any]:
    command = command_of(part)
    if part.kind == "watchdog":
        command = [*node.kveik, "watchdog", "--config", f"{CONFIG_FOLDER}/watchdog.toml", "--node", node.node]
    container: dict[str, Any] = {
        "name": part.kind,
        "image": image_of(node, part.kind),
        "command": _escaped(in_container(node, command)),
        "workingDir": node.folder,
        "env": [{"name": name, "value": value.replace("$(", "$$(")} for name, value in variables_of(part).items()],
        "volumeMounts": _volume_mounts(node, part),
    }
    if part.kind == "engine":
        container["resources"] = _resources(node, part)
        container["lifecycle"] = {"preStop": {"exec": {"command": in_container(node, _drain(node, part))}}}
    if part.kind == "router":
        # Until it is out of the service's endpoints it goes on taking requests.
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(math.ceil(LEAVE_S))]}}}
    container.update(_probes(part))
    return {key: value for key, value in container.items() if value not in ({}, [])}


def _probes(part: Part) -> dict[str, Any]:
    url = health_url(part)
    if url:
        host, _, path = url.removeprefix("http://").partition("/")
        address, _, port = host.rpartition(":")
        ask: dict[str, Any] = {"httpGet": {"host": address.strip("[]"), "port": int(port), "path": f"/{path}"}}
    elif part.readiness.kind == "socket":
        ask = {"exec": {"command": [PYTHON, "-c", _connects(part.readiness.target)]}}
    else:
        return {}
    probe = {**ask, "periodSeconds": 5, "timeoutSeconds": 5}
    ready = {**probe, "failureThreshold": 3}
    if part.kind == "router":  # it is there before any engine is, but answers no request
        ready["httpGet"] = {**ask["httpGet"], "path": "/ready"}
    return {"startupProbe": {**probe, "failureThreshold": max(3, math.ceil(part.start_s / 5))}, "readinessProbe": ready}


def _connects(path: str) -> str:
    return f"import socket as s; s.socket(s.AF_UNIX).connect({path!r})"


def _drain(node: DescribedNode, part: Part) -> list[str]:
    wait = f"--wait={drain_wait_s(node):g}"
    return [*node.kveik, "drain", part.name, f"--router={node.router_urls[0]}", wait, "--reason=its pod ends"]


def _grace_s(node: DescribedNode, part: Part) -> float:
    """From the order to end to SIGKILL, the preStop included."""
    if part.kind == "engine":
        return drain_wait_s(node) + part.stop_grace_s + MARGIN_S
    if part.kind == "router":
        return LEAVE_S + max(part.stop_grace_s, node.router.drain_s + MARGIN_S)
    return part.stop_grace_s + MARGIN_S


def _sidecar(node: DescribedNode, number: int, command: list[str]) -> dict[str, Any]:
    return {
        "name": "register" if number == 1 else f"register-{number}",
        "image": image_of(node, "router"),
        "restartPolicy": "Always",
        "command": _escaped(in_container(node, command)),
        "workingDir": node.folder,
        "volumeMounts": [{"name": "config", "mountPath": node.folder, "readOnly": True}],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }


def _resources(node: DescribedNode, part: Part) -> dict[str, Any]:
    """Devices as limits, which the device plugin gives; on CPU, cores and the memory that is needed at least."""
    if resource := _RESOURCE.get(node.device):
        return {"limits": {resource: len(node.devices(part)) or 1}}
    requests: dict[str, Any] = {"memory": f"{math.ceil((node.kv_bytes(part) + 2 * _GIB) / (1 << 20))}Mi"}
    if cores := node.core_count(part):
        requests["cpu"] = cores
    return {"requests": requests}


def _volumes(node: DescribedNode, part: Part) -> list[dict[str, Any]]:
    volumes = [
        {"name": _volume(node, number, outside), "hostPath": {"path": outside}}
        for number, (outside, _, _) in enumerate(mounts_of(node, part))
    ]
    if part.kind == "watchdog":
        volumes.append({"name": "watchdog", "configMap": {"name": _name(node, "watchdog")}})
    return volumes


def _volume_mounts(node: DescribedNode, part: Part) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": _volume(node, number, outside), "mountPath": inside, **({"readOnly": True} if fixed else {})}
        for number, (outside, inside, fixed) in enumerate(mounts_of(node, part))
    ]
    if part.kind == "watchdog":
        mounts.append({"name": "watchdog", "mountPath": CONFIG_FOLDER, "readOnly": True})
    return mounts


def _volume(node: DescribedNode, number: int, path: str) -> str:
    if path == node.folder:
        return "config"
    return {node.state_folder: "state", "/dev/shm": "shm"}.get(path, f"path-{number}")  # noqa: S108 (compared)


def _service(node: DescribedNode) -> dict[str, Any]:
    router = node.of_kind("router")[0]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"kveik-{node.fleet}"},
        "spec": {
            "selector": {"kveik/fleet": node.fleet, "kveik/kind": router.kind},
            "ports": [{"name": "http", "port": node.router.port, "targetPort": node.router.port}],
        },
    }


def _watchdog_config(node: DescribedNode) -> dict[str, Any]:
    restarts = {part.name: _restart_command(node, part) for part in node.of_kind("engine")}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _name(node, "watchdog")},
        "data": {"watchdog.toml": Block(node.watchdog_file(restarts))},
    }


def _restart_command(node: DescribedNode, part: Part) -> list[str]:
    """Kill at once: a sick engine has nothing that it could end well. Its Deployment makes another pod."""
    selector = f"kveik/fleet={node.fleet},kveik/group={plain(node.group(part))}"
    return ["kubectl", "delete", "pod", f"--selector={selector}", "--grace-period=1", "--wait=true"]


def _rights(node: DescribedNode) -> list[dict[str, Any]]:
    """The watchdog may delete pods of its namespace, and nothing else."""
    name = _name(node, node.of_kind("watchdog")[0].name)
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]}
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]


def _name(node: DescribedNode, part: str) -> str:
    return f"kveik-{node.fleet}-{node.plain_node}-{plain(part)}"


def _labels(node: DescribedNode, part: Part) -> dict[str, str]:
    labels = {"kveik/fleet": node.fleet, "kveik/kind": part.kind}
    if part.kind == "engine":  # over all nodes: a group is restarted as a whole
        labels["kveik/group"] = plain(node.group(part))
    return {**labels, "kveik/node": node.plain_node, "kveik/part": plain(part.name)}


def _escaped(words: list[str]) -> list[str]:
    """``$(NAME)`` would be replaced by a variable."""
    return [word.replace("$(", "$$(") for word in words]
