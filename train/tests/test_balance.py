"""How a step's samples are divided: every sample to one rank, and the slowest rank done as soon as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st
from torchrun_trainer import balance
from torchrun_trainer.balance import CALIBRATION, PATIENCE, Balancer

SPEEDS = st.floats(0.01, 1000)


def duration(plan: Sequence[int], speeds: Sequence[float]) -> float:
    """Return how long the slowest rank takes."""
    return max(samples / speed for samples, speed in zip(plan, speeds, strict=True))


def all_plans(samples: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each rank at least one sample."""
    if ranks == 1:
        yield (samples,)
        return
    for first in range(1, samples - ranks + 2):
        yield from ((first, *rest) for rest in all_plans(samples - first, ranks - 1))


@given(st.integers(0, 500), st.integers(1, 64))
def test_equal_shares_are_equal_up_to_one(samples: int, ranks: int):
    plan = balance.equal(samples, ranks)
    assert sum(plan) == samples
    assert max(plan) - min(plan) <= 1


@given(st.data(), st.lists(SPEEDS, min_size=1, max_size=9))
def test_shares_by_speed_are_all_samples_and_never_slower_than_equal(data: st.DataObject, speeds: list[float]):
    samples = data.draw(st.integers(len(speeds), 300))
    plan = balance.by_speed(samples, speeds)
    assert sum(plan) == samples
    assert min(plan) >= 1
    assert duration(plan, speeds) <= duration(balance.equal(samples, len(speeds)), speeds) * (1 + 1e-12)


@given(st.data(), st.lists(SPEEDS, min_size=1, max_size=4))
def test_no_other_division_is_faster(data: st.DataObject, speeds: list[float]):
    samples = data.draw(st.integers(len(speeds), 14))
    best = min(duration(plan, speeds) for plan in all_plans(samples, len(speeds)))
    assert duration(balance.by_speed(samples, speeds), speeds) <= best * (1 + 1e-12)


@given(st.integers(0, 1000), st.integers(1, 200), st.integers(0, 50))
def test_micro_batches_are_the_samples_in_as_few_even_pieces_as_can_be(first: int, samples: int, most: int):
    pieces = balance.micro_batches(range(first, first + samples), most)
    assert [number for piece in pieces for number in piece] == list(range(first, first + samples))
    assert len(pieces) == (-(-samples // most) if most else 1)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 10**9))
def test_every_sample_of_a_step_goes_to_one_rank(plan: list[int], first: int):
    balancer = Balancer(sum(plan), len(plan), adapts=True, threshold=0.1, plan=tuple(plan))
    numbers = [number for rank in range(len(plan)) for number in balancer.numbers(rank, first)]
    assert numbers == list(range(first, first + sum(plan)))


def balancer(plan: tuple[int, ...] = (), calibrated: bool = False, adapts: bool = True) -> Balancer:
    """Return one for 24 samples on two ranks."""
    return Balancer(24, 2, adapts, 0.1, plan, calibrated)


def test_the_first_window_is_warm_up():
    measured = balancer()
    assert measured.plan == (12, 12)
    assert measured.observe([1.0, 3.0], CALIBRATION[0]) is None
    assert measured.observe([1.0, 3.0], CALIBRATION[1]) == measured.plan == (18, 6)


def test_a_small_gain_is_noise():
    measured = Balancer(1000, 2, adapts=True, threshold=0.1)
    for steps in CALIBRATION[:-1]:
        assert measured.observe([1.0, 1.08], steps) is None  # 4 %
    assert measured.observe([1.0, 1.2], CALIBRATION[-1]) == (545, 455)


def test_it_measures_until_it_is_calibrated():
    measured = balancer()
    assert [steps for steps in range(100) if measured.measures_after(steps)] == list(CALIBRATION)
    measured.observe([1.0, 1.0], CALIBRATION[-1])
    assert not any(measured.measures_after(steps) for steps in range(100))


def test_drift_counts_when_it_shows_three_times_in_a_row():
    measured = balancer(calibrated=True)
    slow, even = [1.0, 3.0], [1.0, 1.0]
    assert [measured.observe(seconds, 100) for seconds in (slow, slow, even, slow, slow)] == [None] * 5
    assert measured.observe(slow, 100) == (18, 6)
    # With the new plan both take as long: all is well.
    assert [measured.observe([1.5, 1.5], 100) for _ in range(PATIENCE + 1)] == [None] * (PATIENCE + 1)


def test_drift_below_the_threshold_does_not_count():
    measured = balancer(calibrated=True)
    assert [measured.observe([1.0, 1.15], 100) for _ in range(6)] == [None] * 6


def test_equal_shares_and_a_rank_alone_never_change():
    for fixed in (balancer(adapts=False), Balancer(24, 1, adapts=True, threshold=0.1)):
        assert not fixed.measures_after(CALIBRATION[0])
        assert fixed.observe([1.0, 3.0][: fixed.world_size], 100) is None


@given(st.lists(st.lists(st.just(0.0) | st.floats(1e-6, 10), min_size=3, max_size=3), max_size=12), st.integers(1, 40))
def test_ranks_that_see_the_same_times_have_the_same_plan(windows: list[list[float]], first: int):
    ranks = [Balancer(30, 3, adapts=True, threshold=0.1) for _ in range(3)]
    for steps, seconds in enumerate(windows, start=first):
        plans = {rank.observe(seconds, steps) for rank in ranks}
        assert len(plans) == 1
        assert len({rank.plan for rank in ranks}) == 1
        assert sum(ranks[0].plan) == 30
