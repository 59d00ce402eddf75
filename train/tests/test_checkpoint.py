"""Checkpoints are whole or not there."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torchrun_trainer import checkpoint
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.model import GPT

CONFIG = Config(layers=1, width=16, heads=2, block_size=8, keep=2)


@pytest.fixture
def parts() -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(CONFIG)
    return model, torch.optim.AdamW(model.parameters())


def test_the_newest_are_kept_and_latest_names_the_last(tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, Progress(step, step), *parts, CONFIG)
    assert [path.name for path in checkpoint.all_in(tmp_path)] == ["step-00000003.pt", "step-00000002.pt"]
    assert (tmp_path / "latest").read_text().strip() == "step-00000003.pt"


def test_killed_while_writing_leaves_the_one_before(
    tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)

    def half(_: object, file: BinaryIO) -> None:
        file.write(b"half a checkpoint")
        raise KeyboardInterrupt  # not an error that could be handled: like a kill

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    path, warnings = checkpoint.newest_readable(tmp_path, CONFIG)
    assert path == tmp_path / "step-00000001.pt"
    assert warnings == []
    assert checkpoint.load(path, *parts, torch.device("cpu")) == Progress(1, 8)


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainerError, match="No space left on device"):
        checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    assert checkpoint.newest_readable(tmp_path, CONFIG)[0] == tmp_path / "step-00000001.pt"
    assert not list(tmp_path.glob(".*.new"))


def test_a_file_without_its_checksum_is_not_trusted(tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)
    checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    (tmp_path / "step-00000002.sha256").unlink()
    path, warnings = checkpoint.newest_readable(tmp_path, CONFIG)
    assert path == tmp_path / "step-00000001.pt"
    assert "step-00000002.pt" in warnings[0]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)
    newest = checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    newest.write_bytes(newest.read_bytes()[:-100] + b"\0" * 100)
    path, warnings = checkpoint.newest_readable(tmp_path, CONFIG)
    assert path == tmp_path / "step-00000001.pt"
    assert "step-00000002.pt is damaged" in warnings[0]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)
    with pytest.raises(TrainerError, match="another shape"):
        checkpoint.newest_readable(tmp_path, replace(CONFIG, layers=2))


def test_what_the_device_of_a_full_disk_says_is_one_sentence(tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # writing beyond fails, as on a full disk
    try:
        with pytest.raises(TrainerError, match="cannot be written") as raised:
            checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(raised.value)
    assert checkpoint.newest_readable(tmp_path, CONFIG)[0] == tmp_path / "step-00000001.pt"


@pytest.mark.parametrize("content", ["", "half a lin"])
def test_a_torn_checksum_is_a_damaged_checkpoint(
    tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer], content: str
):
    checkpoint.save(tmp_path, Progress(1, 8), *parts, CONFIG)
    checkpoint.save(tmp_path, Progress(2, 16), *parts, CONFIG)
    (tmp_path / "step-00000002.sha256").write_text(content)
    assert checkpoint.newest_readable(tmp_path, CONFIG)[0] == tmp_path / "step-00000001.pt"


def test_a_run_that_begins_before_a_checkpoint_never_loses_its_own_to_it(
    tmp_path: Path, parts: tuple[GPT, torch.optim.Optimizer]
):
    for step in (1, 8, 9):
        checkpoint.save(tmp_path, Progress(step, step), *parts, replace(CONFIG, keep=5))
    for step in (8, 9):  # both are damaged, and the run goes on from step 1
        checkpoint.path_of(tmp_path, step).write_bytes(b"damaged")
    assert len(checkpoint.set_aside_newer(tmp_path, 1)) == 2
    checkpoint.save(tmp_path, Progress(2, 2), *parts, CONFIG)
    checkpoint.save(tmp_path, Progress(3, 3), *parts, CONFIG)
    assert [path.name for path in checkpoint.all_in(tmp_path)] == ["step-00000003.pt", "step-00000002.pt"]
    assert checkpoint.newest_readable(tmp_path, CONFIG) == (tmp_path / "step-00000003.pt", [])
    assert (tmp_path / "step-00000009.pt.aside").read_bytes() == b"damaged"
