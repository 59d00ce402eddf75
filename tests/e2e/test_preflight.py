"""Faults made on real nodes: preflight names each with the right host, and says nothing of a healthy cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster
import pytest
from faults import FAULTS

from playbooks import Play


@pytest.fixture
def examine(play: Play, nodes: list[cluster.Node], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs preflight.yml and returns its findings."""

    def run(overrides: dict[str, Any] | None = None, host: str = "node2") -> list[dict[str, Any]]:
        report, inventory = tmp_path / "report.json", tmp_path / "overrides.yml"
        inventory.write_text(json.dumps({"nodes": {"hosts": {host: overrides or {}}}}))
        done = play("playbooks/preflight.yml", f"-e report={report}", overrides=inventory)
        assert report.exists(), done.output
        found: list[dict[str, Any]] = json.loads(report.read_text())["findings"]
        errors = [finding for finding in found if finding["severity"] == "error"]
        assert done.status == (2 if errors else 0), done.output
        return found

    del nodes  # they have to be there
    return run


def test_of_a_healthy_cluster_nothing_is_said_again_and_again(examine: Callable[..., list[dict[str, Any]]]):
    for _ in range(3):
        assert examine() == []


def test_a_launch_starts_on_none_where_a_member_does_not_reach_another(play: Play, nodes: list[cluster.Node]):
    fault = FAULTS["a firewall for high ports"]
    nodes[fault.on].run(fault.do)
    try:
        done = play("train.yml", "-e job=shut -e nnodes=2")
    finally:
        nodes[fault.on].run(fault.undo)
    assert done.status != 0
    assert f"node2 ({nodes[1].address}) is not reached from this host on high ports (no answer)" in done.errors[0]
    for node in nodes:
        assert node.run("systemctl is-active torchrun@shut", check=False).stdout.strip() != "active"
        assert node.run("systemctl is-enabled torchrun@shut", check=False).stdout.strip() == "disabled"


# One of each kind; the others are left to ./check full.
QUICK = ("NCCL for two CUDAs", "a port that is taken", "a firewall in one direction", "another storage", "no unit")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FAULTS]
)
def test_a_fault_is_named_with_its_host(
    name: str, examine: Callable[..., list[dict[str, Any]]], nodes: list[cluster.Node]
):
    fault = FAULTS[name]
    addresses = {node.name: node.address for node in nodes}
    command = fault.do.replace("{node2}", addresses["node2"])
    nodes[fault.on].run(command)
    try:
        found = examine(fault.overrides)
    finally:
        nodes[fault.on].run(fault.undo)
    named = [finding for finding in found if finding["check"] == fault.check and finding["severity"] == fault.severity]
    assert any(fault.said in finding["what"] and fault.host in finding["hosts"] for finding in named), found
    # Nothing else is wrong on the other host, but for what follows from the same fault.
    assert {host for finding in found for host in finding["hosts"] if finding["severity"] == "error"} <= {
        fault.host, *(["node1", "node2"] if fault.check in ("reach", "storage", "network") else []),
    }  # fmt: skip
