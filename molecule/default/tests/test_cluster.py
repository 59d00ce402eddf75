"""What holds on every node after site.yml and two jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testinfra.host import Host

RUNS = "/srv/torchrun/runs"
NAMES = ["node1", "node2"]
# Any port that is neither SSH's nor anybody's: NCCL and gloo listen on random ones.
PORT = 41234


def peers_of(name: str) -> list[str]:
    return [other for other in NAMES if other != name]


@contextmanager
def listening(host: Host) -> Iterator[None]:
    """Listen on PORT of a host, on all its addresses, until the block ends."""
    program = f"import socket; s = socket.create_server(('0.0.0.0', {PORT})); print('ready', flush=True)"
    program += "\nwhile True: s.accept()[0].close()"
    unit = "molecule-listener"
    host.check_output("systemd-run --quiet --unit=%s python3 -c %s", unit, program)
    try:
        ready = f"for _ in $(seq 100); do ss -Hltn sport = :{PORT} | grep -q . && exit 0; sleep 0.1; done; exit 1"
        host.check_output("sh -c %s", ready)
        yield
    finally:
        host.check_output("systemctl stop %s", unit)


def can_connect(host: Host, address: str, port: int) -> bool:
    program = f"import socket; socket.create_connection(('{address}', {port}), 3)"
    return host.run("python3 -c %s", program).rc == 0


@pytest.mark.parametrize("name", NAMES)
def test_torch_can_be_imported(hosts: dict[str, Host], name: str):
    version = hosts[name].check_output("/opt/torchrun/venv/bin/python -c 'import torch; print(torch.__version__)'")
    assert version.startswith("2.13.0")


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_job_leaves_no_unit_running_or_enabled(hosts: dict[str, Host], name: str):
    for job in ("train", "ranks"):
        unit = hosts[name].service(f"torchrun@{job}")
        assert not unit.is_running
        assert not unit.is_enabled
        assert hosts[name].check_output("systemctl show -P Result torchrun@%s", job) == "success"


def test_world_size_is_3_and_group_rank_is_node_rank(hosts: dict[str, Host]):
    ranks = [json.loads(hosts["node1"].check_output(f"cat {RUNS}/ranks/rank-{rank}.json")) for rank in range(3)]
    assert [rank["WORLD_SIZE"] for rank in ranks] == ["3", "3", "3"]
    assert [(rank["TORCHRUN_HOST"], rank["GROUP_RANK"], rank["TORCHRUN_NODE_RANK"]) for rank in ranks] == [
        ("node1", "0", "0"),
        ("node1", "0", "0"),
        ("node2", "1", "1"),
    ]
    assert [rank["LOCAL_WORLD_SIZE"] for rank in ranks] == ["2", "2", "1"]
    assert [rank["sum_of_ranks"] for rank in ranks] == [3.0, 3.0, 3.0]


def test_the_trainer_left_metrics_checkpoints_and_a_report(hosts: dict[str, Host]):
    host = hosts["node2"]
    events = [json.loads(line) for line in host.check_output(f"cat {RUNS}/train/metrics.jsonl").splitlines()]
    start = next(event for event in events if event["event"] == "start")
    end = next(event for event in events if event["event"] == "end")
    assert start["world_size"] == 3
    assert (end["status"], end["step"]) == ("finished", 20)
    assert host.file(f"{RUNS}/train/report.html").size > 1000
    assert host.check_output(f"ls {RUNS}/train/checkpoints") != ""


@pytest.mark.parametrize("name", NAMES)
def test_the_environment_of_a_job_is_secret(hosts: dict[str, Host], name: str):
    file = hosts[name].file("/etc/torchrun/jobs/train.env")
    assert (file.user, file.mode) == ("root", 0o600)


@pytest.mark.parametrize("name", NAMES)
def test_aliases_resolve_in_inventory_order_on_every_node(hosts: dict[str, Host], addresses: dict[str, str], name: str):
    for index, peer in enumerate(NAMES):
        found = hosts[name].check_output(f"getent ahostsv4 trn-{index:04d}-{peer}").split()[0]
        assert found == addresses[peer]


@pytest.mark.parametrize("name", NAMES)
def test_the_trainer_reaches_every_node_by_ssh_without_a_prompt(hosts: dict[str, Host], name: str):
    for peer in NAMES:
        command = f"sudo -u trainer ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {peer} hostname"
        assert hosts[name].check_output(command) == peer


def test_a_stolen_key_opens_nothing_from_another_address(
    hosts: dict[str, Host], outsider: Host, addresses: dict[str, str]
):
    key = hosts["node1"].check_output("cat /home/trainer/.ssh/id_ed25519")
    outsider.check_output("sh -c %s", f"umask 077; printf '%s\n' '{key}' > /root/stolen")
    options = "-i /root/stolen -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
    try:
        for address in addresses.values():
            said = outsider.check_output("sh -c %s", f"ssh {options} trainer@{address} id -un 2>&1 || echo refused")
            assert "Permission denied" in said
            assert said.endswith("refused")
    finally:
        outsider.check_output("rm /root/stolen")


@pytest.mark.parametrize("name", NAMES)
def test_peers_reach_any_port_and_an_outsider_only_ssh(
    hosts: dict[str, Host], outsider: Host, addresses: dict[str, str], name: str
):
    with listening(hosts[name]):
        for peer in peers_of(name):
            assert can_connect(hosts[peer], addresses[name], PORT)
        assert not can_connect(outsider, addresses[name], PORT)
    assert can_connect(outsider, addresses[name], 22)


@pytest.mark.parametrize("name", NAMES)
def test_the_firewall_comes_back_with_the_node(hosts: dict[str, Host], name: str):
    assert hosts[name].service("torchrun-firewall").is_enabled
    assert hosts[name].service("torchrun-firewall").is_running
    assert "policy drop" in hosts[name].check_output("nft list table inet torchrun")


def test_the_rules_outlive_a_restart_of_nftables(hosts: dict[str, Host]):
    for verb in ("restart", "reload", "stop", "start"):  # each of them flushes every table
        hosts["node1"].check_output(f"systemctl {verb} nftables.service")
    assert hosts["node1"].service("torchrun-firewall").is_running
    assert "policy drop" in hosts["node1"].check_output("nft list table inet torchrun")


def test_shared_storage_is_one(hosts: dict[str, Host]):
    hosts["node1"].check_output("sudo -u trainer touch /srv/torchrun/data/.molecule")
    assert hosts["node2"].file("/srv/torchrun/data/.molecule").exists
    hosts["node2"].check_output("sudo -u trainer rm /srv/torchrun/data/.molecule")
