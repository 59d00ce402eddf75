"""What the user can mend, in one sentence; and writing files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TrainerError(Exception):
    """One sentence: what is wrong, where, what to do. Raised on all ranks, and told by rank 0."""


class RankError(TrainerError):
    """Such a sentence of one rank alone, which that rank has to tell."""


class StorageError(TrainerError):
    """Such a sentence about a storage that is away, and may come back: another start can succeed."""


# What stays as it is: a full disk, a limit, a file where a folder belongs and the other way round.
STAYS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)


def of_storage(sentence: str, error: BaseException) -> TrainerError:
    """Return a sentence about a storage as the error to raise: one that is away may come back, a full one stays so."""
    away = isinstance(error, OSError) and error.errno not in STAYS
    return StorageError(sentence) if away else TrainerError(sentence)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` (a full disk, a vanished mount, a folder of someone else) into a TrainerError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise of_storage(f"{path} cannot be written ({reason}): make room or mend the storage.", error) from error


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, also after a power cut. Raises TrainerError."""
    temporary = path.with_name(f".{path.name}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
