"""A small residual network for images."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own name for it)
from torch import nn

from torchrun_trainer.config import Config


def normalized(channels: int) -> nn.GroupNorm:
    """Return a normalization within each sample: over the batch, it would depend on how ranks divide that."""
    groups = next(count for count in (8, 4, 2, 1) if channels % count == 0)
    return nn.GroupNorm(groups, channels)


class ResidualBlock(nn.Module):
    """Two convolutions added to their input; `stride` 2 halves height and width."""

    def __init__(self, channels: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels_out, 3, stride, padding=1, bias=False)
        self.first_norm = normalized(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.second_norm = normalized(channels_out)
        same = stride == 1 and channels == channels_out
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(channels, channels_out, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (samples, channels, height, width) to (samples, channels_out, height / stride, width / stride)."""
        hidden = F.relu(self.first_norm(self.first(images)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


class ResNet(nn.Module):
    """Classifies images: `layers` stages of two blocks, each stage with twice the channels at half the size."""

    def __init__(self, config: Config, channels: int, classes: int) -> None:
        super().__init__()
        # Down from the last stage's width, in multiples of 8.
        widths = [max(8, config.width >> (config.layers - 1 - stage) & ~7) for stage in range(config.layers)]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.stem_norm = normalized(widths[0])
        blocks, width = [], widths[0]
        for stage, wanted in enumerate(widths):
            blocks += [ResidualBlock(width, wanted, 1 if stage == 0 else 2), ResidualBlock(wanted, wanted, 1)]
            width = wanted
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each image in nats, shape (samples,)."""
        hidden = self.blocks(F.relu(self.stem_norm(self.stem(images))))
        logits = self.head(hidden.mean(dim=(2, 3))).float()
        return F.cross_entropy(logits, labels, reduction="none")
