"""What a run says of itself: events in metrics.jsonl and TensorBoard's files. Rank 0 only."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from threading import Lock
from typing import Any

from torchrun_trainer.errors import writing


def is_torn(path: Path) -> bool:
    """Return whether a file ends within a line."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


class Metrics:
    """Appends events, one JSON object a line, each flushed at once; silent when `folder` is None (ranks other than 0).

    Raises TrainerError where the file cannot be written.
    """

    def __init__(self, folder: Path | None, tensorboard: bool = False) -> None:
        self._file = None
        self._board: Any = None
        self._lock = Lock()  # the thread that writes checkpoints tells of them here
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            torn = is_torn(path)
            self._file = path.open("a", encoding="utf-8")
        if torn:  # what comes now is not to be the continuation of the line that a crash cut off
            self._write("\n")
        if tensorboard:
            self._board = board_in(folder / "tensorboard")

    def event(self, kind: str, **values: Any) -> None:
        """Append an event with the time; the numbers of a step are TensorBoard's scalars too."""
        if not self._file:
            return
        now = time.time()
        self._write(json.dumps({"event": kind, "time": now, **values}) + "\n")
        if self._board and kind == "step":
            for name, value in values.items():
                if isinstance(value, (int, float)) and name != "step":
                    self._board.add_scalar(name, value, values["step"], walltime=now)

    def _write(self, text: str) -> None:
        if self._file:
            with self._lock, writing(Path(self._file.name)):
                self._file.write(text)
                self._file.flush()

    def close(self) -> None:
        """Close the files."""
        if self._board:
            with writing(Path(self._board.logdir)):
                self._board.close()
        if self._file:
            self._file.close()


def board_in(folder: Path) -> Any:
    """Return a writer of TensorBoard's event files, or None where its package is not installed."""
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 (it is optional)
    except ImportError:
        return None
    with writing(folder):
        return SummaryWriter(str(folder))


def current(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of the run that the last start goes on with: a start at step 0 begins anew."""
    first = max((place for place, event in enumerate(events) if _begins(event)), default=0)
    return events[first:]


def _begins(event: dict[str, Any]) -> bool:
    return event["event"] == "start" and event.get("start_step") == 0


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
