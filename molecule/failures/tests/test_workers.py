"""A worker that fails, however it does: all ranks start again from the last checkpoint, and its error is kept."""

from __future__ import annotations

import json
from pathlib import Path

import cluster
import pytest
from tough_job import RUN, WORDS, events, goes_on, last_step, sound

from playbooks import Play

FILES = Path(__file__).resolve().parents[1] / "files"
HOW = {
    "kill": "was killed by SIGKILL",
    "raise": "exited with 1: ValueError: the harm that was asked for",
    "exit": "exited with 3",
    "memory": "exited with 1: MemoryError",
}


@pytest.mark.parametrize("harm", HOW)
def test_a_worker_that_fails_is_started_again_and_its_error_is_kept(play: Play, nodes: list[cluster.Node], harm: str):
    settings = {
        "env": {"HARM": harm, "HARM_RANK": "2"},
        "script_args": ["--model", "faulty:build", "--steps", "40", "--checkpoint-every", "10", "--log-every", "1"],
    }
    run = f"/srv/torchrun/runs/harm-{harm}"
    done = play("train.yml", f"{WORDS} -e job=harm-{harm} -e workdir={FILES}", f"-e '{json.dumps(settings)}'")
    assert done.status == 0, done.output
    assert f"node2: rank 2 {HOW[harm]}" in done.output
    assert "restart 1" in done.output
    starts = events(nodes[0], "start", run)
    assert [event["start_step"] for event in starts] == [0, 20]
    assert {event["world_size"] for event in starts} == {3}
    report = json.loads(nodes[0].run(f"cat {run}/nodes/node2.json").stdout)
    assert report["failures"][0]["rank"] == 2
    assert report["state"] == "finished"
    sound(nodes[0], run)


def test_a_hang_of_one_worker_is_ended_and_the_stacks_of_all_are_kept(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    tough[1].run("pkill -STOP -o -f 'python -u -m torchrun_[t]rainer'")
    goes_on(tough[0], starts, reached)
    stacks = {
        rank: tough[0].run(f"cat {RUN}/logs/node{node}/stack-rank-{rank}-*").stdout
        for rank, node in ((0, 1), (1, 1), (2, 2))
    }
    assert all("torchrun_trainer/loop.py" in text for text in stacks.values())
