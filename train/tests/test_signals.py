"""SIGTERM to any rank at any moment ends the run on all ranks after the same step, with a checkpoint of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Start
from odd_models import plugin
from ranks import Outcome
from test_resume import differences
from torchrun_trainer import corpus

RUN = [*plugin("Dropout"), "--steps", "120", "--checkpoint-every", "50"]


@pytest.fixture(scope="module")
def whole(start_in: Callable[[Path], Start], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The uninterrupted run."""
    return start_in(tmp_path_factory.mktemp("whole"))(2, *RUN).finish()


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGTERM, (0,)), (signal.SIGTERM, (1,)), (signal.SIGTERM, (0, 1)), (signal.SIGINT, (1,))],
)
def test_all_ranks_stop_after_the_same_step_and_go_on_later(
    number: int, told: tuple[int, ...], start: Start, whole: Outcome
):
    generator = random.Random(len(told) * 10 + told[0])  # noqa: S311
    ranks = start(2, *RUN)
    ranks.wait_for_step(generator.randint(1, 70))
    time.sleep(generator.uniform(0, 0.01))  # within a step, or between two
    ranks.signal(number, *told)
    stopped = ranks.finish()
    assert stopped.statuses == (0, 0), stopped.stderr
    end = stopped.of("end")[-1]
    assert end["status"] == "stopped"
    assert max(stopped.curve("loss")) == end["step"] < 120
    assert stopped.checkpoints[-1] == stopped.state()["step"] == end["step"]

    run = start(2, *RUN).finish()
    assert run.of("start")[-1]["start_step"] == end["step"]
    assert run.of("end")[-1]["status"] == "finished"
    assert run.curve("loss", "grad_norm", "lr") == whole.curve("loss", "grad_norm", "lr")
    assert differences(run.state(), whole.state()) == []


def prepare_for_ever(rank: int) -> None:
    """Let preparing the data take for ever, and tell that it has begun."""
    if rank == 0:

        def wait(content: bytes) -> bytes:
            Path(os.environ["TORCHRUN_DATA_DIR"], "begun").touch()
            threading.Event().wait()
            return content

        corpus.text_of = wait


def test_a_signal_while_data_is_prepared_ends_all_at_once(start: Start, tmp_path: Path):
    ranks = start(2, before=prepare_for_ever, TORCHRUN_DATA_DIR=str(tmp_path))
    ranks.wait_until((tmp_path / "begun").exists)
    ranks.signal(signal.SIGTERM, 0, 1)
    assert ranks.finish().statuses == (-signal.SIGTERM, -signal.SIGTERM)
    assert not (tmp_path / "run").exists()


def test_a_signal_before_the_first_step_stops_after_it(start: Start):
    ranks = start(2, "--steps", "100000")
    ranks.wait_until((ranks.folder / "metrics.jsonl").exists, pause=0)
    ranks.signal(signal.SIGTERM, 0)
    run = ranks.finish()
    assert run.statuses == (0, 0), run.stderr
    assert run.of("end")[-1]["status"] == "stopped"
    assert run.checkpoints == [run.of("end")[-1]["step"]]
