"""Looks whether the workers still make steps; if one is silent for long, it keeps their stacks and ends them.

torchrun then starts all of them again, as after any failure. Only programs that write heartbeats are watched, as the
packaged trainer does: one file a rank in TORCHRUN_HEARTBEAT_DIR with rank, pid, step and phase.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import run_state

LOOK_SECONDS = 1.0
# A process that is stopped, or waits for a dead disk, cannot be looked into: py-spy is not waited for long.
DUMP_SECONDS = 15.0
# Of a job that hangs again and again, so many hangs are kept: the last ones.
MOST = 20


class HangWatch:
    """Notes when each rank's heartbeat last changed, by this node's own clock: a clock that is set is no hang."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self._seen: dict[int, tuple[Any, float]] = {}
        self._looked = float("-inf")

    def silent(self, pids: Iterable[int], now: float) -> dict[int, dict[str, Any]]:
        """Return the heartbeats, by pid, of the workers that have made no step for too long; `now` is monotonic."""
        if now - self._looked < LOOK_SECONDS:
            return {}
        self._looked = now
        beats = {beat.get("pid"): beat for beat in map(run_state.read_json, self.folder.glob("rank-*.json"))}
        found = {}
        for pid in pids:
            beat = beats.get(pid)
            if beat is None:  # before its first step it may compile, or wait for others
                continue
            mark = (beat.get("step"), beat.get("time"))
            if self._seen.get(pid, (None, 0.0))[0] != mark:
                self._seen[pid] = (mark, now)
            elif now - self._seen[pid][1] >= self.seconds and beat.get("phase") == "training":
                found[pid] = beat
        return found


def keep_stacks(pids: Iterable[int], ranks: dict[int, int], folder: Path) -> list[str]:
    """Write where each worker stands, one file a rank; return the paths."""
    spy = Path(sys.executable).parent / "py-spy"
    written = []
    for pid in pids:
        path = folder / f"stack-rank-{ranks[pid]}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.txt"
        try:
            done = subprocess.run(
                [str(spy), "dump", "--nonblocking", "--pid", str(pid)],
                capture_output=True,
                text=True,
                check=False,
                timeout=DUMP_SECONDS,
            )
            text = done.stdout or f"py-spy could not look into process {pid}: {done.stderr}"
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"py-spy could not look into process {pid}: {error}\n"
        with contextlib.suppress(OSError):
            path.write_text(text)
            written.append(str(path))
    return written


def ask_flight_recorders(folder: Path) -> None:
    """Let NCCL's flight recorders write what they have: a byte into a pipe of each rank asks for it."""
    for pipe in folder.glob("flight_recorder_*.pipe"):
        with contextlib.suppress(OSError):
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(handle, b"1")
            os.close(handle)


def watching(monitor: Any, watch: HangWatch) -> Any:
    """Return what looks after the workers, changed so that silent ones are ended."""

    def monitored(agent: Any, group: Any) -> Any:
        ranks = {int(worker.id): worker.global_rank for worker in group.workers if worker.id}
        silent = watch.silent(ranks, time.monotonic())
        if silent:
            end_silent(silent, ranks, watch)
        return monitor(agent, group)

    return monitored


def end_silent(silent: dict[int, dict[str, Any]], ranks: dict[int, int], watch: HangWatch) -> None:
    """Keep the stacks of all workers of this node, then end them: torchrun takes it for a failure."""
    told = ", ".join(f"rank {ranks[pid]} after step {beat.get('step')}" for pid, beat in sorted(silent.items()))
    print(f"torchrun agent: no step for {watch.seconds:.0f} s ({told}): ending the workers.", flush=True)  # noqa: T201 (goes to the journal)
    ask_flight_recorders(watch.folder)
    paths = keep_stacks(ranks, ranks, Path(os.environ["PET_LOG_DIR"]))
    hang = {"time": time.time(), "silent": told, "stacks": paths}
    run_state.amend(hangs=[*run_state.last_report().get("hangs", []), hang][-MOST:])
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
