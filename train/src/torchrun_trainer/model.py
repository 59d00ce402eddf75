"""The model of a run, and its optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchrun_trainer import plugin
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.gpt import GPT
from torchrun_trainer.resnet import ResNet


def build(config: Config, dataset: Any) -> nn.Module:
    """Return a module that, called with the tensors of a batch, returns the loss of each sample, shape (samples,).

    Losses by sample, not their mean: so a step's gradient can be that of the whole batch, however ranks divide it.
    Raises TrainerError.
    """
    if config.model:
        model = plugin.call("model", config.model, config, dataset)
        if not isinstance(model, nn.Module):
            raise TrainerError(f"--model {config.model} returned {type(model).__name__}: return a torch.nn.Module.")
        return model
    wanted = "vocab_size" if config.task == "lm" else "classes"
    if not hasattr(dataset, wanted):
        raise TrainerError(
            f"--dataset {config.dataset} has no attribute {wanted}, which the model of task {config.task} needs: "
            "add it, or give --model too."
        )
    return (
        GPT(config, dataset.vocab_size)
        if config.task == "lm"
        else ResNet(config, dataset.channels, len(dataset.classes))
    )


def check_losses(losses: torch.Tensor, samples: int, config: Config) -> None:
    """Raise TrainerError where a user's model does not return a loss for each sample."""
    is_tensor = isinstance(losses, torch.Tensor)
    if not is_tensor or losses.shape != (samples,):
        what = f"losses of shape {tuple(losses.shape)}" if is_tensor else type(losses).__name__
        raise TrainerError(
            f"--model {config.model} returned {what} for {samples} samples: return one "
            f"loss a sample, shape ({samples},), such as with reduction='none'."
        )


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW: matrices decay, biases and norms do not. Fused, which also on CPU is the fastest."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=(0.9, 0.95), fused=True
    )
