"""What the agent does with workers that fail or hang: what is kept of them, and who is started again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

LIBEXEC = Path(__file__).parents[2] / "roles/torchrun/files/libexec"
sys.path.insert(0, str(LIBEXEC))

import failures  # noqa: E402 (the folder is not a package: on a node its files stand alone)
import hang_watch  # noqa: E402
import run_state  # noqa: E402


class Failed:
    """A result of looking after workers: rank 2 exited with `exitcode`."""

    def __init__(self, exitcode: int) -> None:
        self.failures = {2: failure(exitcode=exitcode)}

    def is_failed(self) -> bool:
        return True


def failure(exitcode: int = 1, timestamp: int = 5, local_rank: int = 0) -> SimpleNamespace:
    """What torch tells of a worker that failed."""
    return SimpleNamespace(
        exitcode=exitcode, timestamp=timestamp, local_rank=local_rank, error_file="<N/A>", message="",
        signal_name=lambda: signal.Signals(-exitcode).name,
    )  # fmt: skip


@pytest.mark.usefixtures("unit_environment")
@pytest.mark.parametrize(("exitcode", "left"), [(2, 0), (1, 3), (-9, 3)])
def test_wrong_arguments_are_not_tried_again(exitcode: int, left: int):
    torchrun_agent = SimpleNamespace(_remaining_restarts=3)
    failures.noting(lambda *_: Failed(exitcode))(torchrun_agent, None)
    assert torchrun_agent._remaining_restarts == left


@pytest.mark.usefixtures("unit_environment")
def test_the_first_error_is_kept_though_attempts_follow_and_their_logs_go(tmp_path: Path):
    log = tmp_path / "logs/x/attempt_0/0/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "a warning\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "train.py", line 3, in <module>\n'
        "[rank2]:     step()\n"
        "[rank2]: ValueError: the first\n"
        "some library says goodbye\n"
    )
    torchrun_agent = SimpleNamespace(_remaining_restarts=3)
    look = failures.noting(lambda *_: Failed(1))
    run_state.report("running", ranks=[2, 2])
    look(torchrun_agent, None)
    shutil.rmtree(tmp_path / "logs")
    look(torchrun_agent, None)
    run_state.report("rendezvous")
    report = run_state.last_report()
    assert [found["message"] for found in report["failures"]] == ["ValueError: the first", ""]
    assert report["failures"][0]["traceback"][-2:] == ["    step()", "ValueError: the first"]


@pytest.mark.usefixtures("unit_environment")
@pytest.mark.parametrize("message", ["ValueError: no", {"message": "ValueError: no", "extraInfo": {}}])
def test_what_the_worker_has_recorded_is_its_message(message: object):
    found = failures.describe(2, SimpleNamespace(**{**vars(failure()), "error_file": "/e.json", "message": message}))
    assert found["message"] == "ValueError: no"


def test_a_long_traceback_keeps_its_heading_and_its_last_frames():
    frames = [f'  File "{number}.py", line 1, in f' for number in range(50)]
    found = failures.last_traceback(["Traceback (most recent call last):", *frames, "KeyError: 1"])
    assert found[0].startswith("Traceback")
    assert found[-2:] == [frames[-1], "KeyError: 1"]
    assert len(found) == failures.LAST_LINES


def beat(folder: Path, step: int, phase: str = "training", pid: int = 7) -> None:
    folder.mkdir(exist_ok=True)
    text = json.dumps({"rank": 0, "pid": pid, "step": step, "time": float(step), "phase": phase})
    (folder / "rank-00000.json").write_text(text)


def test_a_worker_is_silent_when_its_heartbeat_has_not_changed_for_long(tmp_path: Path):
    watch = hang_watch.HangWatch(tmp_path, 60)
    assert not watch.silent([7], 0.0)  # no heartbeat yet: before the first step
    beat(tmp_path, 1)
    assert not watch.silent([7], 100.0)
    assert not watch.silent([7], 159.0)
    assert list(watch.silent([7], 160.0)) == [7]
    beat(tmp_path, 2)
    assert not watch.silent([7], 170.0)
    # Of a process that is no worker any more nothing is expected, nor of one that saves.
    assert not watch.silent([8], 300.0)
    beat(tmp_path, 2, "saving")
    assert not watch.silent([7], 400.0)


@pytest.mark.usefixtures("unit_environment")
def test_a_silent_worker_is_ended_and_its_stack_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hang_watch, "LOOK_SECONDS", 0.0)
    (tmp_path / "logs").mkdir()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    beat(tmp_path / "beats", 4, pid=process.pid)
    group = SimpleNamespace(workers=[SimpleNamespace(id=process.pid, global_rank=2)])
    look = hang_watch.watching(lambda *_: "looked", hang_watch.HangWatch(tmp_path / "beats", 0))
    assert look(None, group) == "looked"
    assert look(None, group) == "looked"
    assert process.wait(timeout=30) == -signal.SIGKILL
    (hang,) = run_state.last_report()["hangs"]
    assert "rank 2 after step 4" in hang["silent"]
    assert Path(hang["stacks"][0]).name.startswith("stack-rank-2-")


@pytest.mark.usefixtures("unit_environment")
def test_a_host_that_was_away_while_the_job_was_launched_anew_leaves_it_alone(tmp_path: Path):
    assert not run_state.is_superseded()
    (tmp_path / "job.yml").write_text(json.dumps({"launch": "l2", "nodes": []}))
    assert run_state.is_superseded()
    done = subprocess.run([sys.executable, "-B", str(LIBEXEC / "agent.py")], check=False)
    assert done.returncode == run_state.EXIT_FAILED
    assert run_state.last_report() == {}
    (tmp_path / "job.yml").unlink()
    assert not run_state.is_superseded()
