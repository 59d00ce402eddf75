"""Checkpoints that training does not wait for: a copy in memory, and a thread that writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from torchrun_trainer.errors import TrainerError


class Memory:
    """Copies of tensors in main memory, in buffers that are used again: new ones would have to be faulted in."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str | int, ...], torch.Tensor] = {}
        self._on_gpu = False

    def copy(self, value: Any, key: tuple[str | int, ...] = ()) -> Any:
        """Return a copy of nested dicts and lists of tensors; valid until the next call. Call `wait` before reading."""
        if isinstance(value, torch.Tensor):
            buffer = self._buffers.get(key)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                self._buffers[key] = buffer
            self._on_gpu |= value.is_cuda
            return buffer.copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            return {name: self.copy(part, (*key, name)) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(part, (*key, place)) for place, part in enumerate(value)]
        return value

    def wait(self) -> None:
        """Wait until the copies from a GPU are there."""
        if self._on_gpu:
            torch.cuda.synchronize()


class Writer:
    """Writes one checkpoint at a time in a thread. What went wrong is told by `problem`, and at the end."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._thread: Thread | None = None
        self.problem: TrainerError | None = None

    def start(
        self, state: dict[str, Any], write: Callable[[dict[str, Any]], Path], done: Callable[[Path], None]
    ) -> None:
        """Copy `state` and let `write` write it; `done` gets its path. Waits only for the copy, and for the last write.

        Nothing more is written once a write failed: only this rank knows of it yet, and `problem` tells all with the
        next step's report. Did it raise here, the others would be left alone within a step.
        """
        self._wait()
        if self.problem:
            return
        copied = self._memory.copy(state)
        self._memory.wait()
        self._thread = Thread(target=self._run, args=(copied, write, done), name="checkpoint")
        self._thread.start()

    def _run(
        self, state: dict[str, Any], write: Callable[[dict[str, Any]], Path], done: Callable[[Path], None]
    ) -> None:
        try:
            done(write(state))
        except TrainerError as error:
            self.problem = error
        except Exception as error:  # a thread's exception would be lost
            self.problem = TrainerError(f"The checkpoint cannot be written: {error!r}.")

    def _wait(self) -> None:
        if self._thread:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Wait until what was started is written. Raises TrainerError when it could not be."""
        self._wait()
        if self.problem:
            raise self.problem
