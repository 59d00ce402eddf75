"""Hosts for testinfra, from the scenario's inventory, reached as Ansible reaches them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

SCENARIO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCENARIO.parents[1] / "tests/support"))

import cluster  # noqa: E402

INVENTORY = ["-i", str(SCENARIO / "inventory")]


def connect(node: cluster.Node) -> Host:
    """Return testinfra's host for a node, as root, over one shared connection."""
    return testinfra.get_host(
        f"ssh://{node.user}@{node.ssh_host}",
        ssh_identity_file=node.identity,
        ssh_extra_args=" ".join(node.ssh_options),
        controlpersist=60,
        sudo=True,
    )


@pytest.fixture(scope="session")
def nodes() -> list[cluster.Node]:
    """The members of the cluster, in node_rank order."""
    os.environ["ANSIBLE_CONFIG"] = str(cluster.ROOT / "ansible.cfg")
    return cluster.read_inventory(INVENTORY)


@pytest.fixture(scope="session")
def hosts(nodes: list[cluster.Node]) -> dict[str, Host]:
    """testinfra's hosts by name."""
    return {node.name: connect(node) for node in nodes}


@pytest.fixture(scope="session")
def outsider(nodes: list[cluster.Node]) -> Host:
    """A host on the same network that is no member."""
    assert nodes
    (node,) = cluster.read_inventory(INVENTORY, "outsiders")
    return connect(node)


@pytest.fixture(scope="session")
def addresses(nodes: list[cluster.Node]) -> dict[str, str]:
    """Addresses on the training network by name."""
    return {node.name: node.address for node in nodes}
