"""One run at a time in a run folder: two would remove each other's checkpoints and mix their metrics."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from torchrun_trainer.errors import TrainerError, writing

# A process that ended has let go of the lock at once; a node without power has when its lease of NFS runs out (90 s).
HERE_SECONDS, ELSEWHERE_SECONDS = 5.0, 150.0
LOOK_SECONDS = 0.2
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


def hold(folder: Path, say: Callable[[str], None]) -> int | None:
    """Lock a run folder for as long as this process lives; return the descriptor, or None where storage has no locks.

    Waits for a holder that may be about to go, and tells it by `say`. Raises TrainerError where it stays.
    """
    path = folder / ".lock"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    began, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            patience = HERE_SECONDS if holder.startswith(f"{socket.gethostname()} ") else ELSEWHERE_SECONDS
            if time.monotonic() - began > patience:
                os.close(descriptor)
                raise TrainerError(
                    f"Another run uses the folder {folder} ({holder}): end it first, or give this one its own "
                    "TORCHRUN_RUN_DIR."
                ) from error
            if not told:
                say(f"another run uses {folder} ({holder}): waiting up to {patience:.0f} s for it to end")
                told = True
            time.sleep(LOOK_SECONDS)
        except OSError as error:
            os.close(descriptor)
            if error.errno in NO_LOCKS:
                return None
            with writing(path):
                raise
    with writing(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} process {os.getpid()}\n".encode(), 0)
    return descriptor


def release(descriptor: int | None) -> None:
    """Let the next run begin."""
    if descriptor is not None:
        os.close(descriptor)
