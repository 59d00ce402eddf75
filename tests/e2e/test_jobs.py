"""The life of jobs after their first launch: followed, resumed, restarted, several at once, listed, removed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster
import pytest

from playbooks import Play, Run, kill_in_the_middle

INVENTORY = Path(__file__).parent / "inventory"
RUNS = "/srv/torchrun/runs"
SECRET = "hunter2 $x"  # noqa: S105 (of a test)
# Writes down what it was given, and waits until it is told that it is enough.
SCRIPT = """
import hashlib, os, pathlib, sys, time
import iniconfig
run = pathlib.Path(os.environ["TORCHRUN_RUN_DIR"])
if os.environ["RANK"] == "0":
    token = hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest()[:8]
    with (run / "seen").open("a") as file:
        print(os.environ["WORLD_SIZE"], token, *sys.argv[1:], file=file)
while not (run / "enough").exists():
    time.sleep(0.2)
"""
QUICK = "import os; print('world', os.environ['WORLD_SIZE'])\n"


def succeeded(done: Run) -> Run:
    assert done.status == 0, done.output
    return done


def test_a_job_is_stopped_resumed_on_fewer_nodes_and_restarted_with_all_it_had(
    play: Play, nodes: list[cluster.Node], tmp_path: Path
):
    (tmp_path / "wait.py").write_text(SCRIPT)
    (tmp_path / "r.txt").write_text("iniconfig==2.0.0\n")
    (tmp_path / "secret.env").write_text(f"TOKEN={SECRET}\n")
    options = """-e nnodes=2 -e wait=false -e '{"script_args": ["--words", "a b"]}'"""
    files = f"-e script={tmp_path}/wait.py -e requirements={tmp_path}/r.txt -e env_file={tmp_path}/secret.env"
    succeeded(play("train.yml", "-e job=again", options, files))
    for path in tmp_path.iterdir():  # what it needs from now on is on the nodes
        path.unlink()

    # While it runs, resuming changes nothing, and other options are refused by name.
    running = succeeded(play("playbooks/resume.yml", "-e job=again -e wait=false"))
    assert running.changed == {}
    assert "already runs" in " ".join(running.shown)
    other = play("playbooks/resume.yml", "-e job=again -e nnodes=1")
    assert other.status != 0
    assert "nnodes was 2, now 1" in other.errors[0]

    # A stop that is killed in the middle is finished by the next one.
    kill_in_the_middle(
        "playbooks/stop.yml", "-e", "job=again", inventory=INVENTORY,
        when=lambda: "disabled" in [
            node.run("systemctl is-enabled torchrun@again", check=False).stdout.strip() for node in nodes
        ],
    )  # fmt: skip
    succeeded(play("playbooks/stop.yml", "-e job=again"))
    for node in nodes:
        assert node.run("systemctl is-active torchrun@again", check=False).stdout.strip() == "inactive"
        assert node.run("systemctl is-enabled torchrun@again", check=False).stdout.strip() == "disabled"
    assert json.loads(nodes[0].run(f"cat {RUNS}/again/outcome.json").stdout)["status"] == "stopped"

    # Fewer nodes, then all of them again: the second has the secrets from the first.
    resumed = succeeded(play("playbooks/resume.yml", "-e job=again -e nnodes=1 -e wait=false", "-vvv --diff"))
    restarted = succeeded(play("playbooks/restart.yml", "-e job=again -e nnodes=2 -e wait=false", "-vvv"))
    token = hashlib.sha256(SECRET.encode()).hexdigest()[:8]
    seen = nodes[0].run(f"cat {RUNS}/again/seen").stdout.splitlines()
    assert seen == [f"{world} {token} --words a b" for world in (3, 2, 3)]
    assert nodes[0].run(f"stat -c %a {RUNS}/again/requirements.txt").stdout == "600\n"
    told = [done.output + str(done.events) for done in (running, resumed, restarted)]
    told += [
        node.run(f"grep -rs . {RUNS}/again; journalctl --no-pager --quiet; ps -ewwo args").stdout for node in nodes
    ]
    assert not [text for text in told if "hunter2" in text]

    # It ends while somebody follows it; after that there is nothing to resume.
    nodes[1].run(f"touch {RUNS}/again/enough")
    followed = succeeded(play("playbooks/follow.yml", "-e job=again"))
    assert "job again finished: world size 3" in followed.shown[-1 - next(
        index for index, line in enumerate(reversed(followed.shown)) if "finished" in line
    )]  # fmt: skip
    assert followed.changed == {}
    finished = play("playbooks/resume.yml", "-e job=again")
    assert "has finished" in finished.errors[0]
    assert "No host knows a job named agian" in play("playbooks/follow.yml", "-e job=agian").errors[0]


@pytest.mark.long
def test_a_job_goes_on_without_a_node_that_is_away_and_the_node_leaves_it_alone_when_it_is_back(
    play: Play, nodes: list[cluster.Node], tmp_path: Path, stopped_afterwards: list[str]
):
    (tmp_path / "sleep.py").write_text("import time; time.sleep(600)\n")
    stopped_afterwards.append("lost")
    succeeded(play("train.yml", f"-e job=lost -e nnodes=2 -e wait=false -e script={tmp_path}/sleep.py"))
    podman, container = cluster.ROOT / "local/podman", nodes[1].variables["local_nodes_container"]
    subprocess.run([podman, "kill", container], check=True, capture_output=True)
    try:
        stopped = play("playbooks/stop.yml", "-e job=lost")
        assert "node2 could not be reached" in stopped.errors[-1]
        succeeded(play("playbooks/resume.yml", "-e job=lost -e nnodes=1 -e wait=false"))
    finally:
        subprocess.run([podman, "start", container], check=True, capture_output=True)
    launch = json.loads(nodes[0].run(f"cat {RUNS}/lost/job.yml").stdout)["launch"]
    deadline = time.monotonic() + 60
    while nodes[1].run("systemctl is-enabled torchrun@lost", check=False).stdout.strip() != "disabled":
        assert time.monotonic() < deadline, "its unit is still wanted"
        time.sleep(1)
    assert nodes[1].run("systemctl is-active torchrun@lost", check=False).stdout.strip() != "active"
    assert nodes[0].run("systemctl is-active torchrun@lost").stdout.strip() == "active"
    assert json.loads(nodes[0].run(f"cat {RUNS}/lost/nodes/node1.json").stdout)["launch"] == launch


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    path = tmp_path / "quick.py"
    path.write_text(QUICK)
    return path


@pytest.fixture
def stopped_afterwards(play: Play) -> Iterator[list[str]]:
    """A list of jobs that are stopped when the test is over."""
    jobs: list[str] = []
    yield jobs
    for job in jobs:
        play("playbooks/stop.yml", f"-e job={job}")


def test_two_jobs_share_a_node_without_any_option_for_it(
    play: Play, nodes: list[cluster.Node], tmp_path: Path, stopped_afterwards: list[str]
):
    (tmp_path / "sleep.py").write_text("import time; time.sleep(600)\n")
    words = f"-e nnodes=1 -e nproc_per_node=1 -e wait=false -e script={tmp_path}/sleep.py"
    for job in ("one", "two"):
        stopped_afterwards.append(job)
        succeeded(play("train.yml", f"-e job={job}", words))
    found = nodes[0].run("grep -h RDZV_ENDPOINT /etc/torchrun/jobs/one.env /etc/torchrun/jobs/two.env").stdout
    first, second = (int(line.rpartition(":")[2].strip('"')) for line in found.splitlines())
    assert second > first >= 29400
    again = succeeded(play("train.yml", "-e job=two", words))
    assert again.changed == {}
    assert "job two already runs" in " ".join(again.shown)
    refused = play("train.yml", "-e job=three", words.replace("nproc_per_node=1", f"master_port={first}"))
    assert "The job one has its rendezvous on port" in refused.errors[0]
    table = "\n".join(succeeded(play("playbooks/status.yml")).shown)
    assert all(f"job {job} (launch" in table for job in ("one", "two"))


def test_runs_are_listed_and_old_ones_removed(
    play: Play, nodes: list[cluster.Node], quick: Path, state_of_nodes: Callable[[], list[str]]
):
    words = f"-e nnodes=1 -e script={quick}"
    for _ in range(2):
        succeeded(play("train.yml", "-e job=quick", words))
    quick.write_text("raise ValueError('the boom of ' + 'x' * 200)\n")
    assert play("train.yml", "-e job=boom -e max_restarts=0", words).status != 0
    nodes[0].run(
        f"mkdir -p {RUNS}/foreign/code /opt/torchrun/layers/layer-0123456789ab; touch {RUNS}/foreign/mine; "
        "touch -d '2 hours ago' /opt/torchrun/layers/layer-0123456789ab; "
        "echo 'TORCHRUN_JOB=\"nowhere\"' > /etc/torchrun/jobs/nowhere.env"
    )

    shown = succeeded(play("playbooks/status.yml")).shown
    assert max(map(len, shown)) <= 100
    rows = [line.split() for line in shown[shown.index("runs of quick") + 2 :]][:2]
    assert [row[1] for row in rows] == ["finished", "finished"]
    assert rows[0][0] > rows[1][0]
    failed = shown[shown.index("runs of boom") + 2 :]
    assert failed[0].split()[1] == "failed"
    assert failed[1].strip().startswith("node1: rank 0 exited with 1: ValueError: the boom of xxx")
    assert "job quick (launch" not in "\n".join(shown)

    before = state_of_nodes()
    listed = succeeded(play("playbooks/clean.yml", "-e keep=1 --check")).shown
    assert any(f"quick.{rows[1][0]}" in line and "would remove" in line for line in listed)
    assert state_of_nodes() == before
    succeeded(play("playbooks/clean.yml", "-e keep=1"))
    left = nodes[1].run(f"ls {RUNS}").stdout.split()
    assert {"quick", "boom", "foreign"} <= set(left)
    assert f"quick.{rows[1][0]}" not in left
    gone = "ls /opt/torchrun/layers/layer-0123456789ab /etc/torchrun/jobs/nowhere.env"
    assert nodes[0].run(gone, check=False).stdout == ""
    assert succeeded(play("playbooks/clean.yml", "-e keep=1")).changed == {}

    # What could be resumed goes only when that is said, and with it the job's environment on the nodes.
    assert "boom" in " ".join(succeeded(play("playbooks/clean.yml", "-e keep=0 -e job=boom")).shown)
    assert nodes[0].run(f"ls {RUNS}/boom/job.yml").stdout
    succeeded(play("playbooks/clean.yml", "-e keep=0 -e job=boom -e unfinished=true"))
    assert nodes[0].run(f"ls -d {RUNS}/boom /etc/torchrun/jobs/boom.env", check=False).stdout == ""
    assert nodes[0].run(f"ls {RUNS}/foreign/mine {RUNS}/quick/job.yml").stdout.count("\n") == 2
    nodes[0].run(f"rm -r {RUNS}/foreign")
