"""What a run says of itself: events, TensorBoard's files, heartbeats, and progress."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from conftest import Train
from torchrun_trainer import progress
from torchrun_trainer.heartbeat import Heartbeat
from torchrun_trainer.metrics import Metrics, read_events
from torchrun_trainer.monitor import finite
from torchrun_trainer.progress import Bar, Lines, Silent, progress_for

SHARES = ("data_share", "compute_share", "communication_share", "optimizer_share")


def test_a_run_tells_all_there_is_to_know(train: Train, tmp_path: Path):
    heartbeats = tmp_path / "heartbeats"
    heartbeats.mkdir()
    run = train(2, "--tensorboard", "--log-every", "4", TORCHRUN_HEARTBEAT_DIR=str(heartbeats), TORCHRUN_HOST="node1")
    assert run.succeeded, run.stderr
    kinds = [event["event"] for event in run.events]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert all(event["time"] > 1.7e9 for event in run.events)

    steps = run.of("step")
    assert [step["step"] for step in steps] == [1, 4, 8, 10]
    for step in steps:
        assert sum(step[name] for name in SHARES) == pytest.approx(1)
        assert all(step[name] >= 0 for name in SHARES)
        assert step["tokens_per_s"] == pytest.approx(16 * step["samples_per_s"])
        assert step["memory_bytes"] > 1 << 20
        assert step["grad_norm"] > 0
        assert step["lr"] > 0
        assert step["slowest_rank"] in (0, 1)
        assert step["slowest_host"] == "node1"
        assert step["slowest_ratio"] >= 1
        assert "mfu" not in step  # on a CPU nobody knows the peak
    assert steps[-1]["samples_per_s"] > 0

    start, end = run.of("start")[0], run.of("end")[0]
    assert (start["world_size"], start["backend"], start["precision"], start["samples_by_rank"]) == (
        *(2, "gloo", "float32"),
        [6, 6],
    )
    assert end["loss"] == steps[-1]["loss"]
    assert run.of("checkpoint")[-1]["step"] == 10

    (board,) = (run.folder / "tensorboard").iterdir()
    assert b"samples_per_s" in board.read_bytes()
    for rank in (0, 1):
        beat = json.loads((heartbeats / f"rank-{rank:05d}.json").read_text())
        assert (beat["rank"], beat["phase"], beat["step"]) == (rank, "ending", 10)
        assert 1 <= beat["step"] <= 10

    assert re.search(r"^step 10/10  loss \d\.\d{4}  \d+ samples/s  ETA 0:00:00$", run.stdout, re.MULTILINE)
    assert "world size 2 on cpu, float32; " in run.stdout
    assert run.stdout.count("finished after step 10") == 1
    assert run.stderr == ""


def test_without_tensorboard_there_are_no_files_of_it(train: Train):
    run = train(1, "--steps", "1")
    assert sorted(path.name for path in run.folder.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.yaml",
        "metrics.jsonl",
        "report.html",
    ]


def test_a_heartbeat_never_fails_and_is_not_written_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHRUN_HEARTBEAT_DIR", str(tmp_path / "none"))
    Heartbeat(3).beat(1)
    monkeypatch.delenv("TORCHRUN_HEARTBEAT_DIR")
    Heartbeat(3).beat(1)
    monkeypatch.setenv("TORCHRUN_HEARTBEAT_DIR", str(tmp_path))
    heart = Heartbeat(3)
    heart.beat(1)
    heart.beat(2)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["step"] == 1
    heart.beat(3, "saving")
    assert json.loads(path.read_text())["step"] == 3


def test_events_are_lines_of_json_and_a_torn_one_is_passed_over(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = Metrics(tmp_path)
    first.event("start", world_size=2)
    first.close()
    path.write_text(path.read_text() + '{"event": "step", "st')
    second = Metrics(tmp_path)
    second.event("step", step=1, loss=finite(float("nan")))
    second.close()
    assert [(event["event"], event.get("loss")) for event in read_events(path)] == [("start", None), ("step", None)]
    assert "NaN" not in path.read_text()
    Metrics(None).event("step", step=1)  # other ranks say nothing


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        """Return that it is."""
        return True


def test_there_is_a_bar_on_a_terminal_alone_and_on_rank_0_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(progress_for(True, 10), Lines)
    assert isinstance(progress_for(False, 10), Silent)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert isinstance(progress_for(False, 10), Silent)
    bar = progress_for(True, 10)
    assert isinstance(bar, Bar)
    bar.step(10, 1.5, 20.0, 0.1)
    bar.say("a word")
    bar.close()
    assert "10/10" in terminal.getvalue()
    assert "loss 1.5000" in terminal.getvalue()
    assert "a word" in terminal.getvalue()


def test_lines_come_every_few_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    output = io.StringIO()
    lines = Lines(100, output)
    for step in range(1, 101):
        now += 0.5
        lines.step(step, 2.0, 10.0, 0.5)
    said = output.getvalue().splitlines()
    assert len(said) == 11
    assert said[0] == "step 1/100  loss 2.0000  10 samples/s  ETA 0:00:50"
    assert said[-1].startswith("step 100/100 ")
