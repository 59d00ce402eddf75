"""Which samples a step has, in an order that no shape of the cluster changes, and loading them ahead of the step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from torchrun_trainer import corpus, images, plugin
from torchrun_trainer.config import Config
from torchrun_trainer.errors import RankError, TrainerError

Batch = tuple[torch.Tensor, ...]


class Dataset(Protocol):
    """A map-style dataset: len(dataset) samples, each a tuple of tensors.

    With a method `batch(indices, epoch)`, which returns the tensors of many samples at once, that is used instead.
    What a sample is may depend on its index and the epoch alone, or a resumed run is not the uninterrupted one.
    """

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        ...


def prepare(config: Config, data_dir: Path) -> str:
    """Make on rank 0 what all ranks load; return where it is. Raises TrainerError."""
    if config.dataset:
        return ""
    return str((corpus if config.task == "lm" else images).prepare(config, data_dir))


def load(config: Config, folder: str) -> Any:
    """Return the dataset, on every rank. Raises TrainerError."""
    if config.dataset:
        dataset = plugin.call("dataset", config.dataset, config)
        check(dataset, config)
        return dataset
    return corpus.load(config, Path(folder)) if config.task == "lm" else images.Images(Path(folder))


def check(dataset: Any, config: Config) -> None:
    """Raise TrainerError where a user's dataset is not as `Dataset` tells; its first sample is looked at."""
    what = f"--dataset {config.dataset} returned {type(dataset).__name__}"
    if not hasattr(dataset, "__len__") or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        raise TrainerError(
            f"{what}: return a map-style dataset, with __len__ and __getitem__ (an order that is the same on any "
            "number of ranks needs samples that can be asked for by number)."
        )
    if not len(dataset):
        raise TrainerError(f"--dataset {config.dataset} returned a dataset without samples.")
    if hasattr(dataset, "batch"):
        batch = dataset.batch(np.zeros(1, dtype=np.int64), 0)
        if not isinstance(batch, (tuple, list)) or not all(isinstance(part, torch.Tensor) for part in batch):
            raise TrainerError(f"{what}, whose batch() returned {_types(batch)}: return a tuple of tensors.")
        check_rows(tuple(batch), 1, config.dataset)
    else:
        sample = dataset[0]
        if not isinstance(sample, (tuple, list)):
            raise TrainerError(
                f"{what}, whose sample 0 is {_types(sample)}: return a tuple, such as (inputs, targets); the model is "
                "called with its parts."
            )


def _types(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__


def check_rows(batch: Batch, samples: int, name: str) -> None:
    """Raise RankError where batch() did not return as many samples as it was asked for."""
    rows = [len(part) if part.dim() else 0 for part in batch]
    if not rows or set(rows) != {samples}:
        raise RankError(
            f"--dataset {name}: batch() returned tensors of {', '.join(map(str, rows)) or 'no'} rows for {samples} "
            "samples: return one row for each."
        )


class Order:
    """Where global sample number g is: at place (g mod n) of a permutation that depends on (seed, g div n) alone.

    So it is the same on any number of ranks, and after a restart; n is the number of samples of an epoch.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed = samples, seed
        self._permutation = lru_cache(maxsize=2)(self._make)

    def _make(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(self.samples)

    def pieces(self, numbers: range) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return (epoch, indices of its samples) for consecutive global samples: one piece an epoch."""
        found, first = [], numbers.start
        while first < numbers.stop:
            epoch, place = divmod(first, self.samples)
            count = min(numbers.stop - first, self.samples - place)
            found.append((epoch, self._permutation(epoch)[place : place + count]))
            first += count
        return found


def fetch(dataset: Any, indices: npt.NDArray[np.int64], epoch: int) -> Batch:
    """Return the tensors of some samples of an epoch, the first dimension of each being the sample."""
    if hasattr(dataset, "batch"):
        batch = tuple(dataset.batch(indices, epoch))
        check_rows(batch, len(indices), type(dataset).__name__)
        return batch
    return tuple(torch.utils.data.default_collate([tuple(dataset[int(index)]) for index in indices]))


class Loader:
    """Gives a rank its micro-batches of a step, and prepares those of the next step meanwhile, given threads."""

    def __init__(self, dataset: Any, seed: int, device: torch.device, threads: int) -> None:
        self._dataset, self._device = dataset, device
        self._order = Order(len(dataset), seed)
        if threads < 0:
            threads = 1 if device.type == "cuda" else 0
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._ahead: tuple[Any, Future[list[Batch]]] | None = None

    def _load(self, micro_batches: Sequence[range]) -> list[Batch]:
        batches = []
        for numbers in micro_batches:
            pieces = [fetch(self._dataset, indices, epoch) for epoch, indices in self._order.pieces(numbers)]
            batch = pieces[0] if len(pieces) == 1 else tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
            if self._device.type == "cuda":
                batch = tuple(tensor.pin_memory() for tensor in batch)
            batches.append(batch)
        return batches

    def take(self, micro_batches: Sequence[range], following: Sequence[range]) -> list[Batch]:
        """Return the batches of ranges of global samples on the device, and begin to load the following ones."""
        if self._ahead and self._ahead[0] == micro_batches:
            batches = self._ahead[1].result()
        else:  # the first step, or a new division of the samples
            batches = self._load(micro_batches)
        if self._pool:
            self._ahead = (following, self._pool.submit(self._load, following))
        if self._device.type == "cpu":
            return batches
        return [tuple(tensor.to(self._device, non_blocking=True) for tensor in batch) for batch in batches]

    def close(self) -> None:
        """End the threads."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
