"""A job from launch to end, through the playbooks, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cluster
import pytest

from playbooks import Play

RUNS = "/srv/torchrun/runs"
# Long enough to be looked at and stopped; nobody waits for its end.
LONG = """-e '{"script_args": ["--steps", "100000", "--checkpoint-every", "20"]}'"""


def events_of(node: cluster.Node, job: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in node.run(f"cat {RUNS}/{job}/metrics.jsonl").stdout.splitlines()]


def test_site_again_changes_nothing(play: Play, nodes: list[cluster.Node]):
    assert nodes
    done = play("site.yml")
    assert done.status == 0, done.output
    assert done.changed == {}


def test_site_loads_rules_again_that_something_flushed(play: Play, nodes: list[cluster.Node]):
    nodes[0].run("nft flush ruleset")
    done = play("site.yml")
    assert done.status == 0, done.output
    assert set(done.changed) == {nodes[0].name}
    assert "policy drop" in nodes[0].run("nft list table inet torchrun").stdout


def test_a_running_job_is_left_alone_seen_stopped_and_continued(
    play: Play, nodes: list[cluster.Node], state_of_nodes: Callable[[], list[str]]
):
    job = "-e job=long -e nnodes=2"
    launched = play("train.yml", job, LONG, "-e wait=false")
    assert launched.status == 0, launched.output
    assert any(event["event"] == "step" for event in events_of(nodes[0], "long"))

    # Launched again: nothing changes, and it says so.
    units = "systemctl show torchrun@long -P MainPID,ActiveEnterTimestamp,InvocationID; cat /etc/torchrun/jobs/long.env"
    before = [node.run(units).stdout for node in nodes]
    again = play("train.yml", job, LONG, "-e wait=false")
    assert again.status == 0, again.output
    assert again.changed == {}
    assert "already runs" in " ".join(again.shown)
    assert [node.run(units).stdout for node in nodes] == before

    # Other options for the running job, and a second job on its slots, are refused by name.
    other = play("train.yml", "-e job=long -e nnodes=1", LONG)
    assert other.status != 0
    assert "long" in other.errors[0]
    assert "nnodes" in other.errors[0]
    second = play("train.yml", "-e job=second -e nnodes=2 -e master_port=29555")
    assert second.status != 0
    assert "long" in second.errors[0]

    # site.yml leaves it alone, and status and logs show it.
    assert play("site.yml").changed == {}
    assert [node.run(units).stdout for node in nodes] == before
    table = "\n".join(play("playbooks/status.yml").shown)
    assert "job long" in table
    assert [line.split()[:4] for line in table.splitlines() if line.strip().startswith("node")] == [
        ["node1", "running", "0", "0-1"],
        ["node2", "running", "1", "2"],
    ]
    lines = play("playbooks/logs.yml", "-e job=long -e lines=40").shown
    assert 0 < len(lines) <= 40
    assert any(line.startswith("node1:0: ") for line in lines)

    # A stop saves, is no failure, and the next launch goes on from there.
    stopped = play("playbooks/stop.yml", "-e job=long")
    assert stopped.status == 0, stopped.output
    end = events_of(nodes[0], "long")[-1]
    assert (end["event"], end["status"]) == ("end", "stopped")
    for node in nodes:
        assert node.run("systemctl is-failed torchrun@long", check=False).stdout.strip() == "inactive"
        assert node.run("systemctl is-enabled torchrun@long", check=False).stdout.strip() == "disabled"
    assert "stopped" in "\n".join(play("playbooks/status.yml", "-e job=long").shown)

    saved = int(str(end["step"]))
    more = f"""-e '{{"script_args": ["--steps", "{saved + 5}", "--checkpoint-every", "20"]}}'"""
    continued = play("train.yml", job, more)
    assert continued.status == 0, continued.output
    start = [event for event in events_of(nodes[0], "long") if event["event"] == "start"][-1]
    assert start["start_step"] == saved
    assert events_of(nodes[0], "long")[-1]["status"] == "finished"
    assert "world size 3" in "\n".join(continued.shown)
    assert state_of_nodes()


def test_a_job_that_fails_says_why_and_the_playbook_fails(play: Play, nodes: list[cluster.Node], tmp_path: Path):
    script = tmp_path / "boom.py"
    script.write_text(
        "import os\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['RANK'] == '2': raise ValueError('the boom of rank 2')\n"
        "dist.barrier()\n"
    )
    done = play("train.yml", f"-e job=boom -e nnodes=2 -e max_restarts=0 -e script={script}")
    assert done.status != 0
    assert "node2: rank 2" in done.errors[-1]
    assert "the boom of rank 2" in done.errors[-1]
    assert "Traceback" not in done.errors[-1]
    for node in nodes:
        assert node.run("systemctl is-enabled torchrun@boom", check=False).stdout.strip() == "disabled"


def test_wrong_arguments_are_not_tried_again(play: Play, nodes: list[cluster.Node]):
    done = play("train.yml", """-e job=usage -e nnodes=2 -e module=json.tool -e '{"script_args": ["--no-such"]}'""")
    assert done.status != 0
    assert "exited with 2" in done.errors[-1]
    assert "--no-such" in done.errors[-1]
    assert nodes[0].run(f"ls -d {RUNS}/usage/logs/*/*/attempt_1", check=False).returncode != 0


def test_of_two_launches_at_one_moment_one_is_refused(play: Play, nodes: list[cluster.Node], tmp_path: Path):
    script = tmp_path / "wait.py"
    script.write_text("import time; time.sleep(600)\n")
    words = f"-e job=both -e nnodes=2 -e wait=false -e script={script}"
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: play("train.yml", words), range(2)))
    try:
        won, lost = sorted(runs, key=lambda run: run.status)
        assert won.status == 0, won.output
        launch = json.loads(nodes[0].run(f"cat {RUNS}/both/job.yml").stdout)["launch"]
        assert all(
            f'TORCHRUN_LAUNCH="{launch}"' in node.run("cat /etc/torchrun/jobs/both.env").stdout for node in nodes
        )
        # The later one met the other's plan, or came when it ran already: then it was only shown.
        assert "Somebody else" in " ".join(lost.errors) if lost.status else "already runs" in " ".join(lost.shown)
    finally:
        assert play("playbooks/stop.yml", "-e job=both").status == 0


def test_a_job_that_cannot_start_on_one_node_starts_on_none(play: Play, nodes: list[cluster.Node]):
    nodes[1].run("systemctl mask torchrun@masked.service")
    try:
        done = play("train.yml", "-e job=masked -e nnodes=2")
    finally:
        nodes[1].run("systemctl unmask torchrun@masked.service")
    assert done.status != 0
    assert "torchrun@masked.service" in done.errors[0]
    for node in nodes:
        assert node.run("systemctl is-active torchrun@masked", check=False).stdout.strip() != "active"
        assert node.run("systemctl is-enabled torchrun@masked", check=False).stdout.strip() == "disabled"


def test_the_code_is_as_it_was_at_launch(play: Play, nodes: list[cluster.Node], tmp_path: Path):
    script = tmp_path / "mine.py"
    script.write_text("print('first edition')\n")
    done = play("train.yml", f"-e job=mine -e nnodes=2 -e script={script}")
    assert done.status == 0
    assert "node1:0: first edition" in done.output
    script.write_text("print('second edition')\n")
    assert nodes[1].run(f"cat {RUNS}/mine/code/mine.py").stdout == "print('first edition')\n"


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_ranks_follow_the_inventory_with_either_backend(
    play: Play, nodes: list[cluster.Node], tmp_path: Path, backend: str
):
    script = tmp_path / "world.py"
    script.write_text(
        "import os, pathlib\n"
        "path = pathlib.Path(os.environ['TORCHRUN_RUN_DIR'], 'rank-' + os.environ['RANK'])\n"
        "words = [os.environ.get(name, '') for name in ('TORCHRUN_HOST', 'WORLD_SIZE', 'COLOUR')]\n"
        "path.write_text(' '.join(words))\n"
    )
    words = f"-e job={backend} -e nnodes=2 -e rdzv_backend={backend} -e script={script}"
    done = play("train.yml", words, """-e '{"env": {"COLOUR": "blue $x"}}'""")
    assert done.status == 0, done.output
    found = [nodes[0].run(f"cat {RUNS}/{backend}/rank-{rank}").stdout for rank in range(3)]
    assert found == ["node1 3 blue $x", "node1 3 blue $x", "node2 3 blue $x"]
