"""A run that was killed at any moment and started again is the uninterrupted one, to the last bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Start
from odd_models import plugin
from ranks import Outcome

RUN = [*plugin("Dropout"), "--steps", "30", "--checkpoint-every", "7"]
NEVER = 1 << 30


def die_at(operation: int, tell: Path, rank: int) -> None:
    """Let rank 0 kill itself at an operation on a file, counted over all checkpoints; keep the count in a file."""
    count = 0
    file = os.open(tell, os.O_WRONLY | os.O_CREAT)

    def hook(event: str, _: tuple[Any, ...]) -> None:
        nonlocal count
        if event.startswith(("open", "os.", "shutil.")) and threading.current_thread().name == "checkpoint":
            count += 1
            os.pwrite(file, str(count).encode(), 0)
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    if rank == 0:
        sys.addaudithook(hook)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the uninterrupted run counts its operations on files."""
    return tmp_path_factory.mktemp("counted") / "operations"


@pytest.fixture(scope="module")
def whole(start_in: Callable[[Path], Start], tmp_path_factory: pytest.TempPathFactory, counted: Path) -> Outcome:
    """The uninterrupted run."""
    run = start_in(tmp_path_factory.mktemp("whole"))(2, *RUN, before=partial(die_at, NEVER, counted)).finish()
    assert run.succeeded, run.stderr
    return run


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return where two states differ, in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [place]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        return [found for key in one for found in differences(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list):
        assert len(one) == len(other), place
        return [
            found
            for number, pair in enumerate(zip(one, other, strict=True))
            for found in differences(*pair, f"{place}/{number}")
        ]
    return [] if one == other else [place]


def assert_same(run: Outcome, whole: Outcome) -> None:
    """Assert that two runs came to the same, bit by bit, on the same way."""
    assert run.curve("loss", "grad_norm", "lr") == whole.curve("loss", "grad_norm", "lr")
    # Whether speed was measured long enough is of no weight with equal shares, and a restart measures anew.
    assert set(differences(run.state(), whole.state())) <= {"/calibrated"}
    assert (run.of("end")[-1]["status"], run.of("end")[-1]["step"]) == ("finished", 30)


def test_the_losses_do_depend_on_random_numbers_of_each_rank(whole: Outcome):
    one, other = whole.state()["random"]
    assert not torch.equal(one["torch"], other["torch"])
    assert not torch.equal(one["numpy"][1], other["numpy"][1])


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment(seed: int, start: Start, whole: Outcome):
    generator = random.Random(seed)  # noqa: S311
    victims = generator.choice([(0,), (1,), (0, 1)])
    ranks = start(2, *RUN)
    ranks.wait_for_step(generator.randint(1, 22))
    time.sleep(generator.uniform(0, 0.01))  # within a step, or between two
    ranks.signal(signal.SIGKILL, *victims)
    killed = ranks.finish()
    assert killed.statuses[victims[0]] == -signal.SIGKILL
    assert all(killed.statuses)  # the other, alone, ends with an error
    assert not killed.of("end")
    run = start(2, *RUN).finish()
    assert run.succeeded, run.stderr
    assert_same(run, whole)


@pytest.mark.parametrize("seed", range(12))
def test_killed_while_a_checkpoint_is_written(seed: int, start: Start, whole: Outcome, counted: Path, tmp_path: Path):
    operations = int(counted.read_text())
    assert operations > 50
    fatal = random.Random(seed).randint(seed * operations // 12 + 1, (seed + 1) * operations // 12)  # noqa: S311
    killed = start(2, *RUN, before=partial(die_at, fatal, tmp_path / "operations")).finish()
    assert killed.statuses[0] == -signal.SIGKILL
    run = start(2, *RUN).finish()
    assert run.succeeded, run.stderr
    assert_same(run, whole)
    left = [path.name for path in (run.folder / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == []


def test_a_line_of_metrics_cut_off_by_a_crash_spoils_no_other(start: Start):
    run = start(1, "--steps", "2").finish()
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "step", "step": 3, "lo')
    assert start(1, "--steps", "4").finish().succeeded
    torn = [line for line in path.read_text().splitlines() if not line.endswith("}")]
    assert torn == ['{"event": "step", "step": 3, "lo']


def test_a_finished_run_started_again_does_nothing(start: Start):
    run = start(2, "--steps", "3").finish()
    before = run.state()
    again = start(2, "--steps", "3").finish()
    assert again.succeeded, again.stderr
    assert "give more --steps" in again.stdout
    assert len(again.of("step")) == 3
    assert again.of("end")[-1]["loss"] == run.losses[-1]
    assert differences(again.state(), before) == []
