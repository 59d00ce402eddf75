"""How a step's samples are divided over ranks of unequal speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# Windows of steps in which speed is measured at the start: warm-up, then ever better plans. Later: each log line.
CALIBRATION = (4, 12, 20, 28)
# A measured gain below this is noise: the division stays equal, and the run the same as without measuring.
CALIBRATION_GAIN = 0.05
# A plan is made anew only when the gain shows in so many measurements in a row.
PATIENCE = 3


def equal(batch_size: int, world_size: int) -> tuple[int, ...]:
    """Return samples by rank: no remainder, sizes differ by one at most."""
    base, extra = divmod(batch_size, world_size)
    return tuple(base + (rank < extra) for rank in range(world_size))


def by_speed(batch_size: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return samples by rank so that the slowest is done as soon as possible; each has at least one.

    `speeds` are in samples/s. Every sample goes to the rank that would be done with it first.
    """
    counts = [max(1, int(batch_size * speed / sum(speeds))) for speed in speeds]
    while sum(counts) > batch_size:  # ranks that got one sample more than their share
        slowest = max((r for r, count in enumerate(counts) if count > 1), key=lambda r: counts[r] / speeds[r])
        counts[slowest] -= 1
    while sum(counts) < batch_size:
        first = min(range(len(counts)), key=lambda r: ((counts[r] + 1) / speeds[r], r))
        counts[first] += 1
    return tuple(counts)


def micro_batches(samples: range, most: int) -> list[range]:
    """Return a rank's samples in as few pieces of at most `most` as there can be (0: one piece), of even size."""
    pieces = -(-len(samples) // most) if most else 1
    sizes = equal(len(samples), pieces)
    starts = [samples.start + sum(sizes[:index]) for index in range(pieces)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


@dataclass
class Balancer:
    """Holds the plan (samples of each rank) and makes it anew from measured times.

    All ranks observe the same times, so they all come to the same plan without a word.
    """

    batch_size: int
    world_size: int
    adapts: bool
    threshold: float
    plan: tuple[int, ...] = ()
    calibrated: bool = False
    _gains: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with equal shares where no plan is given."""
        self.adapts = self.adapts and self.world_size > 1
        self.plan = self.plan or equal(self.batch_size, self.world_size)

    def numbers(self, rank: int, first: int) -> range:
        """Return the global samples of a rank in the step that begins at global sample `first`."""
        start = first + sum(self.plan[:rank])
        return range(start, start + self.plan[rank])

    def measures_after(self, steps: int) -> bool:
        """Whether speed is to be measured after so many steps since the start, beside each line of metrics."""
        return self.adapts and not self.calibrated and steps in CALIBRATION

    def observe(self, seconds: Sequence[float], steps: int) -> tuple[int, ...] | None:
        """Take each rank's compute seconds a step, as measured since the last call; return a new plan, or None.

        `steps` is the number since the start: the first window is warm-up and does not count.
        """
        warm = steps > CALIBRATION[0]
        calibrating = not self.calibrated
        self.calibrated = self.calibrated or steps >= CALIBRATION[-1]
        if not self.adapts or not warm or min(seconds) <= 0:
            return None
        speeds = [samples / second for samples, second in zip(self.plan, seconds, strict=True)]
        better = by_speed(self.batch_size, speeds)
        expected = max(samples / speed for samples, speed in zip(better, speeds, strict=True))
        gain = 1 - expected / max(seconds)
        if calibrating:
            wanted = gain > CALIBRATION_GAIN
        else:
            self._gains = [*self._gains, gain][-PATIENCE:]
            wanted = len(self._gains) == PATIENCE and min(self._gains) > self.threshold
        if not wanted or better == self.plan:
            return None
        self.plan, self._gains = better, []
        return better
