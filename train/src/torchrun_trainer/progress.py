"""What people see of a run: a bar on a terminal, lines every few seconds where nobody watches. Rank 0 only."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any, TextIO

LINE_SECONDS = 5.0


class Lines:
    """For a journal: a line every few seconds."""

    def __init__(self, steps: int, output: TextIO = sys.stdout) -> None:
        self._steps, self._output = steps, output
        self._said_at = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._output.write(f"{text}\n")
        self._output.flush()

    def step(self, step: int, loss: float, samples_per_s: float, seconds_per_step: float) -> None:
        """Tell where the run is, unless that was told just now."""
        now = time.monotonic()
        if now - self._said_at >= LINE_SECONDS or step == self._steps:
            self._said_at = now
            eta = timedelta(seconds=round((self._steps - step) * seconds_per_step))
            speed = f"  {samples_per_s:.0f} samples/s  ETA {eta}" if samples_per_s else ""  # not known from one step
            self.say(f"step {step}/{self._steps}  loss {loss:.4f}{speed}")

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """For a terminal: a bar with the remaining time."""

    def __init__(self, steps: int, library: Any) -> None:
        columns = library.BarColumn(), library.MofNCompleteColumn(), library.TextColumn("{task.fields[numbers]}")
        self._progress = library.Progress(*columns, library.TextColumn("ETA"), library.TimeRemainingColumn())
        self._task = self._progress.add_task("steps", total=steps, numbers="")
        self._progress.start()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.print(text, highlight=False, markup=False)

    def step(self, step: int, loss: float, samples_per_s: float, seconds_per_step: float) -> None:
        """Move the bar."""
        del seconds_per_step  # the library has its own estimate
        numbers = f"loss {loss:.4f}" + (f"  {samples_per_s:.0f} samples/s" if samples_per_s else "")
        self._progress.update(self._task, completed=step, numbers=numbers)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class Silent:
    """For ranks other than 0."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def step(self, step: int, loss: float, samples_per_s: float, seconds_per_step: float) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing is open."""


Progress = Lines | Bar | Silent


def progress_for(is_main: bool, steps: int) -> Progress:
    """Return what fits this rank and its output."""
    if not is_main:
        return Silent()
    if sys.stdout.isatty():
        try:
            from rich import progress as library  # noqa: PLC0415 (only a terminal needs it)
        except ImportError:
            return Lines(steps)
        return Bar(steps, library)
    return Lines(steps)
