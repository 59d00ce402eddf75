"""Ranks that do not fit together say in one sentence in what they differ, before anything is trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Start
from torchrun_trainer import hardware
from torchrun_trainer.distributed import agree_on
from torchrun_trainer.errors import TrainerError


def facts(**of_rank_1: Any) -> list[dict[str, Any]]:
    """Return the facts of two ranks that differ in something."""
    same = {
        "host": "node1",
        "device": "cpu",
        "torch": "2.13",
        "option --lr": 0.1,
        "expected world size": 2,
        "precisions": [],
    }
    return [same, same | {"host": "node2"} | of_rank_1]


def test_ranks_that_are_the_same_agree_whatever_their_hosts_and_hardware():
    agree_on(facts(precisions=["bfloat16"]))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("torch", "2.12", "Rank 1 on node2 has the torch 2.12, but rank 0 on node1 has 2.13: make them equal."),
        ("option --lr", 0.2, "Rank 1 on node2 has the option --lr 0.2, but rank 0 on node1 has 0.1: make them equal."),
        ("device", "cuda", "Rank 1 on node2 has the device cuda, but rank 0 on node1 has cpu: make them equal."),
        ("expected world size", 3, "Rank 1 on node2 was told of a world size of 3, but 2 ranks came: "),
    ],
)
def test_what_differs_is_named_with_both_ranks(name: str, value: Any, said: str):
    with pytest.raises(TrainerError) as raised:
        agree_on(facts(**{name: value}))
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def other_options(rank: int) -> None:
    """Give rank 1 another learning rate."""
    if rank == 1:
        sys.argv += ["--lr", "0.5"]


def test_ranks_started_with_other_options_end_with_one_sentence(start: Start, tmp_path: Path):
    run = start(2, before=other_options, TORCHRUN_HOST="here").finish()
    assert run.sentence == "Rank 1 on here has the option --lr 0.5, but rank 0 on here has 0.003: make them equal."
    assert not (tmp_path / "run").exists()


def test_the_precision_is_the_best_that_all_ranks_have():
    ampere, volta, cpu = ["bfloat16", "float16", "float32"], ["float16", "float32"], ["bfloat16", "float32"]
    assert hardware.common_precision("auto", [ampere, ampere]) == "bfloat16"
    assert hardware.common_precision("auto", [ampere, volta]) == "float16"
    assert hardware.common_precision("auto", [cpu, volta]) == "float32"
    assert hardware.common_precision("float32", [ampere]) == "float32"
