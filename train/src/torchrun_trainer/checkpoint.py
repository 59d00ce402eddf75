"""Checkpoints: written under a temporary name and renamed, so that what has the final name is whole."""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError, writing

NAME = re.compile(r"step-(\d{8})\.pt")


@dataclass(frozen=True)
class Progress:
    """Where a run is: steps done, and samples that all ranks together have seen."""

    step: int = 0
    samples: int = 0


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.pt"


def all_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    return sorted((path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name)), reverse=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _digest(file.read())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every generator of random numbers, in types that can be loaded without running code."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # the global one is what user code draws from
    version, internal, gauss = random.getstate()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def save(folder: Path, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, config: Config) -> Path:
    """Write a checkpoint and return its path; rank 0 only. Those beyond `config.keep` are removed afterwards.

    Raises TrainerError where it cannot be written; those of before are left as they are.
    """
    target = path_of(folder, progress.step)
    temporary = folder / f".{target.name}.new"
    state = {
        "step": progress.step,
        "samples": progress.samples,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "model_hash": config.model_hash(),
        "random": random_state(next(model.parameters()).device),
        "versions": {"torch": str(torch.__version__), "numpy": np.__version__},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        write_whole(target.with_suffix(".sha256"), f"{digest_of(temporary)}  {target.name}\n")
        temporary.replace(target)
        write_whole(folder / "latest", f"{target.name}\n")
        flush_folder(folder)
        for old in all_in(folder)[config.keep :]:
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as either
        with suppress(OSError):  # where nothing can be written, nothing may be removable either
            temporary.unlink(missing_ok=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        raise TrainerError(
            f"The checkpoint {target} cannot be written ({reason}): make room or mend the storage; "
            "the earlier ones are untouched."
        ) from error
    return target


def set_aside_newer(folder: Path, step: int) -> list[str]:
    """Rename the checkpoints of later steps than the one a run begins at, and return a sentence for each.

    They are damaged, or of a run that is not gone on with. Left in place, they would count as the newest: the run's own
    would be removed for them, and the next start would resume from them.
    """
    said = []
    for path in all_in(folder):
        if path != path_of(folder, step) and path.name > path_of(folder, step).name:
            aside = path.with_suffix(".pt.aside")
            with writing(aside):
                path.replace(aside)
                path.with_suffix(".sha256").unlink(missing_ok=True)
            said.append(
                f"the checkpoint {path.name} is of a later step than this run begins at: it is now {aside.name}."
            )
    return said


def newest_readable(folder: Path, config: Config) -> tuple[Path | None, list[str]]:
    """Return (the newest checkpoint that is whole, or None; a warning for each damaged one that was passed over).

    Raises TrainerError where the newest whole one is of another model.
    """
    warnings = []
    for path in all_in(folder):
        try:
            expected = path.with_suffix(".sha256").read_text().split()[0]
            if digest_of(path) != expected:
                raise ValueError("its checksum differs")  # noqa: TRY301 (one place tells of all kinds of damage)
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can raise anything
            warnings.append(f"the checkpoint {path.name} is damaged ({error}): using the one before.")
            continue
        if state["model_hash"] != config.model_hash():
            raise TrainerError(
                f"The checkpoint {path} is of a model of another shape: give its options, another job name, "
                "or --resume never."
            )
        return path, warnings
    return None, warnings


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Progress:
    """Load weights and the optimizer's state, on every rank, and return where the run was."""
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return Progress(state["step"], state["samples"])
