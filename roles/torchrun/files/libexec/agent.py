"""Runs torchrun as the main process of the unit, and gives systemd an exit status that tells what happened.

torchrun itself exits with 1 for everything. Here: 0 finished, 143 stopped by SIGTERM, 70 failed for good (do not try
again), 75 lost the other nodes (try again: this agent rejoins the rendezvous).
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import run_state

# torchrun's last barrier waits up to 300 s in C++, deaf to signals, for agents that may be gone.
BARRIER_GRACE_SECONDS = 5.0


def has_workers() -> bool:
    """Tell whether this process has children that still run."""
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # the thread has ended meanwhile
            continue
        for child in children:
            try:
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                return True
    return False


def leave_barrier_when_over(wakeup: int) -> None:
    """End this process when the job is over and only torchrun's exit barrier holds it.

    Over means: SIGTERM came (a byte on the file descriptor `wakeup`, written by the interpreter even while the main
    thread is in C++), or the job failed for good elsewhere; and no worker of this node runs any more.
    """
    asked_to_stop = False
    idle_since: float | None = None
    while True:
        if select.select([wakeup], [], [], 1.0)[0]:
            asked_to_stop = signal.SIGTERM in os.read(wakeup, 64) or asked_to_stop
        failed = run_state.outcome().get("status") == "failed"
        if not (asked_to_stop or failed) or has_workers():
            idle_since = None
            continue
        now = time.monotonic()
        idle_since = idle_since or now
        if now - idle_since >= BARRIER_GRACE_SECONDS:
            os._exit(run_state.EXIT_STOPPED if asked_to_stop else run_state.EXIT_FAILED)


def start_watch() -> None:
    """Start the thread that watches for the end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=leave_barrier_when_over, args=(reader,), daemon=True).start()


def last_words(log_dir: Path, local_rank: int) -> tuple[str, Path | None]:
    """Return the last line that a worker wrote to stderr, and that file; None where there is none."""
    files = sorted(log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    if not files:
        return "", None
    lines = [line for line in files[-1].read_text(errors="replace").splitlines() if line.strip()]
    return (lines[-1].strip() if lines else ""), files[-1]


def describe(error: Any) -> dict[str, Any]:
    """Describe a ChildFailedError: the rank that failed first on this node, how, when, and its log."""
    rank, failure = error.get_first_failure()
    said, log = last_words(Path(os.environ["PET_LOG_DIR"]), failure.local_rank)
    recorded = failure.message if failure.error_file != "<N/A>" else ""
    words = (recorded or said).strip().splitlines() or [""]
    how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with {failure.exitcode}"
    return {
        "rank": rank,
        "how": how,
        "exit_code": failure.exitcode,
        # torch puts the rank in front of a traceback's lines; the rank is said already.
        "message": re.sub(r"^\[rank\d+\]:\s*", "", words[-1]),
        # torch's time has whole seconds, and is when the agent noticed; the worker's last word came before.
        "time": log.stat().st_mtime if log and said else float(failure.timestamp),
        "log": str(log or ""),
    }


def main() -> int:
    """Run torchrun with TORCHRUN_ARGV (a JSON list) and the PET_* variables; return the exit status."""
    if run_state.outcome().get("status") == "failed":
        return run_state.EXIT_FAILED
    run_state.report("rendezvous")
    start_watch()

    from torch.distributed import run  # noqa: PLC0415 (takes seconds; the report above must not wait for it)
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    try:
        run.main(json.loads(os.environ["TORCHRUN_ARGV"]))
    except SignalException:
        return run_state.EXIT_STOPPED
    except ChildFailedError as error:
        failure = describe(error)
        run_state.report("failed", failure=failure)
        run_state.conclude("failed", failure=failure)
        return run_state.EXIT_FAILED
    except Exception as error:  # whatever the rendezvous raises: the others are gone
        message = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        print(f"torchrun agent: {message}", file=sys.stderr, flush=True)  # noqa: T201 (goes to the journal)
        run_state.report("restarting", message=message)
        return run_state.EXIT_FAILED if run_state.outcome().get("status") == "failed" else run_state.EXIT_TRY_AGAIN
    if os.environ["TORCHRUN_NODE_RANK"] == "0":
        run_state.conclude("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
