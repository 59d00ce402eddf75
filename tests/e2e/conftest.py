"""Two real nodes, provisioned once, and a way to run a playbook on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cluster
import pytest

import playbooks

INVENTORY = Path(__file__).parent / "inventory"


@pytest.fixture(scope="session")
def play() -> Callable[..., playbooks.Run]:
    """Return a function that runs a playbook on the nodes of these tests."""
    return partial(playbooks.play, inventory=INVENTORY)


@pytest.fixture(scope="session")
def nodes(play: Callable[..., playbooks.Run]) -> Iterator[list[cluster.Node]]:
    """Two nodes, 2 + 1 processes, provisioned by site.yml."""
    os.environ["ANSIBLE_CONFIG"] = str(cluster.ROOT / "ansible.cfg")
    keep = os.environ.get("KEEP_NODES") == "1"  # to write tests by: nodes of the last time are used again
    for playbook in ("local/up.yml", "site.yml") if keep else ("local/down.yml", "local/up.yml", "site.yml"):
        done = play(playbook)
        assert done.status == 0, done.output
    yield cluster.read_inventory(["-i", str(INVENTORY)])
    if not keep:
        assert play("local/down.yml").status == 0


@pytest.fixture
def state_of_nodes(nodes: list[cluster.Node]) -> Callable[[], list[str]]:
    """Return a function that describes all that a launch could change, to be compared before and after."""
    command = (
        "find /etc/torchrun /srv/torchrun/runs /etc/systemd/system -printf '%p %T@ %l\\n' | sort; "
        "systemctl list-units --all --plain --no-legend 'torchrun@*'"
    )
    return lambda: [node.run(command).stdout for node in nodes]
