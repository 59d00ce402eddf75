"""Whatever happens to processes, nodes, network and storage: the job goes on from its last checkpoint, with all ranks.

Each case does the harm for real and then reads what the job has written: how long the survivors needed to notice, that
no step since the last checkpoint but one was lost, that each start had the whole world, and that checkpoints are sound.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster
import pytest
from tough_job import (
    EVERY,
    HANG_SECONDS,
    OPTIONS,
    RUN,
    WORDS,
    container,
    events,
    goes_on,
    last_step,
    sound,
    wait_for,
)

from playbooks import Play

FAULTY = Path(__file__).parent / "programs/faulty"


@pytest.fixture
def tough(play: Play, nodes: list[cluster.Node]) -> Iterator[list[cluster.Node]]:
    """A job that runs on both nodes and has a checkpoint; stopped afterwards."""
    done = play("train.yml", WORDS, f"-e '{OPTIONS}'", "-e wait=false")
    assert done.status == 0, done.output
    wait_for("a checkpoint", lambda: last_step(nodes[0]) >= EVERY + 5)
    yield nodes
    assert play("playbooks/stop.yml", "-e job=tough").status == 0


@pytest.mark.long
@pytest.mark.parametrize("harm", ["kill", "raise", "exit", "memory"])
def test_a_worker_that_fails_is_started_again_and_its_error_is_kept(play: Play, nodes: list[cluster.Node], harm: str):
    settings = {
        "env": {"HARM": harm, "HARM_RANK": "2"},
        "script_args": ["--model", "faulty:build", "--steps", "40", "--checkpoint-every", "10", "--log-every", "1"],
    }
    run = f"/srv/torchrun/runs/harm-{harm}"
    done = play("train.yml", f"{WORDS} -e job=harm-{harm} -e workdir={FAULTY}", f"-e '{json.dumps(settings)}'")
    assert done.status == 0, done.output
    how = {
        "kill": "was killed by SIGKILL",
        "raise": "exited with 1: ValueError: the harm that was asked for",
        "exit": "exited with 3",
        "memory": "exited with 1: MemoryError",
    }[harm]
    assert f"node2: rank 2 {how}" in done.output
    assert "restart 1" in done.output
    starts = events(nodes[0], "start", run)
    assert [event["start_step"] for event in starts] == [0, 20]
    assert {event["world_size"] for event in starts} == {3}
    report = json.loads(nodes[0].run(f"cat {run}/nodes/node2.json").stdout)
    assert report["failures"][0]["rank"] == 2
    sound(nodes[0], run)


def kill_worker(node: cluster.Node) -> None:
    node.run("pkill -KILL -o -f 'python -u -m torchrun_[t]rainer'")


def kill_agent(node: cluster.Node) -> None:
    node.run("systemctl kill --kill-whom=main --signal=KILL torchrun@tough")


def reboot(node: cluster.Node) -> None:
    container(node, "restart", "--time=60")


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1], ids=["the host of node_rank 0", "another node"])
@pytest.mark.parametrize("harm", [kill_worker, kill_agent, reboot])
def test_the_job_survives_the_loss_of_a_process_or_a_reboot(
    tough: list[cluster.Node], harm: Callable[[cluster.Node], None], number: int
):
    node = tough[1 - number]  # the one that is not harmed sees the same storage
    starts, reached = len(events(node, "start")), last_step(node)
    harm(tough[number])
    if harm is kill_agent:
        # Its workers never outlive it: those that run now are of the unit's next start.
        pid = tough[number].run("systemctl show torchrun@tough -P MainPID").stdout.strip()
        of = tough[number].run("pgrep -f 'python -u -m torchrun_[t]rainer' | xargs -r ps -o ppid= -p", check=False)
        assert set(of.stdout.split()) <= {pid}
    goes_on(node, starts, reached)


def has_noticed(survivor: cluster.Node) -> bool:
    """Its workers were ended by the hang watch, or have met a connection that broke; or its agent did."""
    report = json.loads(survivor.run(f"cat {RUN}/nodes/{survivor.name}.json").stdout)
    return bool(report.get("failures")) or report["state"] != "running"


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1], ids=["the host of node_rank 0", "another node"])
def test_a_node_without_power_is_noticed_and_rejoins_by_itself(tough: list[cluster.Node], number: int):
    survivor = tough[1 - number]
    starts, reached = len(events(survivor, "start")), last_step(survivor)
    container(tough[number], "kill")
    took = wait_for("the survivor to notice", lambda: has_noticed(survivor))
    assert took < 3 * HANG_SECONDS
    container(tough[number], "start")
    wait_for("the node to be back", lambda: tough[number].run("true", check=False).returncode == 0)
    goes_on(survivor, starts, reached)


@pytest.mark.long
def test_a_node_that_hangs_is_noticed_and_goes_on_when_it_is_released(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    container(tough[1], "pause")
    try:
        wait_for("a stack", lambda: tough[0].run(f"ls {RUN}/logs/node1/stack-*", check=False).returncode == 0)
    finally:
        container(tough[1], "unpause")
    assert "rank 0 after step" in tough[0].run(f"cat {RUN}/nodes/node1.json").stdout
    goes_on(tough[0], starts, reached)


@pytest.mark.long
def test_a_partition_of_the_network_heals(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    rules = " ".join(
        f"nft add chain inet cut {hook} {{ type filter hook {hook} priority -300\\; }}; "
        f"nft add rule inet cut {hook} ip {side} {tough[0].address} drop;"
        for hook, side in (("input", "saddr"), ("output", "daddr"))
    )
    tough[1].run(f"nft add table inet cut; {rules}")
    try:
        wait_for("node1 to notice", lambda: has_noticed(tough[0]))
    finally:
        tough[1].run("nft delete table inet cut")
    goes_on(tough[0], starts, reached)


@pytest.mark.long
def test_a_full_disk_ends_the_job_with_a_sentence_and_resumes_from_the_last_good_checkpoint(
    play: Play, nodes: list[cluster.Node]
):
    words = (WORDS, f"-e '{OPTIONS}'")
    assert play("train.yml", *words, "-e wait=false").status == 0
    wait_for("a checkpoint", lambda: last_step(nodes[0]) >= EVERY + 5)
    # Full for the one rank that writes checkpoints: a small file system over their folder, with those of before in it.
    size = f"$(( $(du -sk {RUN}/checkpoints | cut -f1) + 100 ))k"
    nodes[0].run(
        f"mkdir -p /tmp/keep && cp -a {RUN}/checkpoints/. /tmp/keep/ && "
        f"mount -t tmpfs -o size={size},mode=777 none {RUN}/checkpoints && cp -a /tmp/keep/. {RUN}/checkpoints/"
    )
    try:
        failed = play("train.yml", *words)
        assert failed.status != 0
        assert "No space left on device" in failed.errors[-1]
    finally:
        nodes[0].run(f"umount {RUN}/checkpoints; rm -rf /tmp/keep", check=False)
    sound(nodes[0])
    starts = len(events(nodes[0], "start"))
    assert play("train.yml", *words, "-e wait=false").status == 0
    try:
        goes_on(nodes[0], starts, EVERY)
    finally:
        assert play("playbooks/stop.yml", "-e job=tough").status == 0


@pytest.mark.long
def test_a_storage_that_vanishes_and_comes_back(tough: list[cluster.Node]):
    starts, reached = len(events(tough[1], "start")), last_step(tough[1])
    tough[0].run("mount -t tmpfs -o ro none /srv/torchrun")
    try:
        wait_for("the job to stand still", lambda: stands_still(tough[1]))
    finally:
        tough[0].run("umount -l /srv/torchrun")
    goes_on(tough[1], starts, reached)


def stands_still(node: cluster.Node) -> bool:
    before = last_step(node)
    time.sleep(5)  # the time that is looked at, not one that is waited for
    return last_step(node) == before


@pytest.mark.long
def test_a_clock_that_is_set_is_no_reason_to_stop(play: Play, nodes: list[cluster.Node]):
    """One node's clock is moved by 60 s while the job trains, as seen by the job's processes (libfaketime)."""
    node = nodes[1]
    node.run("dpkg -s libfaketime >/dev/null 2>&1 || (apt-get -qq update && apt-get -qq install -y libfaketime)")
    node.run(
        "mkdir -p /run/systemd/system/torchrun@tough.service.d && echo +0 >/run/faketime && "
        "printf '[Service]\\nEnvironment=FAKETIME_TIMESTAMP_FILE=/run/faketime FAKETIME_NO_CACHE=1 "
        "FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1\\n' "
        ">/run/systemd/system/torchrun@tough.service.d/clock.conf && systemctl daemon-reload"
    )
    try:
        assert play("train.yml", WORDS, f"-e '{OPTIONS}'", "-e wait=false").status == 0
        wait_for("a checkpoint", lambda: last_step(node) >= EVERY + 5)
        reached = last_step(node)
        node.run("echo +60 >/run/faketime")
        # Long enough for every time-out of torchrun's and ours to pass.
        wait_for("many steps", lambda: last_step(node) > reached + 100)
        assert {event["world_size"] for event in events(node, "start")} == {3}
        starts, reached = len(events(node, "start")), last_step(node)
        kill_worker(nodes[0])
        goes_on(node, starts, reached)
    finally:
        play("playbooks/stop.yml", "-e job=tough")
        node.run("rm -rf /run/systemd/system/torchrun@tough.service.d /run/faketime; systemctl daemon-reload")


def killed_in_the_middle(playbook: str, words: list[str], when: Callable[[], bool]) -> None:
    """Run a playbook and kill all of it at some point, as a power cut of the controller does."""
    command = [
        str(cluster.TOOLS / "ansible-playbook"),
        "-i",
        str(Path(__file__).parent / "inventory"),
        playbook,
        *words,
    ]
    process = subprocess.Popen(
        command, cwd=cluster.ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for("the moment to kill the controller", lambda: when() or process.poll() is not None)
    with contextlib.suppress(ProcessLookupError):  # it was faster than this look
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.long
def test_a_controller_that_dies_in_the_middle_leaves_nothing_that_running_again_does_not_mend(
    play: Play, nodes: list[cluster.Node]
):
    words = [*WORDS.split(), "-e", OPTIONS]
    active = "systemctl is-active torchrun@tough"
    play("playbooks/stop.yml", "-e job=tough")
    killed_in_the_middle(
        "train.yml", words, lambda: any(node.run(active, check=False).returncode == 0 for node in nodes)
    )
    again = play("train.yml", WORDS, f"-e '{OPTIONS}'", "-e wait=false")
    assert again.status == 0, again.output
    wait_for("a checkpoint", lambda: last_step(nodes[0]) >= EVERY + 5)
    assert {event["world_size"] for event in events(nodes[0], "start")} == {3}
    killed_in_the_middle(
        "playbooks/stop.yml", ["-e", "job=tough"],
        lambda: any(node.run(active, check=False).stdout.strip() != "active" for node in nodes),
    )  # fmt: skip
    assert play("playbooks/stop.yml", "-e job=tough").status == 0
    for node in nodes:
        assert node.run(active, check=False).returncode != 0
        assert node.run("systemctl is-enabled torchrun@tough", check=False).stdout.strip() == "disabled"
        assert not node.run("pgrep -f torchrun_[t]rainer", check=False).stdout
    sound(nodes[0])


@pytest.mark.long
def test_site_yml_does_not_disturb_a_job_that_trains(play: Play, tough: list[cluster.Node]):
    starts = len(events(tough[0], "start"))
    reached = last_step(tough[0])
    done = play("site.yml")
    assert done.status == 0, done.output
    wait_for("more steps", lambda: last_step(tough[0]) > reached + 5)
    assert len(events(tough[0], "start")) == starts


@pytest.mark.long
def test_a_hang_of_one_worker_is_ended_and_the_stacks_of_all_are_kept(tough: list[cluster.Node]):
    starts, reached = len(events(tough[0], "start")), last_step(tough[0])
    tough[1].run("pkill -STOP -o -f 'python -u -m torchrun_[t]rainer'")
    goes_on(tough[0], starts, reached)
    stacks = {
        rank: tough[0].run(f"cat {RUN}/logs/node{node}/stack-rank-{rank}-*").stdout
        for rank, node in ((0, 1), (1, 1), (2, 2))
    }
    assert all("torchrun_trainer/loop.py" in text for text in stacks.values())
