"""Where the time of a step goes: waiting for data, computing, communicating."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

MARKS = ("begun", "loaded", "ready", "reduced", "done")


@dataclass(frozen=True)
class Times:
    """Mean seconds a step of this rank: for data, forward and backward, exposed communication, and the optimizer."""

    data: float
    compute: float
    communication: float
    optimizer: float


class StepTimer:
    """Notes when a step has begun, its data is loaded, its gradients are ready, reduced, and the optimizer is done.

    On a GPU the notes are events in its stream: they cost no synchronization until the means are asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._steps: list[dict[str, Any]] = []
        self._marks: dict[str, Any] = {}

    def mark(self, name: str) -> None:
        """Note one of MARKS; noted twice in a step, the later one counts."""
        if name == "begun":
            self._marks = {}
            self._steps.append(self._marks)
        now = time.perf_counter()
        if name in ("begun", "loaded"):
            self._marks[f"{name} by the processor"] = now
        note: Any = now
        if self._on_gpu:
            note = torch.cuda.Event(enable_timing=True)
            note.record()
        self._marks[name] = note
        if name == "reduced":  # nothing was to be reduced: one rank alone
            self._marks.setdefault("ready", note)

    def _between(self, marks: dict[str, Any], first: str, second: str) -> float:
        if self._on_gpu:
            return marks[first].elapsed_time(marks[second]) / 1000
        return marks[second] - marks[first]

    def means(self) -> Times:
        """Return the means since the last call; waits for the GPU."""
        if self._on_gpu:
            torch.cuda.synchronize()
        sums = [0.0, 0.0, 0.0, 0.0]
        for marks in self._steps:
            # Data is awaited by the processor, whatever the GPU still does.
            sums[0] += marks["loaded by the processor"] - marks["begun by the processor"]
            for place, (first, second) in enumerate((MARKS[1:3], MARKS[2:4], MARKS[3:5]), start=1):
                sums[place] += self._between(marks, first, second)
        count = max(1, len(self._steps))
        self._steps = []
        return Times(*(total / count for total in sums))
