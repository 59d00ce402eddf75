"""Data and models of tests: with dropout, slow on a rank, or with a loss that is not a number."""

# ruff: noqa: ARG001, ARG002 (all of them get the config, and models the dataset)

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torchrun_trainer.config import Config

RANK = int(os.environ.get("RANK", "0"))


def plugin(model: str) -> list[str]:
    """Return the options that train a model of here on numbers."""
    return ["--dataset", "odd_models:Numbers", "--model", f"odd_models:{model}"]


class Numbers:
    """Samples of 8 numbers, and a target that depends on them."""

    def __init__(self, config: Config, length: int = 100) -> None:
        generator = np.random.default_rng(config.seed)
        self.inputs = torch.from_numpy(generator.normal(size=(length, 8)).astype(np.float32))
        self.targets = self.inputs.sum(dim=1).sin()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


def no_numbers(config: Config) -> Numbers:
    """Return a dataset without samples."""
    return Numbers(config, 0)


class Dropout(nn.Module):
    """A model whose losses depend on random numbers, of PyTorch, NumPy and Python."""

    def __init__(self, config: Config, dataset: Numbers) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
        self.calls = 0

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        self.calls += 1
        noise = float(np.random.normal()) + torch.rand(1)
        return (self.layers(inputs).squeeze(1) - targets + 0.01 * noise) ** 2


class Plain(nn.Module):
    """A model that is deterministic."""

    def __init__(self, config: Config, dataset: Numbers) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.calls = 0

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        self.calls += 1
        return (self.layers(inputs).squeeze(1) - targets) ** 2


class Mean(Plain):
    """A model that returns the mean of its losses."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return one loss for all samples."""
        return super().forward(inputs, targets).mean()


class Unequal(Plain):
    """A model that takes rank 1 three times as long as rank 0."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, after a while for each."""
        time.sleep(0.001 * (3 if RANK == 1 else 1) * len(inputs))
        return super().forward(inputs, targets)


class NanOnce(Plain):
    """A model with a loss that is not a number for one sample, on rank 1 in the step NAN_STEP."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        losses = super().forward(inputs, targets)
        broken = RANK == 1 and self.calls == int(os.environ["NAN_STEP"])
        return torch.cat([losses[:1] * math.nan, losses[1:]]) if broken else losses


class NanAlways(Plain):
    """A model whose losses are infinite from step 3 on."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        losses = super().forward(inputs, targets)
        return losses * math.inf if self.calls >= 3 else losses


def text(config: Config, dataset: Numbers) -> str:
    """Return no model."""
    return "no model"


class InfiniteGradient(Plain):
    """A model whose losses are finite and whose gradient is not: from step 2 on, the root of 0."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        losses = super().forward(inputs, targets)
        return (losses * 0).sqrt() if self.calls >= 2 else losses


class Pair(Plain):
    """A model that returns its losses and something else."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the losses, and how many there are."""
        return super().forward(inputs, targets), len(inputs)


class Broken(Plain):
    """A model with an error."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Divide by zero."""
        return super().forward(inputs, targets) / (1 // 0)


def nothing_at_all(config: Config) -> None:
    """Return no dataset."""


class Stream:
    """Data that can only be asked for the next sample."""

    def __init__(self, config: Config) -> None:
        self.numbers = Numbers(config)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self.numbers[index] for index in range(len(self.numbers)))


class Bare(Numbers):
    """Samples that are tensors, not tuples."""

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        return self.inputs[index]


class BareBatch(Numbers):
    """Batches that are tensors, not tuples."""

    def batch(self, indices: np.ndarray, epoch: int) -> torch.Tensor:
        """Return the inputs alone."""
        return self.inputs[indices]


class Short(Numbers):
    """Batches that lack a sample, on rank 1 and not of one sample."""

    def batch(self, indices: np.ndarray, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets."""
        if RANK == 1 and len(indices) > 1:
            indices = indices[1:]
        return self.inputs[indices], self.targets[indices]


class Empty(nn.Module):
    """A model without parameters."""

    def __init__(self, config: Config, dataset: Numbers) -> None:
        super().__init__()


class NoGradient(Plain):
    """A model whose losses do not depend on its parameters."""

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return losses that are cut off from the parameters."""
        return super().forward(inputs, targets).detach()


def other_by_rank(config: Config, dataset: Numbers) -> Plain:
    """Return a model that is wider on rank 1."""
    model = Plain(config, dataset)
    model.layers[0] = nn.Linear(8, 32 + RANK)
    return model


class Unsavable(Plain):
    """A model with a state that only code can restore."""

    def get_extra_state(self) -> object:
        """Return something else than plain values."""
        return Numbers

    def set_extra_state(self, state: object) -> None:
        """Take it."""


class Sometimes(Plain):
    """A model that uses its second branch in every other step."""

    def __init__(self, config: Config, dataset: Numbers) -> None:
        super().__init__(config, dataset)
        self.branch = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        losses = super().forward(inputs, targets)
        return losses + self.branch(inputs).squeeze(1) ** 2 if self.calls % 2 == 0 else losses
