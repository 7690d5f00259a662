"""A fleet as files for systemd, Kubernetes and compose: the commands of `kveik up`, valid, and with timers in order."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kveik.config import SECTIONS, load, read_toml
from kveik.errors import ConfigError
from kveik.fleet.static_list import parse_list
from kveik.launch.fleet_spec import FleetSpec, read_fleet
from kveik.launch.parts import Here, describe_node, read_tables
from kveik.launch.printing import KINDS, printed, printed_file
from kveik.launch.systemd import quoted

FLEET = """
[fleet]
name = "Demo 1"
state_folder = "/var/lib/kveik"
drain_s = 100
[engine]
model = "/models/small $HOME 100%"
kv_cache_bytes = "2 GiB"
[agent]
filesystem = "/cache"
[router]
drain_s = 20
admission_token_file = "/etc/kveik/token"
"""
ENGINES = '[[launch]]\nname = "a"\ncores = "0-3"\ndevices = "0,1"\n[[launch]]\nname = "b"\ndevices = "2,3"\n'
NODES = '[[nodes]]\nname = "n0"\naddress = "10.0.0.1"\n[[nodes]]\nname = "n1"\naddress = "10.0.0.2"\n'
GROUP = '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 2\n[[launch]]\nname = "a-1"\nnode = "n1"\nhead = "a"\n'
PYTHON = "/opt/kveik/bin/python"


def here(device: str = "cpu") -> Here:
    return Here(device=device, cores=(0, 1, 2, 3), python=PYTHON, environ={"HOME": "/home/kveik"})


def fleet(folder: Path, more: str = ENGINES, node: str = "") -> FleetSpec:
    file = folder / "kveik.toml"
    file.write_text(FLEET + more)
    return read_fleet(file, {}, {"node": node})


def text_of(kind: str, spec: FleetSpec, device: str = "cpu", user: str = "kveik") -> str:
    assert spec.source is not None
    return printed(kind, spec, read_tables(spec.source, {}), here(device), user)


def files_of(spec: FleetSpec, user: str = "kveik") -> dict[str, str]:
    """The files by name, taken apart as the documentation says."""
    parts = re.split(r"^(?:#|//) file: (.+)\n", text_of("systemd", spec, user=user), flags=re.MULTILINE)
    return {path.rpartition("/")[2]: text for path, text in zip(parts[1::2], parts[2::2], strict=True)}


def manifests(spec: FleetSpec, device: str = "cpu") -> dict[tuple[str, str], dict[str, Any]]:
    documents = list(yaml.safe_load_all(text_of("kubernetes", spec, device)))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def services(spec: FleetSpec, device: str = "cpu") -> dict[str, Any]:
    document = yaml.safe_load(text_of("compose", spec, device))
    assert document["name"] == "kveik-demo-1"
    return dict(document["services"])


def commands_of(spec: FleetSpec) -> dict[str, tuple[str, ...]]:
    """What `kveik up` runs, with the Python of an image."""
    assert spec.source is not None
    parts = describe_node(spec, read_tables(spec.source, {}), here())
    return {part.name: ("python3", *part.variants[0].command[1:]) for part in parts}


def value(unit: str, name: str) -> str:
    return str(re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)[0])


def test_every_part_has_a_unit_and_each_engine_a_registration(tmp_path: Path) -> None:
    assert set(files_of(fleet(tmp_path))) == {
        "kveik-demo-1.target", "kveik-demo-1-agent.service", "kveik-demo-1-a.service", "kveik-demo-1-b.service",
        "kveik-demo-1-register-a.service", "kveik-demo-1-register-b.service", "kveik-demo-1-router.service",
        "kveik-demo-1-watchdog.service", "demo-1-watchdog.toml", "50-kveik-demo-1.rules",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here: apt-get install systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    # Programs have to be there for this check; users, too.
    spec = fleet(tmp_path)
    units = {name: text for name, text in files_of(spec, "root").items() if name.endswith((".service", ".target"))}
    for name, text in units.items():
        (tmp_path / name).write_text(text.replace(PYTHON, "/bin/sh"))
    paths = [str(tmp_path / name) for name in units]
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "kveik" in line]
    assert (told, done.returncode) == ([], 0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["/bin/x", "--a=b", "c,d:e@f+g"], "/bin/x --a=b c,d:e@f+g"),
        (["a b", ""], '"a b" ""'),
        (["$HOME", "100%"], "$$HOME 100%%"),
        (['{"a":"b\\c"}'], '"{\\"a\\":\\"b\\\\c\\"}"'),
        (["two\nlines\tand ; it's"], '"two\\nlines\\tand ; it\'s"'),
    ],
)
def test_words_are_quoted_as_systemd_reads_them(words: list[str], line: str) -> None:
    assert quoted(words) == line


def test_units_run_what_up_runs(tmp_path: Path) -> None:
    spec, files = fleet(tmp_path), files_of(fleet(tmp_path))
    for name, command in commands_of(spec).items():
        if name != "watchdog":
            assert value(files[f"kveik-demo-1-{name}.service"], "ExecStart") == quoted([PYTHON, *command[1:]])


def test_an_engine_is_out_of_the_routers_before_it_ends_and_ends_before_it_is_killed(tmp_path: Path) -> None:
    files = files_of(fleet(tmp_path))
    engine, registration = files["kveik-demo-1-a.service"], files["kveik-demo-1-register-a.service"]
    assert value(registration, "PartOf") == value(registration, "After") == "kveik-demo-1-a.service"
    drain_s = float(value(engine, "ExecStart").partition("--shutdown-timeout ")[2].split()[0])
    assert 100 <= drain_s < float(value(engine, "TimeoutStopSec"))
    assert float(value(files["kveik-demo-1-router.service"], "TimeoutStopSec")) > 20


def test_the_watchdog_restarts_engines_before_systemd_does_and_both_have_limits(tmp_path: Path) -> None:
    files = files_of(fleet(tmp_path, ENGINES + "[watchdog]\nprobe_period_s = 20\n"))
    engine = files["kveik-demo-1-a.service"]
    assert value(engine, "Restart") == "on-failure"
    assert float(value(engine, "RestartSec")) > 3 * 20
    assert (value(engine, "StartLimitBurst"), value(engine, "StartLimitIntervalSec")) == ("10", "3600")
    assert value(files["kveik-demo-1-router.service"], "Restart") == "always"


def check_watchdog_file(folder: Path, text: str, first_words: list[str]) -> None:
    file = folder / "watchdog.toml"
    file.write_text(text)
    for settings in SECTIONS.values():
        load(settings, file=file)
    document = read_toml(file)
    engines = parse_list(document["engines"], "watchdog.toml")
    assert [(engine.engine_id, engine.url) for engine in engines] == [
        ("a", "http://127.0.0.1:8001"), ("b", "http://127.0.0.1:8002"),
    ]  # fmt: skip
    assert all(table["restart"][: len(first_words)] == first_words for table in document["engines"])
    assert document["watchdog"]["routers"] == "http://127.0.0.1:8100"
    assert document["router"]["admission_token_file"] == "/etc/kveik/token"
    assert read_fleet(file, {}, {"node": "local"}).node.name == "local"


def test_the_watchdog_has_a_configuration_of_its_own_with_a_restart_command_for_each_engine(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    check_watchdog_file(tmp_path, files_of(spec)["demo-1-watchdog.toml"], ["/bin/sh", "-c"])
    config = manifests(spec)["ConfigMap", "kveik-demo-1-local-watchdog"]
    check_watchdog_file(tmp_path, config["data"]["watchdog.toml"], ["kubectl", "delete", "pod"])
    document = yaml.safe_load(text_of("compose", spec))
    check_watchdog_file(tmp_path, document["configs"]["watchdog"]["content"], ["docker", "restart"])


def test_only_the_user_of_the_watchdog_may_restart_units_of_this_fleet(tmp_path: Path) -> None:
    rule = files_of(fleet(tmp_path))["50-kveik-demo-1.rules"]
    assert 'subject.user == "kveik"' in rule
    assert 'indexOf("kveik-demo-1-") == 0' in rule
    assert "50-kveik-demo-1.rules" not in files_of(fleet(tmp_path), "root")


def pods(spec: FleetSpec, device: str = "cpu") -> dict[str, Any]:
    return {
        name.removeprefix("kveik-demo-1-"): document["spec"]["template"]["spec"]
        for (kind, name), document in manifests(spec, device).items()
        if kind == "Deployment"
    }


def test_pods_run_what_up_runs_with_the_images_python(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    for name, command in commands_of(spec).items():
        if name != "watchdog":
            assert tuple(pods(spec)[f"local-{name}"]["containers"][0]["command"]) == command


def test_a_pod_is_drained_then_ends_then_is_killed(tmp_path: Path) -> None:
    pod = pods(fleet(tmp_path))["local-a"]
    (engine,) = pod["containers"]
    stop = engine["lifecycle"]["preStop"]["exec"]["command"]
    assert stop[:5] == ["python3", "-m", "kveik.cli.main", "drain", "a"]
    wait_s = float(next(word for word in stop if word.startswith("--wait=")).partition("=")[2])
    command = engine["command"]
    shutdown_s = float(command[command.index("--shutdown-timeout") + 1])
    assert wait_s < shutdown_s < shutdown_s + wait_s < pod["terminationGracePeriodSeconds"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "register" in sidecar["command"]


def test_readiness_is_asked_for_and_no_liveness_probe_judges_engines(tmp_path: Path) -> None:
    found = pods(fleet(tmp_path))
    assert found["local-router"]["containers"][0]["readinessProbe"]["httpGet"] == {
        "host": "127.0.0.1", "port": 8100, "path": "/ready",
    }  # fmt: skip
    engine = found["local-a"]["containers"][0]
    assert engine["startupProbe"]["failureThreshold"] * engine["startupProbe"]["periodSeconds"] >= 1800
    assert engine["readinessProbe"]["httpGet"]["path"] == "/health"
    assert not any("livenessProbe" in pod["containers"][0] for pod in found.values())
    assert "exec" in found["local-agent"]["containers"][0]["readinessProbe"]


def test_engines_get_what_they_compute_on(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    on_cpu = pods(spec)["local-a"]["containers"][0]["resources"]["requests"]
    assert on_cpu == {"cpu": 4, "memory": "4096Mi"}
    assert pods(spec, "cuda")["local-a"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    ascend = pods(spec, "ascend")["local-b"]
    assert ascend["containers"][0]["resources"] == {"limits": {"huawei.com/Ascend910": 2}}
    paths = {volume["hostPath"]["path"] for volume in ascend["volumes"]}
    assert {"/usr/local/dcmi", "/dev/shm", "/models/small $HOME 100%"} <= paths


def test_volumes_and_mounts_have_the_same_valid_names(tmp_path: Path) -> None:
    for device in ("cpu", "ascend"):
        for pod in pods(fleet(tmp_path), device).values():
            names = [volume["name"] for volume in pod["volumes"]]
            assert len(names) == len(set(names))
            assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) for name in names)
            assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == names


def test_the_watchdog_may_delete_pods_and_nothing_else(tmp_path: Path) -> None:
    (rule,) = manifests(fleet(tmp_path))["Role", "kveik-demo-1-local-watchdog"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]}


def test_a_group_over_two_nodes_is_restarted_as_a_whole_and_only_its_head_is_registered(tmp_path: Path) -> None:
    found = manifests(fleet(tmp_path, NODES + GROUP))
    labels = [document["metadata"]["labels"] for (kind, _), document in found.items() if kind == "Deployment"]
    assert sorted(label["kveik/part"] for label in labels if label.get("kveik/group") == "a") == ["a", "a-1"]
    config = found["ConfigMap", "kveik-demo-1-n0-watchdog"]["data"]["watchdog.toml"]
    assert "--selector=kveik/fleet=demo-1,kveik/group=a" in config
    rank = found["Deployment", "kveik-demo-1-n1-a-1"]["spec"]["template"]["spec"]
    assert "initContainers" not in rank
    assert "--headless" in rank["containers"][0]["command"]
    assert rank["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


def test_the_ranks_of_a_node_are_restarted_together_by_systemd(tmp_path: Path) -> None:
    more = '[[launch]]\nname = "a"\ndata_parallel = 2\ndata_parallel_local = 1\n[[launch]]\nname = "r"\nhead = "a"\n'
    text = files_of(fleet(tmp_path, more))["demo-1-watchdog.toml"]
    assert '"sh", "kveik-demo-1-a.service", "kveik-demo-1-r.service"]' in text


def test_services_run_what_up_runs(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    for name, command in commands_of(spec).items():
        if name != "watchdog":
            assert [word.replace("$$", "$") for word in services(spec)[name]["command"]] == list(command)


def test_services_have_time_to_end_and_say_when_they_work(tmp_path: Path) -> None:
    found = services(fleet(tmp_path))
    assert found["a"]["stop_grace_period"] == "115s"
    assert found["register-a"]["depends_on"]["a"]["condition"] == "service_started"
    assert found["a"]["depends_on"] == {"agent": {"condition": "service_healthy"}}
    assert "http://127.0.0.1:8001/health" in found["a"]["healthcheck"]["test"][-1]
    assert (found["a"]["restart"], found["router"]["restart"]) == ("on-failure:10", "always")


def test_services_get_devices_and_shared_memory(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    (device,) = services(spec, "cuda")["a"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "capabilities": ["gpu"], "device_ids": ["0", "1"]}
    assert "/dev/davinci3:/dev/davinci3" in services(spec, "ascend")["b"]["devices"]
    assert services(spec)["a"]["cpuset"] == "0-3"
    for name in ("agent", "a"):
        assert "/dev/shm:/dev/shm" in services(spec)[name]["volumes"]
    assert "/cache:/cache" in services(spec)["agent"]["volumes"]


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def test_containers_count_their_devices_from_0_and_have_all_other_variables_of_up(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    assert "\nEnvironment=CUDA_VISIBLE_DEVICES=2,3\n" in text_of("systemd", spec, "cuda")
    in_pod, in_service = variables(pods(spec, "cuda")["local-b"]["containers"][0]), services(spec, "cuda")["b"]
    for found in (in_pod, in_service["environment"]):
        assert "CUDA_VISIBLE_DEVICES" not in found
        assert found["PYTHONHASHSEED"] == "0"


def test_of_several_nodes_one_has_to_be_named_but_for_kubernetes(tmp_path: Path) -> None:
    spec = fleet(tmp_path, NODES + GROUP)
    for kind in ("systemd", "compose"):
        with pytest.raises(ConfigError, match="say with --node NAME which this machine is"):
            text_of(kind, spec)
        assert "10.0.0.2" in text_of(kind, fleet(tmp_path, NODES + GROUP, "n1"))
    assert {"n0-a", "n1-a-1"} <= set(pods(spec))


def test_a_file_is_read_and_an_unknown_form_refused(tmp_path: Path) -> None:
    spec = fleet(tmp_path)
    assert spec.source is not None
    for kind in KINDS:
        assert "kveik-demo-1" in printed_file(kind, spec.source, "", here())
    with pytest.raises(ConfigError, match="--print is 'nomad', expected one of systemd, kubernetes, compose"):
        printed_file("nomad", spec.source, "", here())
