"""The scenario's nodes, a way to run playbooks on them, and a job that has to survive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cluster
import pytest
import tough_job

import playbooks

INVENTORY = Path(__file__).resolve().parents[1] / "inventory"


@pytest.fixture(scope="session")
def play() -> playbooks.Play:
    """Return a function that runs a playbook on the nodes of this scenario."""
    return partial(playbooks.play, inventory=INVENTORY)


@pytest.fixture(scope="session")
def kill_in_the_middle() -> playbooks.KillInTheMiddle:
    """Return a function that runs a playbook on these nodes and kills it at some point."""
    return partial(playbooks.kill_in_the_middle, inventory=INVENTORY)


@pytest.fixture(scope="session")
def nodes() -> list[cluster.Node]:
    """Two nodes, 2 + 1 processes."""
    os.environ["ANSIBLE_CONFIG"] = str(cluster.ROOT / "ansible.cfg")
    return cluster.read_inventory(["-i", str(INVENTORY)])


@pytest.fixture
def tough(play: playbooks.Play, nodes: list[cluster.Node]) -> Iterator[list[cluster.Node]]:
    """A job that runs on both nodes and has a checkpoint; stopped afterwards."""
    tough_job.launch(play, nodes)
    yield nodes
    tough_job.stop(play)
