"""What runs on a node around torchrun: the guard in each worker, the agent, the report after the unit has stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIBEXEC = Path(__file__).parents[2] / "roles/torchrun/files/libexec"
sys.path.insert(0, str(LIBEXEC))

import after_stop  # noqa: E402 (the folder is not a package: on a node its files stand alone)
import guard  # noqa: E402
import run_state  # noqa: E402

WORLD = {
    "WORLD_SIZE": "3",
    "RANK": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "1",
    "TORCHRUN_WORLD_SIZE": "3",
    "TORCHRUN_NODE_RANK": "1",
}


def test_the_planned_world_is_accepted():
    assert guard.complaint(WORLD) is None


def test_a_node_that_ran_alone_is_refused():
    assert "WORLD_SIZE is 1" in (guard.complaint({**WORLD, "WORLD_SIZE": "1"}) or "")


def test_a_rank_order_that_differs_from_the_inventory_is_refused():
    assert "GROUP_RANK is 0" in (guard.complaint({**WORLD, "GROUP_RANK": "0"}) or "")


def test_an_elastic_world_may_be_smaller_but_not_below_its_minimum():
    elastic = {**WORLD, "TORCHRUN_WORLD_SIZE": "2:3", "GROUP_RANK": "0"}
    assert guard.complaint({**elastic, "WORLD_SIZE": "2"}) is None
    assert guard.complaint({**elastic, "WORLD_SIZE": "1"}) is not None


def test_the_guard_becomes_the_program_and_reports_the_ranks(tmp_path: Path, unit_environment: dict[str, str]):
    program = tmp_path / "program.py"
    program.write_text("import sys, os; print(os.environ['RANK'], sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, str(LIBEXEC / "guard.py"), str(program), "--lr", "1"],
        env={**os.environ, **unit_environment, **WORLD},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "2 ['--lr', '1']"
    report = json.loads((tmp_path / "nodes/node2.json").read_text())
    assert (report["state"], report["ranks"], report["world_size"]) == ("running", [2, 2], 3)


def test_the_guard_ends_a_wrong_world_before_the_program_runs(tmp_path: Path, unit_environment: dict[str, str]):
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    done = subprocess.run(
        [sys.executable, str(LIBEXEC / "guard.py"), str(program)],
        env={**os.environ, **unit_environment, **WORLD, "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == run_state.EXIT_FAILED
    assert "ran" not in done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("code", "status", "outcome", "state"),
    [
        ("exited", "0", "", "finished"),
        ("exited", "0", "stopped", "stopped"),
        ("exited", "143", "stopped", "stopped"),
        ("exited", "143", "", "interrupted"),
        ("killed", "TERM", "", "interrupted"),
        ("exited", "70", "failed", "failed"),
        ("exited", "75", "", "restarting"),
        ("killed", "KILL", "", "restarting"),
    ],
)
def test_the_state_after_the_agent_has_ended(code: str, status: str, outcome: str, state: str):
    assert after_stop.state_after(code, status, outcome) == state


@pytest.mark.usefixtures("unit_environment")
def test_the_first_to_conclude_is_right_and_another_launch_is_not_ours(monkeypatch: pytest.MonkeyPatch):
    run_state.conclude("stopped")
    run_state.conclude("finished")
    assert run_state.outcome()["status"] == "stopped"
    monkeypatch.setenv("TORCHRUN_LAUNCH", "l2")
    assert run_state.outcome() == {}


def agent(unit_environment: dict[str, str], torch: Path, **changes: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **unit_environment, "TORCHRUN_ARGV": "[]", "PYTHONPATH": str(torch), **changes}
    return subprocess.Popen(
        [sys.executable, str(LIBEXEC / "agent.py")],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def torch_stand_in(tmp_path: Path) -> Path:
    """Return a folder with a package named torch whose torchrun does what the variable BEHAVIOUR says."""
    elastic = tmp_path / "stand_in/torch/distributed/elastic"
    for folder in ("multiprocessing", "agent/server"):
        (elastic / folder).mkdir(parents=True)
    for folder in (elastic.parents[1], elastic.parent, elastic, elastic / "multiprocessing", elastic / "agent"):
        (folder / "__init__.py").touch()
    (elastic / "agent/server/__init__.py").touch()
    (elastic / "rendezvous").mkdir()
    (elastic / "rendezvous/__init__.py").touch()
    (elastic / "rendezvous/dynamic_rendezvous.py").write_text(
        "class _BackendRendezvousStateHolder:\n    def _sanitize(self): pass\n"
        "class _RendezvousJoinOp:\n    def __call__(self, context, deadline): pass\n"
        "def _should_keep_alive(context): pass\n"
    )
    (elastic / "agent/server/api.py").write_text("class SimpleElasticAgent: pass\n")
    (elastic / "agent/server/local_elastic_agent.py").write_text(
        "class LocalElasticAgent:\n    def _monitor_workers(self, group): return group\n"
    )
    (elastic / "multiprocessing/api.py").write_text("class SignalException(Exception): pass\n")
    (elastic / "multiprocessing/errors.py").write_text("class ChildFailedError(Exception): pass\n")
    (elastic.parent / "run.py").write_text(
        "import os, signal\n"
        "from torch.distributed.elastic.agent.server.api import SimpleElasticAgent\n"
        "from torch.distributed.elastic.multiprocessing.api import SignalException\n"
        "def stop(*_): raise SignalException()\n"
        "def main(argv):\n"
        "    behaviour = os.environ['BEHAVIOUR']\n"
        "    if behaviour == 'stopped': raise SignalException()\n"
        "    if behaviour == 'lost': raise RuntimeError('connection lost')\n"
        "    signal.signal(signal.SIGTERM, stop)\n"
        "    print('the workers are done', flush=True)\n"
        "    SimpleElasticAgent()._exit_barrier()\n"
    )
    return tmp_path / "stand_in"


def other_node(tmp_path: Path, state: str) -> None:
    """Let node1 report a state."""
    (tmp_path / "nodes/node1.json").write_text(json.dumps({"launch": "l1", "host": "node1", "state": state}))


@pytest.mark.parametrize(("behaviour", "status"), [("stopped", 143), ("lost", 75)])
def test_the_exit_status_tells_systemd_what_happened(
    unit_environment: dict[str, str], torch_stand_in: Path, behaviour: str, status: int
):
    process = agent(unit_environment, torch_stand_in, BEHAVIOUR=behaviour)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("state", "status"),
    [("done", 0), ("finished", 0), ("interrupted", 75), ("restarting", 75), ("rendezvous", 75)],
)
def test_a_job_is_finished_only_when_the_workers_of_all_nodes_are_done(
    unit_environment: dict[str, str], torch_stand_in: Path, tmp_path: Path, state: str, status: int
):
    other_node(tmp_path, state)
    process = agent(unit_environment, torch_stand_in, BEHAVIOUR="done")
    process.communicate(timeout=30)
    assert process.returncode == status


def test_an_elastic_job_does_without_a_node_that_waits(
    unit_environment: dict[str, str], torch_stand_in: Path, tmp_path: Path
):
    other_node(tmp_path, "rendezvous")
    process = agent(unit_environment, torch_stand_in, BEHAVIOUR="done", TORCHRUN_WORLD_SIZE="1:3")
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_job_that_failed_for_good_is_not_tried_again(unit_environment: dict[str, str], torch_stand_in: Path):
    run_state.conclude("failed")
    process = agent(unit_environment, torch_stand_in, BEHAVIOUR="finished")
    process.communicate(timeout=30)
    assert process.returncode == run_state.EXIT_FAILED


def test_a_stop_ends_an_agent_that_waits_for_the_others(
    unit_environment: dict[str, str], torch_stand_in: Path, tmp_path: Path
):
    other_node(tmp_path, "running")
    process = agent(unit_environment, torch_stand_in, BEHAVIOUR="done")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "the workers are done"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == run_state.EXIT_STOPPED


def test_an_agent_waits_for_the_storage_before_it_does_anything(
    unit_environment: dict[str, str], torch_stand_in: Path, tmp_path: Path
):
    other_node(tmp_path, "done")
    stand_in, away = (tmp_path.with_name(f"{tmp_path.name}-{name}") for name in ("stand-in", "away"))
    torch_stand_in.rename(stand_in)
    tmp_path.rename(away)
    tmp_path.mkdir()  # what is there without the storage
    process = agent(unit_environment, stand_in, BEHAVIOUR="done")
    assert process.stdout is not None
    assert f"waiting for the storage: {tmp_path}" in process.stdout.readline()
    assert not list(tmp_path.iterdir())
    tmp_path.rmdir()
    away.rename(tmp_path)
    process.communicate(timeout=30)
    assert process.returncode == 0
