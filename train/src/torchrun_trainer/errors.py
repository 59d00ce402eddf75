"""What the user can mend, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TrainerError(Exception):
    """One sentence: what is wrong, where, what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` (a full disk, a vanished mount, a folder of someone else) into a TrainerError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise TrainerError(f"{path} cannot be written ({reason}): make room or mend the storage.") from error
