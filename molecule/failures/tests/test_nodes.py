"""Agents, nodes, the network and clocks come to harm: the job goes on with all ranks, and with nobody typing."""

from __future__ import annotations

import json
from collections.abc import Callable

import cluster
import pytest
import tough_job
from tough_job import EVERY, HANG_SECONDS, RUN, container, events, goes_on, last_step, wait_for

from playbooks import Play

BOTH = pytest.mark.parametrize("number", [0, 1], ids=["the host of node_rank 0", "another node"])
# An agent looks once a second, and each look of a test takes a moment.
NOTICED_SECONDS = HANG_SECONDS + 10
# Workers are killed as soon as their agent is gone, before its unit starts again.
OUTLIVED_SECONDS = 5
WORKER = "python -u -m torchrun_[t]rainer"


def workers(node: cluster.Node) -> set[str]:
    return set(node.run(f"pgrep -f '{WORKER}'", check=False).stdout.split())


def kill_worker(node: cluster.Node) -> None:
    node.run(f"pkill -KILL -o -f '{WORKER}'")


def kill_agent(node: cluster.Node) -> None:
    node.run("systemctl kill --kill-whom=main --signal=KILL torchrun@tough")


def reboot(node: cluster.Node) -> None:
    container(node, "restart", "--time=60")


@BOTH
@pytest.mark.parametrize("harm", [kill_worker, kill_agent, reboot])
def test_the_job_survives_the_loss_of_a_process_or_a_reboot(
    tough: list[cluster.Node], harm: Callable[[cluster.Node], None], number: int
):
    node = tough[1 - number]  # the one that is not harmed sees the same storage
    starts, reached = len(events(node, "start")), last_step(node)
    of_before = workers(tough[number])
    harm(tough[number])
    if harm is kill_agent:
        took = wait_for("its workers to be gone", lambda: workers(tough[number]).isdisjoint(of_before))
        assert took < OUTLIVED_SECONDS
    goes_on(node, starts, reached)


def noticed(survivor: cluster.Node, since: float) -> float | None:
    """Return when the survivor wrote down that something is wrong, in unix seconds, or None.

    Its hang watch has ended the workers, or they have met a connection that broke, or its agent did.
    """
    report = json.loads(survivor.run(f"cat {RUN}/nodes/{survivor.name}.json").stdout)
    told = [entry["time"] for kind in ("failures", "hangs") for entry in report.get(kind, [])]
    told += [report["since"]] if report["state"] != "running" else []
    return min((time for time in told if time > since), default=None)


def last_progress(node: cluster.Node) -> float:
    """Return when the last step was written, in unix seconds."""
    return float(events(node, "step")[-1]["time"])


@BOTH
def test_a_node_without_power_is_noticed_and_rejoins_by_itself(tough: list[cluster.Node], number: int):
    survivor = tough[1 - number]
    starts, reached = len(events(survivor, "start")), last_step(survivor)
    container(tough[number], "kill")
    since = last_progress(survivor)
    wait_for("the survivor to notice", lambda: noticed(survivor, since) is not None)
    took = (noticed(survivor, since) or 0.0) - since
    assert took < NOTICED_SECONDS
    container(tough[number], "start")
    wait_for("the node to be back", lambda: tough[number].run("true", check=False).returncode == 0)
    goes_on(survivor, starts, reached)


def test_a_node_that_hangs_is_noticed_and_goes_on_when_it_is_released(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    container(tough[1], "pause")
    since = last_progress(tough[0])
    try:
        wait_for("a stack", lambda: tough[0].run(f"ls {RUN}/logs/node1/stack-*", check=False).returncode == 0)
    finally:
        container(tough[1], "unpause")
    assert (noticed(tough[0], since) or 0.0) - since < NOTICED_SECONDS
    assert "rank 0 after step" in tough[0].run(f"cat {RUN}/nodes/node1.json").stdout
    goes_on(tough[0], starts, reached)


def test_a_partition_of_the_network_heals(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    rules = " ".join(
        f"nft add chain inet cut {hook} {{ type filter hook {hook} priority -300\\; }}; "
        f"nft add rule inet cut {hook} ip {side} {tough[0].address} drop;"
        for hook, side in (("input", "saddr"), ("output", "daddr"))
    )
    tough[1].run(f"nft add table inet cut; {rules}")
    since = last_progress(tough[0])
    try:
        wait_for("node1 to notice", lambda: noticed(tough[0], since) is not None)
    finally:
        tough[1].run("nft delete table inet cut")
    assert (noticed(tough[0], since) or 0.0) - since < NOTICED_SECONDS
    goes_on(tough[0], starts, reached)


@pytest.mark.parametrize("seconds", [60, -60])
def test_a_clock_that_is_set_is_no_reason_to_stop(play: Play, nodes: list[cluster.Node], seconds: int):
    """One node's clock is moved while the job trains, as seen by the job's processes (libfaketime)."""
    node = nodes[1]
    node.run("dpkg -s libfaketime >/dev/null 2>&1 || (apt-get -qq update && apt-get -qq install -y libfaketime)")
    node.run(
        "mkdir -p /run/systemd/system/torchrun@tough.service.d && echo +0 >/run/faketime && "
        "printf '[Service]\\nEnvironment=FAKETIME_TIMESTAMP_FILE=/run/faketime FAKETIME_NO_CACHE=1 "
        "FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1\\n' "
        ">/run/systemd/system/torchrun@tough.service.d/clock.conf && systemctl daemon-reload"
    )
    try:
        tough_job.launch(play, nodes)
        starts, reached = len(events(node, "start")), last_step(node)
        node.run(f"echo {seconds:+d} >/run/faketime")
        moved = last_progress(nodes[0])
        # Longer than any member of the rendezvous is waited for.
        wait_for("steps of a minute", lambda: last_progress(nodes[0]) > moved + 60)
        assert last_step(node) > reached + EVERY
        assert len(events(node, "start")) == starts
        reached = last_step(node)
        kill_worker(nodes[0])
        goes_on(node, starts, reached)
    finally:
        tough_job.stop(play)
        node.run("rm -rf /run/systemd/system/torchrun@tough.service.d /run/faketime; systemctl daemon-reload")
