"""A sign of life of each rank, on node-local disk: whoever watches for hangs sees which rank went silent, and where."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

# Often enough for a watch of minutes; it costs nothing.
SECONDS = 1.0


class Heartbeat:
    """Writes rank-<rank>.json in TORCHRUN_HEARTBEAT_DIR, about once a second; nothing where that is not set."""

    def __init__(self, rank: int) -> None:
        folder = os.environ.get("TORCHRUN_HEARTBEAT_DIR", "")
        self._path = Path(folder, f"rank-{rank:05d}.json") if folder else None
        self._rank = rank
        self._at, self._phase = float("-inf"), ""

    def beat(self, step: int, phase: str = "training") -> None:
        """Say that this rank came to a step, unless it said so just now. Never fails: it is a help, not a need.

        Phases: training, in which steps follow one another; saving and ending, which may take their time.
        """
        now = time.monotonic()
        if self._path is None or (now - self._at < SECONDS and phase == self._phase):
            return
        self._at, self._phase = now, phase
        temporary = self._path.with_suffix(".new")
        with suppress(OSError):
            temporary.write_text(
                json.dumps({"rank": self._rank, "pid": os.getpid(), "step": step, "time": time.time(), "phase": phase})
            )
            temporary.replace(self._path)
