"""Runs whose checkpoints are damaged, or cannot be written."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Train
from ranks import Outcome
from test_checkpoint import Code, flip
from torchrun_trainer import checkpoint, snapshot
from torchrun_trainer.checkpoint import Progress


def fill_disk(rank: int) -> None:
    """Let files end at 16 KiB, as on a full disk."""
    del rank
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))


@pytest.mark.parametrize("every", [1, 2, 5, 40])  # 1: each step finds the write of the one before under way
def test_a_disk_that_fills_up_stops_the_run_and_keeps_the_last(train: Train, every: int):
    assert train(2, "--steps", "5").succeeded
    words = ["--steps", "40", "--log-every", "100", "--checkpoint-every", str(every)]
    run = train(2, *words, before=fill_disk)
    assert (
        "cannot be written (File too large): make room or mend the storage; the earlier ones are untouched."
        in run.sentence
    )
    assert run.state()["step"] == 5
    assert run.checkpoints == [5]
    assert train(2, "--steps", "8").of("start")[-1]["start_step"] == 5


def test_ranks_other_than_0_leave_the_sentence_to_torchrun(train: Train, tmp_path: Path):
    file = tmp_path / "error.json"
    run = train(2, "--steps", "5", before=fill_disk, TORCHELASTIC_ERROR_FILE=str(file))
    assert run.stderr.count("cannot be written (File too large)") == 1
    assert "cannot be written (File too large)" in json.loads(file.read_text())["message"]["message"]


def lose_storage(rank: int) -> None:
    """Let nothing reach the storage, as when its server has gone."""
    del rank

    def fsync(handle: int) -> None:
        del handle
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.fsync = fsync


def test_a_storage_that_goes_away_ends_all_ranks_so_that_they_are_started_again(train: Train):
    assert train(2, "--steps", "5").succeeded
    run = train(2, "--steps", "40", "--log-every", "100", "--checkpoint-every", "5", before=lose_storage)
    assert run.statuses == (1, 1)  # wrong usage has 2
    assert re.fullmatch(r"torchrun_trainer: \S+ cannot be written \(Input/output error\): .+\n", run.stderr)
    assert run.checkpoints == [5]
    assert train(2, "--steps", "8").of("start")[-1]["start_step"] == 5


class Late(threading.Thread):
    """A thread that does its work only when it is waited for: the slowest storage there can be."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._awaited = threading.Event()

    def run(self) -> None:
        """Work when it is waited for."""
        self._awaited.wait()
        super().run()

    def join(self, timeout: float | None = None) -> None:
        """Wait for it."""
        self._awaited.set()
        super().join(timeout)


def fill_slow_disk(rank: int) -> None:
    """Let files end at 16 KiB, and let that show when the next checkpoint is due."""
    fill_disk(rank)
    snapshot.Thread = Late


def test_ranks_end_together_where_a_write_fails_while_the_next_is_due(train: Train):
    assert train(2, "--steps", "5").succeeded
    run = train(2, "--steps", "40", "--log-every", "100", "--checkpoint-every", "3", before=fill_slow_disk)
    assert "step-00000006 cannot be written (File too large)" in run.sentence
    assert run.checkpoints == [5]


def damaged_run(train: Train, *more: str) -> Outcome:
    """Train, damage the newest checkpoint, and train on."""
    first = train(2, "--steps", "9", "--checkpoint-every", "3", *more)
    flip(first.folder / "checkpoints/step-00000009/state.pt", random.Random(1).randrange(1 << 20))  # noqa: S311
    return train(2, "--steps", "9", "--checkpoint-every", "3", *more)


def test_a_run_goes_on_from_the_one_before_a_damaged_one(train: Train):
    run = damaged_run(train)
    assert run.succeeded, run.stderr
    assert "step-00000009 is damaged (its checksum differs): it is passed over." in run.stdout
    assert run.of("start")[-1]["start_step"] == 6
    assert len(run.of("warning")) == 2
    assert run.checkpoints == [3, 6, 9]
    assert (run.folder / "checkpoints/step-00000009.aside").is_dir()


def test_a_checkpoint_with_code_is_refused_by_a_run(train: Train):
    run = train(1, "--steps", "2")
    folder = run.folder / "checkpoints"
    model_hash = checkpoint.read_manifest(folder / "step-00000002")["model_hash"]
    checkpoint.write(
        folder, Progress(3, 36), {"model": Code(), "versions": {}}, model_hash=model_hash, keep=3, keep_every=0
    )
    before = set(folder.iterdir())
    sentence = train(1, "--steps", "4").sentence
    assert "step-00000003 cannot be read: it holds something else than tensors and plain values." in sentence
    assert set(folder.iterdir()) == before
    assert not Path("harm").exists()


def test_begin_anew_is_what_never_says(train: Train):
    first = train(2, "--steps", "4")
    again = train(2, "--steps", "3", "--resume", "never")
    assert again.of("start")[-1]["start_step"] == 0
    assert again.checkpoints == [3]
    assert (first.folder / "checkpoints/step-00000004.aside").is_dir()
    # The report is of the new run alone.
    assert len(again.of("start")) == 2
    report = (again.folder / "report.html").read_text()
    assert "<td>starts</td><td>1</td>" in report
    assert "<td>3 of 3</td>" in report
    assert all(len(line.split()) <= 3 for line in re.findall(r'polyline points="([^"]*)"', report))


def test_another_weight_decay_holds_from_the_resume_on(train: Train):
    train(2, "--steps", "2", "--weight-decay", "0.1")
    run = train(2, "--steps", "4", "--weight-decay", "0.5")
    assert run.of("start")[-1]["start_step"] == 2
    assert {group["weight_decay"] for group in run.state()["optimizer"]["param_groups"]} == {0.5, 0.0}
