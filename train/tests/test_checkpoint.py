"""Checkpoints are whole or not there; damaged ones are passed over; what cannot be written loses nothing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchrun_trainer import checkpoint
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.errors import StorageError, TrainerError

STATE = {"weights": torch.arange(500, dtype=torch.float32), "versions": {"torch": "2"}, "plan": [6, 6]}


def save(folder: Path, *steps: int, keep: int = 3, keep_every: int = 0) -> Path:
    """Write checkpoints, and return the path of the last."""
    for step in steps:
        path = checkpoint.write(
            folder,
            Progress(step, 8 * step),
            STATE | {"step": step},
            model_hash="hash",
            keep=keep,
            keep_every=keep_every,
        )
    return path


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """Return (the step of the checkpoint that a run would go on from, the warnings)."""
    path, warnings = checkpoint.newest_readable(folder, "hash")
    if path:
        checkpoint.read(path)
    return checkpoint.step_of(path) if path else None, warnings


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all checkpoints of a folder, newest first."""
    return [checkpoint.step_of(path) for path in checkpoint.all_in(folder)]


def test_the_newest_are_kept_and_every_nth_and_latest_names_the_last(tmp_path: Path):
    save(tmp_path, *range(1, 13), keep=2, keep_every=5)
    assert steps_in(tmp_path) == [12, 11, 10, 5]
    assert (tmp_path / "latest").read_text() == "step-00000012\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_was_saved_is_read(tmp_path: Path):
    state = checkpoint.read(save(tmp_path, 3))
    assert torch.equal(state["weights"], STATE["weights"])
    assert (state["step"], state["plan"]) == (3, [6, 6])


def test_the_steps_of_long_runs_are_in_order(tmp_path: Path):
    save(tmp_path, 99_999_999, 100_000_000)
    assert newest(tmp_path) == (100_000_000, [])


def test_the_manifest_says_what_it_is_a_checkpoint_of(tmp_path: Path):
    path = save(tmp_path, 3)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["samples"], manifest["model_hash"]) == (3, 24, "hash")
    assert manifest["files"]["state.pt"]["bytes"] == (path / "state.pt").stat().st_size


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path / "state.pt", 1000),
    "empty": lambda path: os.truncate(path / "state.pt", 0),
    "without its state": lambda path: (path / "state.pt").unlink(),
    "without a manifest": lambda path: (path / "manifest.json").unlink(),
    "with an empty manifest": lambda path: (path / "manifest.json").write_text(""),
    "with a torn manifest": lambda path: os.truncate(path / "manifest.json", 60),
    "with a manifest of something else": lambda path: (path / "manifest.json").write_text("[1, 2]"),
    "with a manifest that is no text": lambda path: (path / "manifest.json").write_bytes(b"\xff\x00"),
    "an empty folder": lambda path: [file.unlink() for file in path.iterdir()],
    "a file": lambda path: (shutil.rmtree(path), path.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path: Path, damage: str):
    save(tmp_path, 1)
    DAMAGES[damage](save(tmp_path, 2))
    step, (warning,) = newest(tmp_path)
    assert step == 1
    assert warning.startswith("the checkpoint step-00000002 is damaged (")
    assert warning.endswith("): it is passed over.")


def flip(path: Path, bit: int) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@given(bit=st.integers(0, 1 << 20))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_bit_of_a_state_goes_unnoticed(tmp_path: Path, bit: int):
    shutil.rmtree(tmp_path)
    save(tmp_path, 1)
    flip(save(tmp_path, 2) / "state.pt", bit)
    assert newest(tmp_path)[0] == 1


def test_no_flipped_bit_of_a_manifest_stops_a_run(tmp_path: Path):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / "manifest.json"
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        path.write_bytes(whole)
        flip(path, bit)
        step, warnings = newest(tmp_path)
        assert (step, len(warnings)) in ((1, 1), (2, 0))


def test_all_damaged_is_a_run_from_the_start(tmp_path: Path):
    for step in (1, 2):
        os.truncate(save(tmp_path, step) / "state.pt", 10)
    step, warnings = newest(tmp_path)
    assert step is None
    assert len(warnings) == 2
    assert checkpoint.newest_readable(tmp_path / "nothing", "hash") == (None, [])


def test_one_of_another_model_is_refused(tmp_path: Path):
    save(tmp_path, 1)
    with pytest.raises(
        TrainerError, match="is of another model: give its options, another job name, or --resume never"
    ):
        checkpoint.newest_readable(tmp_path, "another hash")


class Code:
    """Something that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a folder when it is read."""
        return os.mkdir, ("harm",)


def test_code_in_a_checkpoint_never_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "checkpoints", 1)
    for write in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        write({"weights": Code()}, path / "state.pt")
        with pytest.raises(TrainerError, match="cannot be read: it holds something else than tensors") as raised:
            checkpoint.read(path)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "harm").exists()


def test_killed_while_writing_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path, 1)

    def half(_: object, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise KeyboardInterrupt  # not an error that could be handled: like a kill

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert (tmp_path / ".step-00000002.new").exists()
    assert newest(tmp_path) == (1, [])
    checkpoint.clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]


def test_what_kills_left_behind_is_removed(tmp_path: Path):
    save(tmp_path, 1)
    for name in (".step-00000002.new", ".step-00000001.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_text("half")
    checkpoint.clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]


def test_one_of_the_same_step_is_replaced(tmp_path: Path):
    os.truncate(save(tmp_path, 1) / "state.pt", 10)
    save(tmp_path, 1)
    assert newest(tmp_path) == (1, [])


def test_a_run_that_begins_before_others_never_loses_its_own_to_them(tmp_path: Path):
    save(tmp_path, 1, 8, 9)
    for step in (8, 9):  # both are damaged, and the run goes on from step 1
        (checkpoint.path_of(tmp_path, step) / "state.pt").write_bytes(b"damaged")
    said = checkpoint.set_aside_newer(tmp_path, 1)
    assert "it is now step-00000009.aside" in said[0]
    assert len(said) == 2
    save(tmp_path, 2, 3, keep=2)
    assert steps_in(tmp_path) == [3, 2]
    assert newest(tmp_path) == (3, [])
    assert (tmp_path / "step-00000009.aside/state.pt").read_bytes() == b"damaged"
    save(tmp_path, 9)
    assert len(checkpoint.set_aside_newer(tmp_path, 1)) == 3
    assert (tmp_path / "step-00000009.aside/state.pt").read_bytes() == b"damaged"  # not replaced
    assert (tmp_path / "step-00000009.aside-2/state.pt").exists()


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = save(tmp_path, 1, 2)

    def stale(file: Path, *_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file))

    monkeypatch.setattr(Path, "read_text", stale)
    with pytest.raises(StorageError, match=rf"{path} cannot be read \(Stale file handle\)"):
        newest(tmp_path)


def test_a_full_disk_loses_nothing_and_leaves_nothing(tmp_path: Path):
    save(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))  # writing beyond fails, as on a full disk
    try:
        with pytest.raises(
            TrainerError, match=r"step-00000002 cannot be written \(File too large\): make room"
        ) as raised:
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(raised.value)
    assert newest(tmp_path) == (1, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]
