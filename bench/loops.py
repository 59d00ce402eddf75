"""The training loops that bench/trainer.py compares, each as a process: python bench/loops.py LOOP SETTINGS.

All train the trainer's GPT on the trainer's prepared corpus with the same optimizer; SETTINGS is a JSON object with
`ticks` (file of the step times), `folder` (prepared corpus) and `options` (fields of the trainer's config).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from side_by_side import Ticks, option_words
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchrun_trainer import cli, corpus, hardware, loop, monitor
from torchrun_trainer.config import Config
from torchrun_trainer.data import Order
from torchrun_trainer.model import build, make_optimizer

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Tensors = tuple[torch.Tensor, torch.Tensor]


def trainer(settings: dict[str, Any], tick: Callable[[], None]) -> None:
    """Run the trainer itself."""
    count = monitor.Monitor.count

    def counted(self: monitor.Monitor, samples: int) -> None:
        count(self, samples)
        tick()

    monitor.Monitor.count = counted
    sys.argv = ["torchrun_trainer", *option_words(settings["options"])]
    cli.main()


def prepared(settings: dict[str, Any]) -> tuple[Config, corpus.TextBlocks, torch.nn.Module]:
    """Return what all other loops begin with: config, samples and model."""
    config = Config(**settings["options"])
    samples = corpus.load(config, Path(settings["folder"]))
    torch.manual_seed(config.seed)
    return config, samples, build(config, samples)


def schedule(config: Config, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Return the trainer's learning rates as PyTorch's scheduler."""
    return LambdaLR(optimizer, lambda step: loop.learning_rate(step, config.steps, config.warmup, 1.0))


def autocast(config: Config) -> torch.autocast:
    """Return the context of the forward pass."""
    return torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16")


def plain(settings: dict[str, Any], tick: Callable[[], None]) -> None:
    """Nothing but PyTorch, tuned: fused AdamW, one gather a batch, and memory that the allocator keeps."""
    hardware.keep_freed_memory()
    config, samples, model = prepared(settings)
    optimizer = make_optimizer(config, model)
    scheduler = schedule(config, optimizer)
    module = model
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
        module = DistributedDataParallel(model)
    order, share = Order(len(samples), config.seed), config.batch_size // WORLD_SIZE
    for step in range(config.steps):
        first = step * config.batch_size + RANK * share
        ((epoch, indices),) = order.pieces(range(first, first + share))
        inputs, targets = samples.batch(indices, epoch)
        with autocast(config):
            loss = module(inputs, targets).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        log(step, loss)
        tick()


def log(step: int, loss: torch.Tensor) -> None:
    """Tell of every tenth step, as the trainer does."""
    if RANK == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)


class Blocks(TorchDataset[Tensors]):
    """The corpus as PyTorch's documentation has datasets: one sample at a time."""

    def __init__(self, samples: corpus.TextBlocks, folder: str) -> None:
        about = json.loads(Path(folder, "about.json").read_text())
        self._tokens = np.memmap(Path(folder, "tokens.bin"), dtype=about["dtype"], mode="r")
        self._size, self._samples = samples.block_size, len(samples)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._samples

    def __getitem__(self, index: int) -> Tensors:
        """Return inputs and targets."""
        block = torch.from_numpy(self._tokens[index * self._size : (index + 1) * self._size + 1].astype(np.int64))
        return block[:-1], block[1:]


def loader_of(config: Config, samples: corpus.TextBlocks, folder: str) -> DataLoader[Tensors]:
    """Return the loader that both libraries are given."""
    blocks = Blocks(samples, folder)
    return DataLoader(blocks, batch_size=config.batch_size // WORLD_SIZE, shuffle=True, drop_last=True)


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def accelerate(settings: dict[str, Any], tick: Callable[[], None]) -> None:
    """Train with Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415 (only this loop needs it)

    config, samples, model = prepared(settings)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if config.precision == "bfloat16" else "no")
    optimizer = make_optimizer(config, model)
    loader = loader_of(config, samples, settings["folder"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    scheduler = schedule(config, optimizer)
    for step, (inputs, targets) in enumerate(endless(loader)):
        loss = model(inputs, targets).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        log(step, loss)
        tick()


def fabric(settings: dict[str, Any], tick: Callable[[], None]) -> None:
    """Train with Lightning Fabric."""
    from lightning_fabric import Fabric  # noqa: PLC0415 (only this loop needs it)

    config, samples, model = prepared(settings)
    # Any: where Fabric is installed, its own types are narrower than these.
    precision: Any = "bf16-mixed" if config.precision == "bfloat16" else "32-true"
    strategy: Any = "ddp" if WORLD_SIZE > 1 else "auto"
    library = Fabric(accelerator="cpu", devices=WORLD_SIZE, strategy=strategy, precision=precision)
    library.launch()
    wrapped, optimizer = library.setup(model, make_optimizer(config, model))
    loader = library.setup_dataloaders(loader_of(config, samples, settings["folder"]))
    scheduler = schedule(config, optimizer)
    for step, (inputs, targets) in enumerate(endless(loader)):
        loss = wrapped(inputs, targets).mean()
        library.backward(loss)
        library.clip_gradients(wrapped, optimizer, max_norm=config.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        log(step, loss)
        tick()


def nanogpt_style(settings: dict[str, Any], tick: Callable[[], None]) -> None:
    """Train as nanoGPT does by default on a CPU: float32, AdamW that is not fused, a batch stacked of slices."""
    config, samples, model = prepared(settings)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
    about, size = json.loads(Path(settings["folder"], "about.json").read_text()), config.block_size
    tokens = np.memmap(Path(settings["folder"], "tokens.bin"), dtype=about["dtype"], mode="r")
    del samples

    def batch() -> Tensors:
        starts = torch.randint(len(tokens) - size, (config.batch_size,))
        inputs = [torch.from_numpy(tokens[start : start + size].astype(np.int64)) for start in starts]
        targets = [torch.from_numpy(tokens[start + 1 : start + 1 + size].astype(np.int64)) for start in starts]
        return torch.stack(inputs), torch.stack(targets)

    inputs, targets = batch()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = loop.learning_rate(step, config.steps, config.warmup, config.lr)
        loss = model(inputs, targets).mean()
        inputs, targets = batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
        tick()


LOOPS = {found.__name__: found for found in (trainer, plain, accelerate, fabric, nanogpt_style)}


def main() -> None:
    """Run the loop of the command line until it is killed."""
    settings = json.loads(sys.argv[2])
    ticks = Ticks(Path(settings["ticks"]))
    LOOPS[sys.argv[1]](settings, ticks.tick if RANK == 0 else lambda: None)


if __name__ == "__main__":
    main()
