"""What a run says: events in metrics.jsonl, and a line of progress for people. Rank 0 only."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from torchrun_trainer.errors import writing

# Where nobody watches, a line every few seconds is enough for the journal.
LINE_SECONDS = 5.0


def is_torn(path: Path) -> bool:
    """Return whether a file ends within a line."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


class Metrics:
    """Appends events, one JSON object a line, each flushed at once; silent when `path` is None (ranks other than 0).

    Raises TrainerError where the file cannot be written.
    """

    def __init__(self, path: Path | None, output: TextIO = sys.stdout) -> None:
        self._file = None
        self._output = output
        self._said_at = 0.0
        self._on_terminal = output.isatty()
        self._open_line = False
        if path:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                torn = is_torn(path)
                self._file = path.open("a", encoding="utf-8")
            if torn:  # what comes now is not to be the continuation of the line that a crash cut off
                self._write("\n")

    def event(self, kind: str, **values: Any) -> None:
        """Append an event with the time."""
        if self._file:
            self._write(json.dumps({"event": kind, "time": time.time(), **values}) + "\n")

    def _write(self, text: str) -> None:
        if self._file:
            with writing(Path(self._file.name)):
                self._file.write(text)
                self._file.flush()

    def say(self, text: str) -> None:
        """Print a line for people."""
        if self._file:
            if self._open_line:
                self._output.write("\n")
                self._open_line = False
            self._output.write(f"{text}\n")
            self._output.flush()

    def progress(self, step: int, steps: int, loss: float, samples_per_s: float, seconds_per_step: float) -> None:
        """Show where the run is: one line that changes on a terminal, else a line every few seconds."""
        if not self._file:
            return
        now = time.monotonic()
        eta = timedelta(seconds=round((steps - step) * seconds_per_step))
        text = f"step {step}/{steps}  loss {loss:.4f}  {samples_per_s:.0f} samples/s  ETA {eta}"
        if self._on_terminal:
            self._output.write(f"\r{text}\033[K")
            self._output.flush()
            self._open_line = True
        elif now - self._said_at >= LINE_SECONDS or step == steps:
            self._said_at = now
            self.say(text)

    def close(self) -> None:
        """Close the file."""
        if self._file:
            if self._open_line:
                self._output.write("\n")
            self._file.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a metrics file; a line cut off by a crash is passed over."""
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


class Rate:
    """Samples per second of all ranks: over the last interval, and over the whole run without its first step."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._since = 0.0
        self._samples = 0
        self._interval = 0
        self._steps = 0

    def step(self, samples: int) -> None:
        """Count a step. The first one, with its allocations, starts the clock and is not counted."""
        now = time.monotonic()
        if self._began is None:
            self._began = self._since = now
            return
        self._samples += samples
        self._interval += samples
        self._steps += 1

    @property
    def is_first(self) -> bool:
        """Whether exactly one step was made: it is reported at once."""
        return self._began is not None and self._steps == 0

    def interval(self) -> tuple[float, float]:
        """Return (samples/s, seconds a step) since the last call."""
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9)
        rate, self._interval, self._since = self._interval / seconds, 0, now
        return rate, (now - (self._began or now)) / max(self._steps, 1)

    def overall(self) -> float:
        """Return samples/s of the whole run."""
        if self._began is None:
            return 0.0
        return self._samples / max(time.monotonic() - self._began, 1e-9)
