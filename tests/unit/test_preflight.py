"""What preflight makes of what hosts say. GPUs, drivers and fabric managers are made up here: no real one was there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import checks, facts, network
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import Cluster, Finding, odd_ones

NAMES = ("node1", "node2", "node3")
CLUSTER = Cluster(
    [
        {"name": name, "alias": f"trn-{number}", "address": f"10.0.0.{number}", "nproc_per_node": 2}
        for number, name in enumerate(NAMES, start=1)
    ],
    "/srv/torchrun",
)
NO_CUDA: dict[str, list[str]] = {"cudnn": [], "cuda": []}
Reports = dict[str, dict[str, Any]]


def gpu(capability: str = "9.0", driver: str = "580.65.06") -> dict[str, str]:
    return {"name": "a made-up GPU", "capability": capability, "driver": driver}


def healthy() -> Reports:
    """Return what three hosts in order say."""
    addresses = {node["alias"]: [node["address"]] for node in CLUSTER.nodes}
    reports: Reports = {}
    for node in CLUSTER.nodes:
        key = f"ssh-ed25519 {node['name']}"
        reports[node["name"]] = {
            "port": 29400,
            "busy": [],
            "listen": {"ports": [40000, 29400], "busy": ""},
            "tokens": list(NAMES),
            "mesh": {
                "own": [key], "accepts": [f"ssh-ed25519 {name}" for name in NAMES], "host": [key],
                "knows": {other["alias"]: [f"ssh-ed25519 {other['name']}"] for other in CLUSTER.nodes},
            },
            "storage": {
                "point": "/srv/torchrun", "source": "10.0.0.1:/srv", "type": "nfs4", "read_only": False,
                "free": 1 << 40, "total": 1 << 41, "writable": True,
            },
            "probe": {
                other["name"]: {"host": other["name"], "offset": 0.01, "seconds": 0.001, "mtu": True,
                                "rendezvous": {"host": other["name"], "offset": 0.0, "seconds": 0.001}}
                for other in CLUSTER.nodes if other is not node
            },
            "facts": {
                "hostname": node["name"],
                "machine": "x86_64",
                "venv": {
                    "path": "/opt", "python": "3.11.2", "hash": "abc", "arches": ["sm_80", "sm_90"],
                    "packages": {"torch": ["torch 2.13.0"], "nccl": ["nvidia-nccl-cu13 2.28.9"]} | NO_CUDA,
                },
                "trainer": "/opt/t",
                "gpus": [gpu(), gpu()],
                "gpu_processes": [],
                "fabric": {"state": "active", "version": "580.65.06"},
                "interfaces": [{"name": "eth0", "mtu": 1500, "up": True, "addresses": [f"{node['address']}/24"]}],
                "twins": [],
                "resolved": dict(addresses),
                "own_name": [node["address"]],
                "shm": {"total": 1 << 30, "free": 1 << 30, "nccl": []},
                "limits": {"LimitNOFILE": "1048576", "LimitMEMLOCK": "infinity", "LoadState": "loaded"},
                "leftovers": [],
                "preloads": [],
                "cpus": 2,
            },
        }  # fmt: skip
    return copy.deepcopy(reports)


def test_of_healthy_hosts_nothing_is_said():
    assert checks.examine(CLUSTER, healthy()) == []
    rows = checks.table(CLUSTER, [], list(checks.CHECKS))
    assert rows[0][0] == "host"
    assert [set(row[1:]) for row in rows[1:]] == [{"ok"}] * 3


def set_fact(host: str, name: str, value: Any) -> Callable[[Reports], None]:
    def change(reports: Reports) -> None:
        reports[host]["facts"][name] = value

    return change


def clock_ahead(reports: Reports) -> None:
    for name in ("node1", "node3"):
        reports[name]["probe"]["node2"]["offset"] = 61.0
    for tried in reports["node2"]["probe"].values():
        tried["offset"] = -61.0


def no_packets(reports: Reports) -> None:
    reports["node1"]["probe"]["node3"]["mtu"] = False


def stranger(reports: Reports) -> None:
    reports["node1"]["probe"]["node3"]["host"] = "elsewhere"


def silent(reports: Reports) -> None:
    reports["node3"] = {"problem": "Connection timed out"}


def apart(reports: Reports) -> None:
    reports["node2"]["tokens"] = ["node2"]


def other_driver(reports: Reports) -> None:
    reports["node2"]["facts"] |= {"gpus": [gpu(driver="570.1")] * 2, "fabric": {}}


def busy_gpu(reports: Reports) -> None:
    reports["node2"]["facts"]["gpu_processes"] = [77]


def other_storage_of_two(reports: Reports) -> None:
    del reports["node3"]
    reports["node1"]["tokens"], reports["node2"]["tokens"] = ["node1"], ["node2"]


WRONG: dict[str, tuple[Callable[[Reports], None], tuple[str, ...], str, str]] = {
    "made-up GPU: driver differs": (
        other_driver, ("node2",), "gpus",
        "the driver: node2 has 570.1, the others 580.65.06",
    ),
    "made-up GPU: too old": (
        set_fact("node3", "gpus", [gpu("7.0")] * 2), ("node3",), "gpus",
        "node3 has the GPU a made-up GPU (sm_70), and this PyTorch is built for sm_80, sm_90",
    ),
    "made-up fabric manager": (
        set_fact("node1", "fabric", {"state": "active", "version": "575.1"}), ("node1",), "gpus",
        "the fabric manager of node1 is active, version 575.1, and the driver 580.65.06",
    ),
    "made-up GPU: too few": (
        set_fact("node1", "gpus", [gpu()]), ("node1",), "slots", "node1 has 1 GPUs for 2 processes"
    ),
    "made-up GPU: in use": (busy_gpu, ("node2",), "leftovers", "processes 77 use GPUs of node2, and no job runs there"),
    "no venv": (set_fact("node2", "venv", {}), ("node2",), "versions", "node2: there is no PyTorch venv"),
    "a clock": (clock_ahead, ("node2",), "clock", "the clock of node2 is 61 s ahead of the others'"),
    "large packets": (no_packets, ("node1",), "network", "packets of 1500 bytes of node1 do not reach node3 whole"),
    "a stranger": (stranger, ("node1",), "reach", "at the address of node3 node1 met elsewhere"),
    "no answer": (silent, ("node3",), "answers", "node3 does not answer: Connection timed out"),
    "another storage": (
        apart, ("node2",), "storage", "node2 does not see at /srv/torchrun what node1, node3 wrote there"
    ),
    "another storage of two": (other_storage_of_two, ("node1", "node2"), "storage", "node1 does not see at"),
    "twins": (
        set_fact("node1", "twins", [["eth0", "eth1"]]), ("node1",), "network", "eth0 and eth1 of node1 are in one"
    ),
    "locked memory": (
        set_fact("node1", "limits", {"LimitMEMLOCK": "65536", "LoadState": "loaded"}), ("node1",), "limits",
        "the unit on node1 may lock 65536 bytes only",
    ),
    "a masked unit": (
        set_fact("node3", "limits", {"LoadState": "masked", "Id": "torchrun@train.service"}), ("node3",), "limits",
        "the unit torchrun@train.service of node3 is masked",
    ),
    "old segments": (
        set_fact("node1", "shm", {"total": 1 << 30, "free": 1 << 30, "nccl": ["nccl-a"]}), ("node1",), "leftovers",
        "1 segments nccl-* are left",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_of_the_right_host(name: str):
    change, hosts, check, said = WRONG[name]
    reports = healthy()
    change(reports)
    found = [finding for finding in checks.examine(CLUSTER, reports) if finding.check == check]
    assert [finding.hosts for finding in found] == [hosts]
    assert said in found[0].what
    assert found[0].why
    assert found[0].do


def test_errors_come_first_and_the_table_has_a_word_for_each():
    reports = healthy()
    reports["node1"]["facts"]["preloads"] = ["x.so"]
    silent(reports)
    found = checks.examine(CLUSTER, reports)
    assert [finding.severity for finding in found] == ["error", "warning"]
    rows = checks.table(CLUSTER, found, ["answers", "versions"])
    assert rows[1:] == [["node1", "ok", "preload"], ["node2", "ok", "ok"], ["node3", "no", "ok"]]
    assert checks.lines(found)[1].startswith("problem 1: node3 does not answer")
    assert checks.as_dicts(found)[0]["hosts"] == ("node3",)


def test_the_odd_one_is_not_of_the_majority_and_on_a_tie_not_the_first():
    assert odd_ones({"a": 1, "b": 2, "c": 2}) == {"a": 1}
    assert odd_ones({"a": 1, "b": 2}) == {"b": 2}
    assert odd_ones({}) == {}


def test_a_finding_is_known_by_its_parts():
    assert Finding("a", ("b",), "c", "d", "e", "f").severity == "error"


def test_a_venv_is_known_by_its_folders(tmp_path: Path):
    site = tmp_path / "opt/torchrun/venv/lib/python3.11/site-packages"
    for name, record in (
        ("torch-2.13.0+cpu", "torch/a.py,sha256=1,2\ntorch/a.pyc,,\n"),
        ("nvidia_nccl_cu13-2.28.9", "x,sha256=3,4\n"),
        ("torchvision-1", ""),
    ):
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info/RECORD").write_text(record)
    (tmp_path / "opt/torchrun/venv/pyvenv.cfg").write_text("home = /usr\nversion = 3.11.2\n")
    found = facts.venv(tmp_path)
    assert found["python"] == "3.11.2"
    assert found["packages"] == {
        "torch": ["torch 2.13.0+cpu"], "nccl": ["nvidia-nccl-cu13 2.28.9"], "cudnn": [], "cuda": [],
    }  # fmt: skip
    before = found["hash"]
    (site / "torch-2.13.0+cpu.dist-info/RECORD").write_text("torch/a.py,sha256=1,2\n")
    assert facts.venv(tmp_path)["hash"] == before  # compiled files are no content
    (site / "torch-2.13.0+cpu.dist-info/RECORD").write_text("torch/a.py,sha256=9,2\n")
    assert facts.venv(tmp_path)["hash"] != before
    assert facts.venv(tmp_path / "nowhere") == {}


MOUNTS = """22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:50 / /srv/torchrun rw,relatime - nfs4 10.0.0.1:/srv rw,vers=4.2
31 22 0:51 /sub /mnt/with\\040space ro,relatime - ext4 /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "point", "source", "read_only"),
    [
        ("/srv/torchrun/runs", "/srv/torchrun", "10.0.0.1:/srv", False),
        ("/srv/torchrun2", "/", "/dev/sda1/", False),
        ("/mnt/with space", "/mnt/with space", "/dev/sdb/sub", True),
    ],
)
def test_a_path_is_on_the_deepest_mount_around_it(path: str, point: str, source: str, read_only: bool):
    found = facts.mount_of(Path(path), MOUNTS)
    assert (found["point"], found["source"], found["read_only"]) == (point, source, read_only)


