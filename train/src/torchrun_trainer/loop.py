"""The training loop."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchrun_trainer import checkpoint
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.config import Config
from torchrun_trainer.data import Samples, learning_rate, shard
from torchrun_trainer.distributed import Place, StepReport, StopRequest, share
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.metrics import Metrics, Rate


@dataclass(frozen=True)
class Result:
    """How training ended. `status` is finished or stopped; `loss` is that of the last step, in nats per byte."""

    status: str
    progress: Progress
    loss: float | None
    samples_per_s: float


def forward_type(config: Config, place: Place) -> AbstractContextManager[object]:
    """Return the context of the forward pass."""
    wanted = config.precision
    if wanted == "auto":
        on_gpu = place.device.type == "cuda" and torch.cuda.is_bf16_supported()
        wanted = "bfloat16" if on_gpu else "float32"
    return torch.autocast(place.device.type, torch.bfloat16) if wanted == "bfloat16" else nullcontext()


@dataclass
class Run:
    """All that training needs; `progress` moves on."""

    config: Config
    place: Place
    model: nn.Module
    optimizer: torch.optim.Optimizer
    samples: Samples
    progress: Progress
    checkpoints: Path
    metrics: Metrics
    stop: StopRequest


def train(run: Run) -> Result:
    """Train to the last step, or to the step after which any rank was asked to stop.

    Every rank runs the same steps and leaves with the same result. Checkpoints are rank 0's.
    """
    config, place, model, optimizer, metrics = run.config, run.place, run.model, run.optimizer, run.metrics
    ddp = DistributedDataParallel(
        model,
        device_ids=[place.device] if place.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    report, rate = StepReport(place), Rate()
    precision = forward_type(config, place)
    bytes_per_step = config.batch_size * config.block_size
    loss: float | None = None
    stopping = False
    while run.progress.step < config.steps and not stopping:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(run.progress.step, config.steps, config.warmup, config.lr)
        mine = shard(config.batch_size, place.rank, place.world_size)
        numbers = range(run.progress.samples + mine.start, run.progress.samples + mine.stop)
        inputs, targets = (block.to(place.device, non_blocking=True) for block in run.samples.batch(numbers))
        with precision:
            loss_sum = ddp(inputs, targets)
        # DDP divides by the world size; multiplied by it, the gradient is that of the whole batch, however it is split.
        (loss_sum * (place.world_size / bytes_per_step)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        total, stopping = report.agree(loss_sum.detach(), run.stop.asked)
        loss = total / bytes_per_step
        run.progress = Progress(run.progress.step + 1, run.progress.samples + config.batch_size)
        rate.step(config.batch_size)
        if loss != loss:  # noqa: PLR0124 (not a number is the one value that differs from itself)
            raise TrainerError(
                f"The loss of step {run.progress.step} is not a number: give a lower --lr, and --resume auto."
            )
        last = run.progress.step == config.steps or stopping
        if rate.is_first or run.progress.step % config.log_every == 0 or last:
            samples_per_s, seconds = rate.interval()
            metrics.event(
                "step",
                step=run.progress.step,
                loss=loss,
                lr=optimizer.param_groups[0]["lr"],
                grad_norm=float(norm),
                samples_per_s=samples_per_s,
                tokens_per_s=samples_per_s * config.block_size,
            )
            metrics.progress(run.progress.step, config.steps, loss, samples_per_s, seconds)
        if run.progress.step % config.checkpoint_every == 0 or last:
            save(run)
    status = "finished" if run.progress.step >= config.steps else "stopped"
    return Result(status, run.progress, loss, rate.overall())


def save(run: Run) -> None:
    """Let rank 0 write a checkpoint; all ranks learn whether it could, so that none trains on without one."""
    problem = None
    if run.place.is_main:
        try:
            path = checkpoint.save(run.checkpoints, run.progress, run.model, run.optimizer, run.config)
            run.metrics.event("checkpoint", step=run.progress.step, path=str(path))
        except TrainerError as error:
            problem = str(error)
    problem = share(problem)
    if problem:
        raise TrainerError(problem)
