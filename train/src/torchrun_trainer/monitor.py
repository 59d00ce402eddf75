"""Measures a run: speed, where time goes, which rank is the slowest; told as events and as progress."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchrun_trainer import hardware
from torchrun_trainer.distributed import Place
from torchrun_trainer.metrics import Metrics
from torchrun_trainer.progress import Progress
from torchrun_trainer.timing import Times

# How far behind the mean a rank may be before it is worth a word.
SLOW = 1.25


@dataclass(frozen=True)
class Work:
    """What one sample is: `tokens` of it, `flops` to train on it (None: not counted); `peak` of all GPUs in FLOP/s."""

    tokens: int = 1
    flops: float | None = None
    peak: float | None = None


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


def finite(value: float | None) -> float | None:
    """Return a number as JSON can hold it."""
    return value if value is not None and math.isfinite(value) else None


class Monitor:
    """Turns what the loop measures into events and progress; on ranks other than 0 both are silent."""

    def __init__(self, metrics: Metrics, progress: Progress, place: Place, steps: int, work: Work) -> None:
        self.metrics, self.progress = metrics, progress
        self._place, self._steps, self._work = place, steps, work
        self._rate = Rate()

    def count(self, samples: int) -> None:
        """Count a step of all ranks."""
        self._rate.step(samples)

    def overall(self) -> float:
        """Return samples/s of the whole run."""
        return self._rate.overall()

    def numbers_of(self, times: Times) -> list[float]:
        """Return what this rank tells the others of a window of steps."""
        memory = float(hardware.memory(self._place.device))
        return [times.data, times.compute, times.communication, times.optimizer, memory]

    def step(self, step: int, loss: float | None, lr: float, norm: float, by_rank: Sequence[Sequence[float]]) -> None:
        """Tell of a step, with what each rank told of the window that it ends."""
        samples_per_s, seconds = self._rate.interval()
        metrics: dict[str, Any] = {
            "step": step,
            "loss": finite(loss),
            "lr": lr,
            "grad_norm": finite(norm),
            "samples_per_s": samples_per_s,
            "tokens_per_s": samples_per_s * self._work.tokens,
            "memory_bytes": int(max(numbers[4] for numbers in by_rank)),
        }
        total = sum(sum(numbers[:4]) for numbers in by_rank)
        for place, name in enumerate(("data_share", "compute_share", "communication_share", "optimizer_share")):
            metrics[name] = sum(numbers[place] for numbers in by_rank) / total if total else 0.0
        if self._work.flops and self._work.peak:
            metrics["mfu"] = samples_per_s * self._work.flops / self._work.peak
        if len(by_rank) > 1:
            compute = [numbers[1] for numbers in by_rank]
            slowest = compute.index(max(compute))
            metrics["slowest_rank"] = slowest
            metrics["slowest_host"] = self._place.hosts[slowest] if self._place.hosts else None
            metrics["slowest_ratio"] = compute[slowest] * len(compute) / sum(compute)
        self.metrics.event("step", **metrics)
        self.progress.step(step, loss if loss is not None else math.nan, samples_per_s, seconds)

    def plan(self, step: int, plan: Sequence[int], reason: str) -> None:
        """Tell of a new division of samples."""
        self.metrics.event("plan", step=step, samples_by_rank=list(plan), reason=reason)
        by_host: dict[str, int] = {}
        for host, samples in zip(self._place.hosts, plan, strict=True):
            by_host[host] = by_host.get(host, 0) + samples
        if len(by_host) > 1:
            told, shares = "host", ", ".join(f"{host} {samples}" for host, samples in by_host.items())
        else:
            told, shares = "rank", ", ".join(map(str, plan))
        self.progress.say(f"samples of a step by {told}, from step {step + 1} on: {shares} ({reason})")

    def skipped(self, step: int, in_a_row: int, norm: float) -> None:
        """Tell of a step whose gradient was not finite."""
        self.metrics.event("skipped", step=step, in_a_row=in_a_row, grad_norm=str(norm))
        self.progress.say(f"warning: step {step} had no finite gradient ({norm}): it was skipped")