def test_two_interfaces_in_one_subnet_are_twins():
    def link(name: str, address: str, up: bool = True) -> dict[str, Any]:
        return {"name": name, "up": up, "addresses": [address]}

    one, other = link("a", "10.0.0.1/24"), link("b", "10.0.0.2/24")
    assert facts.twins([one, other]) == [["a", "b"]]
    assert facts.twins([one, link("b", "10.0.0.2/24", up=False), link("c", "10.0.1.2/24")]) == []
    assert facts.twins([link("a", "10.0.0.1/32"), link("b", "10.0.0.1/32")]) == []


def test_processes_of_jobs_that_do_not_run_are_left_over(tmp_path: Path):
    for pid, job in ((1, b"runs"), (2, b"gone"), (3, b"")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/environ").write_bytes(b"A=1\0TORCHRUN_JOB=" + job + b"\0" if job else b"A=1\0")
        (tmp_path / f"proc/{pid}/cmdline").write_bytes(b"python\0-u\0train.py\0")
    assert facts.leftovers(["runs"], tmp_path) == [{"pid": 2, "job": "gone", "command": "python -u train.py"}]


def test_hosts_that_listen_are_met_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(network, "LAST_SECONDS", 0.5)
    listening = network.listen("127.0.0.1", 0, "here", 1)
    port = listening["ports"][0]
    peers = {"here": {"address": "127.0.0.1", "ports": [port]}, "shut": {"address": "127.0.0.1", "ports": [1]}}
    found = network.probe(peers, 1500)
    assert found["shut"] == {"problem": "Connection refused"}
    assert found["here"]["host"] == "here"
    assert abs(found["here"]["offset"]) < 1
    assert found["here"]["mtu"] is True
    assert "problem" in network.reach("127.0.0.1", port)  # each peer connects once, then the port is free


def test_a_second_listener_takes_the_place_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(network, "LAST_SECONDS", 0.1)
    with network.socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = network.listen("127.0.0.1", port, "first", 9)["ports"]
    second = network.listen("127.0.0.1", port, "second", 1)["ports"]
    assert first[1:] == second[1:] == [port]
    assert "problem" in network.reach("127.0.0.1", first[0])
    assert [network.reach("127.0.0.1", each)["host"] for each in second] == ["second", "second"]


def test_listeners_without_a_port_of_their_own_leave_each_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(network, "LAST_SECONDS", 0.1)
    ports = {name: network.listen("127.0.0.1", 0, name, 1)["ports"] for name in ("one launch", "another")}
    assert {name: network.reach("127.0.0.1", port)["host"] for name, (port,) in ports.items()} == {
        "one launch": "one launch", "another": "another",
    }  # fmt: skip


def test_a_port_that_is_taken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(network, "LAST_SECONDS", 0.1)
    with network.socket.create_server(("127.0.0.1", 0)) as taken:
        listening = network.listen("127.0.0.1", taken.getsockname()[1], "here", 1)
    assert listening["busy"] == "Address already in use"
    assert len(listening["ports"]) == 1
    network.reach("127.0.0.1", listening["ports"][0])
