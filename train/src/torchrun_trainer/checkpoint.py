"""Checkpoints: folders that are written under a temporary name and renamed, so that what has the final name is whole.

checkpoints/step-00000050/state.pt        weights, optimizer, scaler, random numbers of all ranks, plan, versions
checkpoints/step-00000050/manifest.json   size and SHA-256 of state.pt, and what it is a state of
checkpoints/latest                        the name of the newest, written last
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torchrun_trainer.errors import StorageError, TrainerError, of_storage, write_whole, writing

NAME = re.compile(r"step-(\d{8,})")
STATE, MANIFEST = "state.pt", "manifest.json"


@dataclass(frozen=True)
class Progress:
    """Where a run is: steps done, and samples that all ranks together have seen."""

    step: int = 0
    samples: int = 0


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint."""
    return int(path.name.removeprefix("step-"))


def all_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), key=step_of, reverse=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HashingFile:
    """A file opened for writing that takes the SHA-256 of what passes, so that it need not be read again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.problem: OSError | None = None  # torch.save tells of it in words that nobody understands

    def write(self, content: bytes) -> int:
        """Write, and count."""
        self.digest.update(content)
        self.size += len(content)
        try:
            return self._file.write(content)
        except OSError as error:
            self.problem = error
            raise

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def write(
    folder: Path, progress: Progress, state: dict[str, Any], *, model_hash: str, keep: int, keep_every: int
) -> Path:
    """Write a checkpoint and return its path; rank 0 only. Older ones that are not to be kept are removed afterwards.

    Raises TrainerError where it cannot be written; those of before are left as they are.
    """
    target = path_of(folder, progress.step)
    temporary = folder / f".{target.name}.new"
    hashing: HashingFile | None = None
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of an attempt that was killed
        temporary.mkdir(parents=True)
        with (temporary / STATE).open("wb") as file:
            hashing = HashingFile(file)
            torch.save(state, hashing)  # type: ignore[arg-type] # it only writes and flushes
            file.flush()
            os.fsync(file.fileno())
        manifest: dict[str, Any] = {
            "step": progress.step,
            "samples": progress.samples,
            "model_hash": model_hash,
            "versions": state["versions"],
            "files": {STATE: {"bytes": hashing.size, "sha256": hashing.digest.hexdigest()}},
        }
        manifest["seal"] = seal_of(manifest)
        write_whole(temporary / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        flush_folder(temporary)
        if target.exists():  # of before a restart at an earlier step: the same content, unless it is damaged
            remove(target)
        temporary.rename(target)
        flush_folder(folder)
        write_whole(folder / "latest", f"{target.name}\n")
        flush_folder(folder)
        prune(folder, keep, keep_every)
    except (OSError, RuntimeError, TrainerError) as error:  # torch.save reports a full disk as one of the first two
        shutil.rmtree(temporary, ignore_errors=True)
        cause = (hashing and hashing.problem) or error.__cause__ or error
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause).splitlines()[0]
        raise of_storage(
            f"The checkpoint {target} cannot be written ({reason}): make room or mend the storage; "
            "the earlier ones are untouched.",
            cause,
        ) from error
    return target


def seal_of(manifest: dict[str, Any]) -> str:
    """Return a digest of a manifest, so that damage to it is seen too."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint. Raises OSError or ValueError where it is damaged."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.pop("seal", None) != seal_of(manifest):
        raise ValueError("the checksum of its manifest differs")
    return manifest


def remove(path: Path) -> None:
    """Remove a checkpoint so that no half of it is ever seen under its name."""
    doomed = path.with_name(f".{path.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def prune(folder: Path, keep: int, keep_every: int) -> None:
    """Remove all but the newest `keep`, and those whose step is a multiple of `keep_every`; and what kills left."""
    for old in all_in(folder)[keep:]:
        if not keep_every or step_of(old) % keep_every:
            remove(old)
    for left in folder.glob(".step-*.old"):
        shutil.rmtree(left, ignore_errors=True)


def set_aside_newer(folder: Path, step: int) -> list[str]:
    """Rename the checkpoints of later steps than the one a run begins at, and return a sentence for each.

    They are damaged, or of a run that is not gone on with. Left in place, they would count as the newest: the run's own
    would be removed for them, and the next start would resume from them.
    """
    said = []
    for path in all_in(folder):
        if step_of(path) > step:
            aside = path.with_name(f"{path.name}.aside")
            number = 2
            while aside.exists():
                aside, number = path.with_name(f"{path.name}.aside-{number}"), number + 1
            with writing(aside):
                path.rename(aside)
            said.append(
                f"the checkpoint {path.name} is of a later step than this run begins at: it is now {aside.name}; "
                "remove it when nobody needs it."
            )
    return said


def problem_of(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None for a whole one. Reads all of it.

    Raises StorageError where that cannot be known: taken for damaged, it would be passed over.
    """
    try:
        expected = read_manifest(path)["files"][STATE]
        with (path / STATE).open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 22):
                digest.update(block)
        return None if digest.hexdigest() == expected["sha256"] else "its checksum differs"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except OSError as error:
        raise StorageError(
            f"The checkpoint {path} cannot be read ({error.strerror or error}): mend the storage."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        return str(error) or type(error).__name__


def newest_readable(folder: Path, model_hash: str) -> tuple[Path | None, list[str]]:
    """Return (the newest checkpoint that is whole, or None; a warning for each damaged one that was passed over).

    Raises TrainerError where the newest whole one is of another model.
    """
    warnings = []
    for path in all_in(folder):
        problem = problem_of(path)
        if problem:
            warnings.append(f"the checkpoint {path.name} is damaged ({problem}): it is passed over.")
            continue
        if read_manifest(path)["model_hash"] != model_hash:
            raise TrainerError(
                f"The checkpoint {path} is of another model: give its options, another job name, or --resume never."
            )
        return path, warnings
    return None, warnings


def read(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, in main memory. Only tensors and plain values are read: no code can run.

    Raises TrainerError where it cannot be read, which `newest_readable` had done.
    """
    try:
        return torch.load(path / STATE, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise TrainerError(
            f"The checkpoint {path} cannot be read: it holds something else than tensors and plain values."
        ) from error
    except Exception as error:  # a damaged file can raise anything
        reason = [*str(error).splitlines(), type(error).__name__][0]
        raise of_storage(
            f"The checkpoint {path} cannot be read here ({reason}): is the storage shared?", error
        ) from error


def clean(folder: Path) -> None:
    """Remove what a kill in the middle of writing left behind."""
    for left in (*folder.glob(".step-*.new"), *folder.glob(".step-*.old")):
        with suppress(OSError):
            shutil.rmtree(left)
