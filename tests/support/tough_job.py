"""A job that has to survive: how it is launched, and reading what it has written, harm after harm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import cluster

from playbooks import Play

RUN = "/srv/torchrun/runs/tough"
HANG_SECONDS = 15
EVERY = 10
WORDS = f"-e job=tough -e nnodes=2 -e hang_timeout={HANG_SECONDS} -e max_restarts=20"
OPTIONS = json.dumps({"script_args": ["--steps", "100000", "--checkpoint-every", str(EVERY), "--log-every", "1"]})
PATIENCE_SECONDS = 300.0
SOUND = (
    "import sys; from pathlib import Path; from torchrun_trainer import checkpoint; "
    "print([str(p) for p in checkpoint.all_in(Path(sys.argv[1])) if checkpoint.problem_of(p)])"
)


def launch(play: Play, nodes: list[cluster.Node]) -> None:
    """Start the job on all nodes, and wait until it has written one more checkpoint than in earlier launches."""
    began = time.time()
    done = play("train.yml", WORDS, f"-e '{OPTIONS}'", "-e wait=false")
    assert done.status == 0, done.output
    wait_for("a checkpoint", lambda: any(event["time"] > began for event in events(nodes[0], "checkpoint")))


def stop(play: Play) -> None:
    done = play("playbooks/stop.yml", "-e job=tough")
    assert done.status == 0, done.output


def events(node: cluster.Node, kind: str, run: str = RUN) -> list[dict[str, Any]]:
    lines = node.run(f"cat {run}/metrics.jsonl", check=False).stdout.splitlines()
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # the last line, of a process that was killed while it wrote
            continue
    return [event for event in found if event["event"] == kind]


def last_step(node: cluster.Node) -> int:
    return int(max((event["step"] for event in events(node, "step")), default=0))


def wait_for(what: str, condition: Callable[[], bool], patience: float = PATIENCE_SECONDS) -> float:
    """Wait, and return how many seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience, f"waited {patience:.0f} s in vain for {what}"
        time.sleep(1)
    return time.monotonic() - began


def goes_on(node: cluster.Node, starts: int, reached: int) -> None:
    """Wait until the job has started again and made steps beyond those of before, and look at all it has written."""
    wait_for("the workers to start again", lambda: len(events(node, "start")) > starts)
    wait_for("steps beyond those of before", lambda: last_step(node) > reached + 1)
    sound(node)


def sound(node: cluster.Node, run: str = RUN) -> None:
    """Check that all starts had all ranks and lost little, nobody wrote beside another, and checkpoints are whole."""
    steps: list[int] = []
    for line in node.run(f'grep -E \'"event": "(start|step)"\' {run}/metrics.jsonl').stdout.splitlines():
        event = json.loads(line)
        if event["event"] == "start":
            assert event["world_size"] == 3
            # The last checkpoint may just have been in the making: then it is the one before.
            assert not steps or steps[-1] - event["start_step"] <= 2 * EVERY
            steps = []
        else:
            steps.append(event["step"])
            assert steps == list(range(steps[0], steps[0] + len(steps)))
    environment = "PYTHONPATH=/opt/torchrun/trainer/current"
    done = node.run(f"{environment} /opt/torchrun/venv/bin/python -c '{SOUND}' {run}/checkpoints")
    assert done.stdout.strip() == "[]"


def container(node: cluster.Node, *words: str) -> None:
    words = (str(cluster.ROOT / "local/podman"), *words, node.variables["local_nodes_container"])
    subprocess.run(words, check=True, capture_output=True)
