"""The process group: this rank's place and device, what ranks must have in common, and deciding together."""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout  # no public way to shorten it after the first step

from torchrun_trainer import __version__, hardware
from torchrun_trainer.config import Config, dashed
from torchrun_trainer.errors import TrainerError

# Longer than the preparation of a corpus on slow storage, and than compiling.
FIRST_STEP = timedelta(minutes=10)
Value = TypeVar("Value")
# Of the facts of a rank, those that may differ.
OWN = ("host", "expected world size", "precisions")


@dataclass(frozen=True)
class Place:
    """This process among all: rank of world_size, and where it computes; `hosts` has the host of each rank."""

    rank: int
    world_size: int
    device: torch.device
    backend: str
    precision: str = "float32"
    hosts: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The host of this rank."""
        return self.hosts[self.rank] if self.hosts else "this host"

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes."""
        return self.rank == 0


def choose_device(config: Config) -> torch.device:
    """Return where this process computes. Raises TrainerError where the wanted device is not there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise TrainerError("--device is cuda, but PyTorch finds no GPU here: check the driver, or give --device cpu.")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise TrainerError(
            f"{socket.gethostname()} has {count} GPUs, but was given local rank {local_rank}: "
            "lower nproc_per_node there."
        )
    return torch.device("cuda", local_rank)


def join(config: Config) -> Place:
    """Join the process group that torchrun describes in the environment; alone, make one of one process.

    Raises TrainerError where the device is not there, or the ranks do not fit together; the same on all ranks.
    """
    device = choose_device(config)
    options: dict[str, Any] = {"timeout": FIRST_STEP}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device  # so that no barrier has to guess it
    if "RANK" not in os.environ:
        options.update(store=dist.HashStore(), rank=0, world_size=1)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, **options)
    facts = gather_facts(config, device)
    agree_on(facts)
    return Place(
        dist.get_rank(),
        dist.get_world_size(),
        device,
        backend,
        hardware.common_precision(config.precision, [fact["precisions"] for fact in facts]),
        tuple(fact["host"] for fact in facts),
    )


def gather_facts(config: Config, device: torch.device) -> list[dict[str, Any]]:
    """Return what each rank is, by rank."""
    mine = {
        "host": os.environ.get("TORCHRUN_HOST", socket.gethostname()),
        "device": device.type,
        "torch": str(torch.__version__),
        "trainer": __version__,
        **{f"option --{dashed(name)}": value for name, value in asdict(config).items()},
        "expected world size": int(os.environ.get("WORLD_SIZE", "1")),
        "precisions": hardware.precisions(device),
    }
    return gather_all(mine)


def agree_on(facts: list[dict[str, Any]]) -> None:
    """Raise TrainerError, with the two ranks that differ, where the ranks cannot train one model."""
    for rank, fact in enumerate(facts):
        if fact["expected world size"] != len(facts):
            raise TrainerError(
                f"Rank {rank} on {fact['host']} was told of a world size of {fact['expected world size']}, but "
                f"{len(facts)} ranks came: the rendezvous did not bring all nodes together; start the job again."
            )
        for name in (name for name in fact if name not in OWN):
            if repr(fact[name]) != repr(facts[0][name]):  # nan is not equal to itself
                raise TrainerError(
                    f"Rank {rank} on {fact['host']} has the {name} {fact[name]}, but rank 0 on {facts[0]['host']} has "
                    f"{facts[0][name]}: make them equal."
                )


def together(action: Callable[[], Value]) -> Value:
    """Do something on every rank and return its result. Where a rank raises a TrainerError, all ranks raise it."""
    result, problem = None, None
    try:
        result = action()
    except TrainerError as error:
        problem = error
    raise_first(problem)
    return cast("Value", result)


def raise_first(problem: TrainerError | None) -> None:
    """Raise, on all ranks, the error of the first rank that has one."""
    for error in gather_all(problem):
        if error is not None:
            raise error


def on_main(action: Callable[[], Value], place: Place) -> Value:
    """Do something on rank 0 and return its result on every rank. Where it raises a TrainerError, all ranks do."""
    return share(together(lambda: action() if place.is_main else None))


def share(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather_all(value: Any) -> list[Any]:
    """Return every rank's value, by rank, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather(value: Any) -> list[Any] | None:
    """Return every rank's value, by rank, on rank 0; None elsewhere."""
    values: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, dst=0)
    return values


def gather_numbers(numbers: list[float], place: Place) -> list[list[float]]:
    """Return every rank's numbers, by rank, on every rank; all have as many."""
    if place.world_size == 1:
        return [numbers]
    mine = torch.tensor(numbers, dtype=torch.float64, device=place.device)
    everyone = mine.new_empty(place.world_size * len(numbers))
    dist.all_gather_single(everyone, mine)
    return everyone.view(place.world_size, -1).tolist()


def step_timeout() -> int:
    """Return the seconds that a step may take by default: more than the agent waits, which keeps stacks first."""
    return int(1.25 * (float(os.environ.get("TORCHRUN_HANG_TIMEOUT") or 0) or 96))


def expect_steps_within(seconds: int) -> None:
    """After the first step, with its compilation and allocation: notice a hang after `seconds`."""
    _set_pg_timeout(timedelta(seconds=seconds))


def expect_the_end() -> None:
    """After the last step: the others may have to wait long for the last checkpoint."""
    _set_pg_timeout(FIRST_STEP)


def leave() -> None:
    """Leave the process group, after all others have come this far."""
    dist.barrier()
    dist.destroy_process_group()


class StopRequest:
    """Notes SIGTERM and SIGINT, so that training can end after a step instead of within it."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.asked = False
        for number in self._SIGNALS:
            signal.signal(number, self._note)

    @contextmanager
    def ends_at_once(self) -> Iterator[None]:
        """Let the signals end this process at once: for what takes long and has nothing to lose."""
        for number in self._SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            for number in self._SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True


@dataclass(frozen=True)
class Verdict:
    """What all ranks know of a step: the sum of the losses of its samples, and whether any rank has to stop."""

    step: int
    loss_sum: float
    stop: bool
    problem: bool


class StepReport:
    """What ranks tell each other after a step, in one small all_reduce that the next step does not wait for.

    A verdict is taken one step later, or at once where a step ends something; on all ranks at the same place.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._dtype = torch.float64
        self._sent: deque[tuple[int, torch.Tensor, Any]] = deque()

    def send(self, step: int, loss_sum: torch.Tensor, stop: bool, problem: bool) -> None:
        """Send this rank's part of a step."""
        if loss_sum.device.type == "cpu":
            values = torch.tensor([loss_sum.item(), float(stop), float(problem)], dtype=self._dtype)
        else:  # nothing here waits for the GPU
            flags = torch.tensor([float(stop), float(problem)], dtype=self._dtype).pin_memory()
            values = torch.cat([loss_sum.to(self._dtype).view(1), flags.to(self._place.device, non_blocking=True)])
        work = dist.all_reduce(values, async_op=True) if self._place.world_size > 1 else None
        self._sent.append((step, values, work))

    def take(self, step: int) -> list[Verdict]:
        """Return the verdicts of all steps up to this one that were not taken yet, waiting for them."""
        verdicts = []
        while self._sent and self._sent[0][0] <= step:
            of, values, work = self._sent.popleft()
            if work is not None:
                work.wait()
            loss_sum, stop, problem = values.tolist()
            verdicts.append(Verdict(of, loss_sum, stop > 0, problem > 0))
        return verdicts
