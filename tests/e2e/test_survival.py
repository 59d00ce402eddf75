"""A job survives what happens to its processes and nodes. Long: each case waits for torchrun to start anew."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator

import cluster
import pytest

from playbooks import Play

METRICS = "/srv/torchrun/runs/tough/metrics.jsonl"
OPTIONS = """-e job=tough -e '{"script_args": ["--steps", "100000", "--checkpoint-every", "10", "--log-every", "1"]}'"""
PATIENCE_SECONDS = 240.0

pytestmark = pytest.mark.long


def starts(node: cluster.Node) -> list[dict[str, object]]:
    """The start events of the job: one for each time that the workers began."""
    lines = node.run(f"cat {METRICS}").stdout.splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "start"]


def last_step(node: cluster.Node) -> int:
    return int(json.loads(node.run(f"grep '\"step\"' {METRICS} | grep loss | tail -n 1").stdout)["step"])


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}"
        time.sleep(1)


@pytest.fixture
def tough(play: Play, nodes: list[cluster.Node]) -> Iterator[list[cluster.Node]]:
    """A job that runs on both nodes and has a checkpoint; stopped afterwards."""
    assert play("train.yml", OPTIONS, "-e wait=false").status == 0
    wait_for("a checkpoint", lambda: last_step(nodes[0]) >= 10)
    yield nodes
    assert play("playbooks/stop.yml", "-e job=tough").status == 0


def kill_worker(node: cluster.Node) -> None:
    node.run("pkill -KILL -o -f 'python -u -m torchrun_[t]rainer'")


def kill_agent(node: cluster.Node) -> None:
    node.run("systemctl kill --kill-whom=main --signal=KILL torchrun@tough")


def reboot(node: cluster.Node) -> None:
    container = node.variables["local_nodes_container"]
    subprocess.run([cluster.ROOT / "local/podman", "restart", "--time=60", container], check=True, capture_output=True)


@pytest.mark.parametrize("number", [0, 1], ids=["the host of node_rank 0", "another node"])
@pytest.mark.parametrize("harm", [kill_worker, kill_agent, reboot])
def test_the_job_goes_on_from_its_checkpoint_with_all_ranks(
    tough: list[cluster.Node], harm: Callable[[cluster.Node], None], number: int
):
    node = tough[1 - number]  # the one that is not harmed sees the same storage
    before, reached = len(starts(node)), last_step(node)
    harm(tough[number])
    wait_for("the workers to start again", lambda: len(starts(node)) > before)
    again = starts(node)[-1]
    assert again["world_size"] == 3
    assert int(str(again["start_step"])) >= 10
    wait_for("steps beyond those of before", lambda: last_step(node) > max(reached, int(str(again["start_step"]))))
