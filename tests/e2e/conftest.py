"""Two real nodes, provisioned once, and a way to run a playbook and read its events."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import cluster

INVENTORY = Path(__file__).parent / "inventory"
HAPPENED = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable")


@dataclass(frozen=True)
class Run:
    """What came of a playbook: its exit status, its events, and what it showed."""

    status: int
    events: list[dict[str, Any]]
    output: str

    def results(self, task: str | None = None) -> list[dict[str, Any]]:
        """Return the results of all tasks, or of those whose name contains `task`."""
        found = [event["event_data"] for event in self.events if event["event"] in HAPPENED]
        return [data["res"] | {"host": data["host"]} for data in found if task is None or task in data["task"]]

    @property
    def changed(self) -> dict[str, int]:
        """Number of changes by host."""
        stats = [event for event in self.events if event["event"] == "playbook_on_stats"]
        return {host: count for host, count in stats[-1]["event_data"]["changed"].items() if count} if stats else {}

    @property
    def errors(self) -> list[str]:
        """The messages of all that failed or did not answer."""
        kinds = ("runner_on_failed", "runner_on_unreachable")
        return [str(event["event_data"]["res"].get("msg")) for event in self.events if event["event"] in kinds]

    @property
    def shown(self) -> list[str]:
        """The lines that results asked to be shown."""
        return [line for result in self.results() for line in result.get("display", [])]


Play = Callable[..., Run]


@pytest.fixture(scope="session")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Return a function that runs a playbook of the repository with the given words of a command line."""

    def run(playbook: str, *words: str, inventory: Path = INVENTORY) -> Run:
        folder = tmp_path_factory.mktemp("runner")
        runner = ansible_runner.run(
            private_data_dir=str(folder),
            project_dir=str(cluster.ROOT),
            playbook=str(cluster.ROOT / playbook),
            inventory=str(inventory),
            cmdline=" ".join(words) or None,
            envvars={
                "ANSIBLE_CONFIG": str(cluster.ROOT / "ansible.cfg"),
                "PATH": f"{cluster.TOOLS}:{os.environ['PATH']}",
            },
            quiet=True,
        )
        assert runner.rc is not None
        return Run(runner.rc, list(runner.events), Path(runner.config.artifact_dir, "stdout").read_text())

    return run


@pytest.fixture(scope="session")
def nodes(play: Play) -> Iterator[list[cluster.Node]]:
    """Two nodes, 2 + 1 processes, provisioned by site.yml."""
    os.environ["ANSIBLE_CONFIG"] = str(cluster.ROOT / "ansible.cfg")
    for playbook in ("local/down.yml", "local/up.yml", "site.yml"):
        done = play(playbook)
        assert done.status == 0, done.output
    yield cluster.read_inventory(["-i", str(INVENTORY)])
    if os.environ.get("KEEP_NODES") != "1":
        assert play("local/down.yml").status == 0


@pytest.fixture
def state_of_nodes(nodes: list[cluster.Node]) -> Callable[[], list[str]]:
    """Return a function that describes all that a launch could change, to be compared before and after."""
    command = (
        "find /etc/torchrun /srv/torchrun/runs /etc/systemd/system -printf '%p %T@ %l\\n' | sort; "
        "systemctl list-units --all --plain --no-legend 'torchrun@*'"
    )
    return lambda: [node.run(command).stdout for node in nodes]
