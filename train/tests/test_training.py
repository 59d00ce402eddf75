"""Real runs with real processes and gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Train, command
from torchrun_trainer.metrics import read_events


def test_two_ranks_learn_and_leave_everything_behind(train: Train):
    run = train(2, "--steps", "120", "--lr", "0.01", "--checkpoint-every", "50")
    assert run.status == 0, run.stderr
    (start,), (end,) = run.of("start"), run.of("end")
    assert start["world_size"] == 2
    assert (end["status"], end["step"]) == ("finished", 120)
    assert end["loss"] < start["unigram_entropy"] - 0.3
    assert run.of("step")[0]["step"] == 1
    names = sorted(path.name for path in (run.folder / "checkpoints").glob("step-*.pt"))
    assert names == ["step-00000050.pt", "step-00000100.pt", "step-00000120.pt"]
    assert (run.folder / "checkpoints/latest").read_text() == "step-00000120.pt\n"
    report = (run.folder / "report.html").read_text()
    assert "<svg" in report
    assert "http" not in report


def test_the_world_size_does_not_change_the_run(train: Train, tmp_path: Path):
    options = ["--steps", "12", "--batch-size", "10", "--log-every", "1"]  # 10 does not divide by 3
    losses = [train(nproc, *options, folder=tmp_path / str(nproc)).losses for nproc in (1, 3)]
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-6)
    assert losses[0][12] == pytest.approx(losses[1][12], rel=1e-4)


def test_a_resumed_run_is_the_uninterrupted_one_and_may_change_size(train: Train, tmp_path: Path):
    whole = train(2, "--steps", "20", "--log-every", "1", folder=tmp_path / "whole")
    options = ["--log-every", "1", "--checkpoint-every", "10"]
    parts = train(2, "--steps", "20", *options, folder=tmp_path / "parts")
    (parts.folder / "checkpoints/step-00000020.pt").unlink()  # as if it had been killed after step 10 was saved
    parts = train(2, "--steps", "20", *options, folder=tmp_path / "parts")
    assert parts.of("start")[-1]["start_step"] == 10
    assert parts.losses == whole.losses
    # And it goes on at another world size.
    alone = train(1, "--steps", "22", folder=tmp_path / "parts")
    assert alone.status == 0, alone.stderr
    assert alone.of("start")[-1]["start_step"] == 20
    assert alone.of("end")[-1]["step"] == 22


def test_sigterm_saves_and_is_no_failure(environment: dict[str, str], corpus_folder: Path):
    words = command(2, "--data", str(corpus_folder), "--steps", "100000", "--checkpoint-every", "100000")
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = Path(environment["TORCHRUN_RUN_DIR"], "metrics.jsonl")
    deadline = time.monotonic() + 60
    while not (metrics.exists() and '"step"' in metrics.read_text()):
        assert time.monotonic() < deadline, "no step within a minute"
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on to its workers
    process.communicate(timeout=60)
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    end = events[-1]
    assert (end["event"], end["status"]) == ("end", "stopped")
    latest = metrics.parent / "checkpoints/latest"
    assert latest.read_text() == f"step-{end['step']:08d}.pt\n"


def test_wrong_data_is_one_sentence_from_one_rank(train: Train):
    run = train(2, "--steps", "2", "--data", "/nowhere")
    assert run.status != 0
    assert run.stderr.count("--data /nowhere is no folder") == 1


def test_a_line_of_metrics_cut_off_by_a_crash_spoils_no_other(train: Train):
    run = train(1, "--steps", "2")
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "step", "step": 3, "lo')
    again = train(1, "--steps", "4")
    assert again.status == 0, again.stderr
    kinds = [event["event"] for event in read_events(path)]
    assert kinds.count("start") == kinds.count("end") == 2


@pytest.mark.parametrize("blocked", ["checkpoints", "report.html", "metrics.jsonl"])
def test_storage_that_takes_nothing_is_one_sentence(train: Train, tmp_path: Path, blocked: str):
    folder = tmp_path / "run"
    folder.mkdir()
    if blocked == "checkpoints":
        (folder / blocked).write_text("a file where a folder belongs")
    else:
        (folder / blocked).mkdir()
    run = train(1, "--steps", "2")
    assert run.status == 2
    assert "cannot be written" in run.stderr
    assert blocked in run.stderr
    assert "Traceback" not in run.stderr
