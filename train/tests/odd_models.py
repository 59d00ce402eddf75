"""Data and models of tests: with dropout, slow on a rank, or with a loss that is not a number."""

# ruff: noqa: ARG001, ARG002 (all of them get the config, and models the dataset)

from __future__ import annotations

import math
import os
import time

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
