"""A slow rank gets fewer samples, and the run stays the same; so it does with micro-batches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Train
from odd_models import plugin

UNEQUAL = [*plugin("Unequal"), "--batch-size", "16", "--steps", "40", "--checkpoint-every", "20", "--log-every", "5"]


def test_samples_move_to_the_fast_rank_and_the_losses_stay(train: Train, tmp_path: Path):
    equal = train(2, *UNEQUAL, folder=tmp_path / "equal")
    auto = train(2, *UNEQUAL, "--balance", "auto", folder=tmp_path / "auto")
    assert equal.succeeded, equal.stderr
    assert auto.succeeded, auto.stderr
    assert equal.of("plan") == []
    assert equal.of("step")[-1]["slowest_rank"] == 1
    assert equal.of("step")[-1]["slowest_ratio"] > 1.1
    plan = auto.of("plan")[-1]
    fast, slow = plan["samples_by_rank"]
    assert fast + slow == 16
    assert fast >= slow + 3  # 12 and 4 where nothing else runs
    assert plan["reason"] == "measured"
    assert "samples of a step by rank" in auto.stdout
    assert auto.losses == pytest.approx(equal.losses, rel=1e-4)

    # The plan is in the checkpoint, and a restart at the same shape begins with it.
    again = train(2, *UNEQUAL, "--balance", "auto", "--steps", "41", folder=tmp_path / "auto")
    assert again.of("start")[-1]["samples_by_rank"] == auto.state()["plan"] == [fast, slow]
    alone = train(1, *UNEQUAL, "--balance", "auto", "--steps", "42", folder=tmp_path / "auto")
    assert alone.of("start")[-1]["samples_by_rank"] == [16]


@pytest.mark.parametrize("most", ["1", "4", "5"])
def test_the_gradient_of_micro_batches_is_that_of_the_whole(most: str, train: Train, tmp_path: Path):
    words = ["--steps", "1", "--batch-size", "13", "--grad-clip", "1000"]
    whole = train(2, *words, folder=tmp_path / "whole")
    parts = train(2, *words, "--micro-batch", most, folder=tmp_path / "parts")
    assert parts.succeeded, parts.stderr
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    gradients = [run.state()["optimizer"]["state"] for run in (whole, parts)]
    for number, state in gradients[0].items():  # the first moment after one step is a tenth of the gradient
        one, other = state["exp_avg"], gradients[1][number]["exp_avg"]
        assert float((one - other).abs().max()) <= 1e-6 * float(one.abs().max()) + 1e-9


@pytest.mark.parametrize("hook", ["bf16", "powersgd"])
def test_compressed_gradients_train_as_well(hook: str, train: Train, tmp_path: Path):
    words = ["--steps", "60", "--lr", "0.01"]
    plain = train(2, *words, folder=tmp_path / "plain")
    packed = train(2, *words, "--comm-hook", hook, folder=tmp_path / hook)
    assert packed.succeeded, packed.stderr
    assert packed.losses[0] == plain.losses[0]
    assert packed.losses[-1] == pytest.approx(plain.losses[-1], rel=0.05)


@pytest.mark.parametrize("hook", ["none", "bf16", "powersgd"])
def test_a_resumed_run_is_exact_with_compressed_gradients_too(hook: str, train: Train, tmp_path: Path):
    words = ["--steps", "40", "--checkpoint-every", "20", "--comm-hook", hook]
    whole = train(2, *words)
    assert whole.succeeded, whole.stderr
    losses = whole.losses
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000040")  # as if it had been killed before
    again = train(2, *words)
    assert again.of("start")[-1]["start_step"] == 20
    assert again.losses == losses


def test_a_skipped_step_spoils_none_after_it_with_compressed_gradients(train: Train):
    words = [*plugin("NanOnce"), "--steps", "40", "--nonfinite", "skip", "--comm-hook", "powersgd"]
    run = train(2, *words, NAN_STEP="20")
    assert run.succeeded, run.stderr
    assert [event["step"] for event in run.of("skipped")] == [20]
