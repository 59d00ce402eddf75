"""The shared storage fills up, or goes away under the job and comes back."""

from __future__ import annotations

import json
import time

import cluster
import pytest
import tough_job
from tough_job import EVERY, RUN, events, goes_on, last_step, sound, wait_for

from playbooks import Play

SHARED = "/srv/torchrun"


def test_a_full_disk_ends_the_job_with_a_sentence_and_resumes_from_the_last_good_checkpoint(
    play: Play, nodes: list[cluster.Node]
):
    tough_job.launch(play, nodes)
    # Full for the one rank that writes checkpoints: a small file system over their folder, with those of before in it.
    size = f"$(( $(du -sk {RUN}/checkpoints | cut -f1) + 100 ))k"
    nodes[0].run(
        f"mkdir -p /tmp/keep && cp -a {RUN}/checkpoints/. /tmp/keep/ && "
        f"mount -t tmpfs -o size={size},mode=777 none {RUN}/checkpoints && cp -a /tmp/keep/. {RUN}/checkpoints/"
    )
    try:
        failed = play("playbooks/follow.yml", "-e job=tough")
        assert failed.status != 0
        assert "No space left on device" in failed.errors[-1]
        report = json.loads(nodes[0].run(f"cat {RUN}/nodes/node1.json").stdout)
        assert len(report["failures"]) == 1  # nobody tried again
    finally:
        nodes[0].run(f"umount {RUN}/checkpoints; rm -rf /tmp/keep", check=False)
    sound(nodes[0])
    starts = len(events(nodes[0], "start"))
    resumed = play("playbooks/resume.yml", "-e job=tough -e wait=false")
    assert resumed.status == 0, resumed.output
    try:
        goes_on(nodes[0], starts, EVERY)
    finally:
        tough_job.stop(play)


@pytest.mark.parametrize("number", [0, 1], ids=["the host of node_rank 0", "another node"])
@pytest.mark.parametrize("how", ["-o ro", "-o mode=755"], ids=["read-only", "unmounted"])
def test_a_storage_that_vanishes_and_comes_back(tough: list[cluster.Node], number: int, how: str):
    """What is mounted over it is what is there without it: an empty folder of root's, or nothing to write to."""
    node, other = tough[number], tough[1 - number]
    starts, reached = len(events(other, "start")), last_step(other)
    node.run(f"mount -t tmpfs {how} none {SHARED}")
    try:
        if number == 1:  # this node reads nothing of the storage while it trains: it needs it to start again
            node.run("pkill -KILL -o -f 'python -u -m torchrun_[t]rainer'")
        wait_for("the agent to wait for the storage", lambda: waits(node))
        assert stands_still(other)
        assert not node.run(f"ls -A {SHARED}").stdout  # nothing was made where the storage is to be
    finally:
        node.run(f"umount -l {SHARED}")
    goes_on(other, starts, reached)


def waits(node: cluster.Node) -> bool:
    said = node.run("journalctl -u torchrun@tough --no-pager -n 5 -o cat").stdout
    return "waiting for the storage" in said


def stands_still(node: cluster.Node) -> bool:
    before = last_step(node)
    time.sleep(5)  # the time that is looked at, not one that is waited for
    return last_step(node) == before
