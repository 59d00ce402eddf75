"""The shape of the cluster changes the speed of a run, and not its result."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agents import run_agents
from conftest import SMALL, Train
from ranks import SOURCE, Outcome

# Agents of torchrun for every layout: minutes on a busy machine.
pytestmark = pytest.mark.slow

TASKS = {
    "lm": ["--steps", "200"],
    "image": ["--steps", "80", "--task", "image", "--batch-size", "10", "--width", "8"],
}


def test_the_layout_of_ranks_on_nodes_changes_no_bit(tmp_path: Path, corpus_folder: Path, data_folder: Path):
    words = [*SMALL, "--data", str(corpus_folder), "--steps", "200", "--batch-size", "10", "--log-every", "2"]
    environment = {"TORCHRUN_DATA_DIR": str(data_folder)}
    runs = [
        run_agents(layout, words, tmp_path / str(layout), tmp_path / f"logs-{layout}", environment)
        for layout in ((3,), (2, 1), (1, 1, 1))
    ]
    for run in runs:
        assert run.succeeded, run.stderr
        assert run.of("start")[0]["world_size"] == 3
        assert len(run.losses) == 101
        assert run.curve("loss", "grad_norm") == runs[0].curve("loss", "grad_norm")


def assert_close(run: Outcome, other: Outcome) -> None:
    """Assert that two runs are the same up to the order of sums."""
    assert run.succeeded, run.stderr
    assert run.losses[0] == pytest.approx(other.losses[0], rel=1e-6)
    assert max(run.curve("loss")) == max(other.curve("loss"))
    assert run.losses[-1] == pytest.approx(other.losses[-1], rel=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_the_number_of_ranks_does_not_change_the_run(task: str, train: Train, tmp_path: Path):
    steps = int(TASKS[task][1])
    words = [*TASKS[task], "--checkpoint-every", str(steps // 2), "--log-every", "50"]
    runs = {ranks: train(ranks, *words, folder=tmp_path / str(ranks)) for ranks in (1, 2, 3)}
    assert_close(runs[2], runs[1])
    assert_close(runs[3], runs[1])
    # As if it had been killed after half of the steps; then it goes on with other ranks.
    shutil.rmtree(tmp_path / f"2/checkpoints/step-{steps:08d}")
    resumed = train(3, *words, folder=tmp_path / "2")
    assert (resumed.of("start")[-1]["start_step"], resumed.of("start")[-1]["world_size"]) == (steps // 2, 3)
    assert_close(resumed, runs[1])


def test_torchrun_trains_and_leaves_everything_behind(tmp_path: Path, corpus_folder: Path, data_folder: Path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*SMALL, "--data", str(corpus_folder), "--steps", "60", "--lr", "0.01", "--checkpoint-every", "25"]
    folder = tmp_path / "run"
    done = subprocess.run(
        [*command, "-m", "torchrun_trainer", *words],
        env={
            "PYTHONPATH": str(SOURCE),
            "TORCHRUN_RUN_DIR": str(folder),
            "TORCHRUN_DATA_DIR": str(data_folder),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    run = Outcome((0,), folder, tmp_path)
    (start,), (end,) = run.of("start"), run.of("end")
    assert start["world_size"] == 2
    assert (end["status"], end["step"]) == ("finished", 60)
    assert end["loss"] < start["unigram_entropy"]
    assert run.checkpoints == [25, 50, 60]
    report = (folder / "report.html").read_text()
    assert "<svg" in report
    assert "http" not in report
    assert end["report"] == str(folder / "report.html")
