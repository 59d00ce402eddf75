"""A loss that is not a number stops the run, or its step is skipped: never silently, and never into a checkpoint."""

from __future__ import annotations

import torch
from conftest import Train
from odd_models import plugin

RUN = [
    *plugin("NanOnce"),
    "--steps",
    "12",
    "--checkpoint-every",
    "2",
    "--batch-size",
    "10",
]


def is_finite(weights: dict[str, torch.Tensor]) -> bool:
    """Whether all weights are."""
    return all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_it_stops_with_a_sentence_and_the_last_good_checkpoint(train: Train):
    for step, last in (("5", 4), ("6", 4)):
        run = train(2, *RUN, "--resume", "never", NAN_STEP=step)
        assert run.sentence.startswith(f"The loss of step {step} is nan: ")
        assert "--nonfinite skip" in run.sentence
        assert run.checkpoints[-1] == last
        assert is_finite(run.state()["model"])


def test_it_stops_too_where_losses_are_logged_seldom(train: Train):
    run = train(2, *RUN, "--log-every", "100", "--checkpoint-every", "100", NAN_STEP="5")
    assert run.sentence.startswith("The loss of step 5 is nan: ")


def test_the_step_is_skipped_on_all_ranks_if_that_is_wanted(train: Train):
    run = train(2, *RUN, "--nonfinite", "skip", NAN_STEP="5")
    assert run.succeeded, run.stderr
    (event,) = run.of("skipped")
    assert (event["step"], event["in_a_row"]) == (5, 1)
    assert "step 5 had no finite gradient" in run.stdout
    assert run.curve("loss", "grad_norm")[5] == (None, None)
    assert run.of("end")[-1]["step"] == 12
    assert is_finite(run.state()["model"])
    assert is_finite(run.state()["optimizer"]["state"][0])


def test_ten_skipped_in_a_row_stop_the_run_all_the_same(train: Train):
    words = [
        *plugin("NanAlways"),
        "--steps",
        "50",
        "--checkpoint-every",
        "50",
    ]
    run = train(2, *words, "--nonfinite", "skip")
    assert run.sentence.startswith("10 steps in a row had no finite gradient, up to step 12: ")
    assert [event["in_a_row"] for event in run.of("skipped")] == list(range(1, 11))
    assert run.checkpoints == []


def test_a_gradient_that_is_not_finite_stops_the_run_before_a_checkpoint(train: Train):
    words = [
        *plugin("InfiniteGradient"),
        "--steps",
        "4",
        "--checkpoint-every",
        "3",
    ]
    run = train(2, *words)
    assert run.sentence.startswith("The gradient of step ")
    assert run.checkpoints == []
