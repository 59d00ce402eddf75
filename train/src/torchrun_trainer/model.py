"""The model of a run, and its optimizer."""

from __future__ import annotations

import io
from collections.abc import Sequence
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
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise TrainerError(f"--model {config.model} returned a model without parameters to train.")
        check_savable(model, config)
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
    if not losses.requires_grad:
        raise TrainerError(
            f"--model {config.model} returned losses without a gradient: compute them from the model's parameters, "
            "outside of torch.no_grad() and without detach()."
        )


def check_savable(model: nn.Module, config: Config) -> None:
    """Raise TrainerError where a checkpoint of a user's model could not be loaded again without running code."""
    extra = {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}
    if not extra:
        return
    content = io.BytesIO()
    try:
        torch.save(extra, content)
        content.seek(0)
        torch.load(content, weights_only=True)
    except Exception as error:  # pickling runs the code of whatever the values are
        raise TrainerError(
            f"--model {config.model} has a state that no checkpoint can hold ({', '.join(extra)}): return tensors and "
            "plain values from get_extra_state()."
        ) from error


def shape_of(model: nn.Module) -> dict[str, str]:
    """Return what the models of all ranks must have in common: name, shape and type of each tensor."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: f"{tuple(tensor.shape)} of {tensor.dtype}".replace("torch.", "") for name, tensor in tensors}


def difference(shapes: Sequence[dict[str, str]]) -> str | None:
    """Return how the model of a rank differs from that of rank 0, or None."""
    for rank, shape in enumerate(shapes):
        for name in {**shapes[0], **shape}:
            mine, theirs = shapes[0].get(name, "missing"), shape.get(name, "missing")
            if mine != theirs:
                return (
                    f"The model's {name} is {theirs} on rank {rank} and {mine} on rank 0: build the same on all ranks."
                )
    return None


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
