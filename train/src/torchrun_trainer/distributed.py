"""The process group: this rank's place and device, and stopping together."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError

# Longer than the preparation of a corpus on slow storage; a hang is noticed all the same.
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Place:
    """This process among all: rank of world_size, and where it computes."""

    rank: int
    world_size: int
    device: torch.device
    backend: str

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes."""
        return self.rank == 0


def join(config: Config) -> Place:
    """Join the process group that torchrun describes in the environment; alone, make one of one process.

    Raises TrainerError where the wanted device is not there.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise TrainerError("--device is cuda, but PyTorch finds no GPU here: check the driver, or give --device cpu.")
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    options: dict[str, Any] = {"timeout": TIMEOUT}
    if on_gpu:
        torch.cuda.set_device(device)
        options["device_id"] = device  # so that no barrier has to guess it
    if "RANK" not in os.environ:
        options.update(store=dist.HashStore(), rank=0, world_size=1)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, **options)
    return Place(dist.get_rank(), dist.get_world_size(), device, backend)


def share(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def leave() -> None:
    """Leave the process group, after all others have come this far."""
    dist.barrier()
    dist.destroy_process_group()


class StopRequest:
    """Notes SIGTERM and SIGINT, so that training can end after a step instead of within it."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True


class StepReport:
    """What all ranks agree on after a step, in one all_reduce: the loss, and whether anyone was asked to stop."""

    def __init__(self, place: Place) -> None:
        self._values = torch.zeros(2, dtype=torch.float64 if place.device.type == "cpu" else torch.float32)
        self._values = self._values.to(place.device)

    def agree(self, loss_sum: torch.Tensor, stop: bool) -> tuple[float, bool]:
        """Return (sum of all ranks' losses, whether to stop); the same on every rank."""
        self._values[0] = loss_sum
        self._values[1] = float(stop)
        dist.all_reduce(self._values)
        total, votes = self._values.tolist()
        return total, votes > 0
