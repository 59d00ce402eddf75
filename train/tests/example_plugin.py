"""Data and a model of your own: --dataset example_plugin:Digits --model example_plugin:Net."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torchrun_trainer.config import Config


class Digits(torch.utils.data.Dataset):
    def __init__(self, config: Config) -> None:
        self.images, self.labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(self.images[index] / 16, dtype=torch.float32), int(self.labels[index])


class Net(nn.Module):
    def __init__(self, config: Config, dataset: Digits) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, config.width), nn.ReLU(), nn.Linear(config.width, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(images), labels, reduction="none")  # a loss for each sample
