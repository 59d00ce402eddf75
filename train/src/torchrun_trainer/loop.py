"""The training loop."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchrun_trainer import distributed
from torchrun_trainer.balance import Balancer, micro_batches
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.communication import Replica
from torchrun_trainer.config import Config
from torchrun_trainer.data import Batch, Loader
from torchrun_trainer.distributed import Place, StepReport, StopRequest, Verdict
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.heartbeat import Heartbeat
from torchrun_trainer.model import check_losses
from torchrun_trainer.monitor import Monitor
from torchrun_trainer.timing import StepTimer

# So many steps in a row without a finite gradient are no accident.
MOST_SKIPPED = 10
HELP = "give a lower --lr and go on from the last checkpoint, or give --nonfinite skip."


@dataclass(frozen=True)
class Result:
    """How training ended. `status` is finished or stopped; `loss` is that of the last step, a mean over its samples."""

    status: str
    progress: Progress
    loss: float | None
    samples_per_s: float


@dataclass
class Run:
    """All that training needs; `progress` moves on. `save` takes a checkpoint, on all ranks."""

    config: Config
    place: Place
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: Loader
    balancer: Balancer
    monitor: Monitor
    stop: StopRequest
    save: Callable[[Run], None]
    # What this rank has met that ends the run, such as a full disk.
    problem: Callable[[], TrainerError | None] = lambda: None
    progress: Progress = field(default_factory=Progress)


def forward_type(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of the forward pass."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def learning_rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return highest * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))


def train(run: Run) -> Result:
    """Train to the last step, or to the one after which the ranks agree that any of them was asked to stop.

    Every rank runs the same steps and leaves with the same result.
    """
    config, place, balancer, monitor = run.config, run.place, run.balancer, run.monitor
    timer, report, heartbeat = StepTimer(place.device), StepReport(place), Heartbeat(place.rank)
    replica = Replica(run.model, config, place, timer, resumed=run.progress.step > 0)
    first, skipped, loss, stopping = run.progress.step, 0, None, False
    while run.progress.step < config.steps and not stopping:
        step, samples = run.progress.step + 1, run.progress.samples
        since_start = step - first
        lr = learning_rate(step - 1, config.steps, config.warmup, config.lr)

        timer.mark("begun")
        mine, following = (
            micro_batches(balancer.numbers(place.rank, number), config.micro_batch)
            for number in (samples, samples + config.batch_size)
        )
        batches = run.loader.take(mine, following)
        timer.mark("loaded")
        loss_sum = gradients(run, replica, batches)
        timer.mark("reduced")
        norm, skip = update(run, lr)
        timer.mark("done")

        run.progress = Progress(step, samples + config.batch_size)
        skipped = skipped + 1 if skip else 0
        if skip:
            monitor.skipped(step, skipped, float(norm))
        monitor.count(config.batch_size)
        heartbeat.beat(step)
        report.send(step, loss_sum, run.stop.asked, run.problem() is not None)
        logs = since_start == 1 or step % config.log_every == 0 or step == config.steps
        saves = step % config.checkpoint_every == 0 or step == config.steps
        # One step late, so that no step waits for the others' news of it; at once where something is made of it.
        for verdict in report.take(step if logs or saves else step - 1):
            loss, stopping = judge(verdict, run), stopping or verdict.stop
        if logs or saves or skip:
            check_gradient(step, norm, skipped, run)
        if logs or balancer.measures_after(since_start):
            by_rank = distributed.gather_numbers(monitor.numbers_of(timer.means()), place)
            if logs:
                monitor.step(step, loss, lr, float(norm), by_rank)
                gc.collect(1)
            plan = balancer.observe([numbers[1] for numbers in by_rank], since_start)
            if plan:
                monitor.plan(step, plan, "measured")
        if since_start == 1:
            settle(config)
        if saves or skip:
            replica.forget()
        if saves and not stopping:
            heartbeat.beat(step, "saving")
            run.save(run)
    for verdict in report.take(run.progress.step):  # the last step's, where a stop was agreed on before it
        loss = judge(verdict, run)
    heartbeat.beat(run.progress.step, "ending")
    if stopping:
        run.save(run)
    status = "finished" if run.progress.step >= config.steps else "stopped"
    return Result(status, run.progress, loss, monitor.overall())


def gradients(run: Run, replica: Replica, batches: list[Batch]) -> torch.Tensor:
    """Leave the gradient of the whole batch, of all ranks, in the parameters; return this rank's sum of losses."""
    config, place = run.config, run.place
    loss_sum = torch.zeros((), device=place.device)
    for number, batch in enumerate(batches, start=1):
        with replica.syncing(last=number == len(batches)):
            with forward_type(place.precision, place.device):
                losses = replica(*batch)
            if config.model:
                check_losses(losses, len(batch[0]), config)
            part = losses.float().sum()
            # DDP divides by the world size; multiplied by it, the gradient is that of the whole batch, however its
            # samples are divided over ranks and micro-batches.
            run.scaler.scale(part * (place.world_size / config.batch_size)).backward()
        loss_sum += part.detach()
    return loss_sum


def update(run: Run, lr: float) -> tuple[torch.Tensor, bool]:
    """Let the optimizer make a step; return (the norm of the gradient, whether the step was skipped)."""
    run.scaler.unscale_(run.optimizer)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.config.grad_clip, foreach=True)
    # With float16 the scaler skips steps by itself, to find its scale. Else only this asks the GPU, and waits for it.
    skip = run.config.nonfinite == "skip" and not run.scaler.is_enabled() and not bool(torch.isfinite(norm))
    if not skip:
        for group in run.optimizer.param_groups:
            group["lr"] = lr
        run.scaler.step(run.optimizer)
        run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    return norm, skip


def judge(verdict: Verdict, run: Run) -> float:
    """Return the loss of a step. Raises TrainerError, on all ranks, where it ends the run."""
    if verdict.problem:
        distributed.raise_first(run.problem())
    loss = verdict.loss_sum / run.config.batch_size
    if not math.isfinite(loss) and run.config.nonfinite == "stop":
        raise TrainerError(f"The loss of step {verdict.step} is {loss}: {HELP}")
    return loss


def check_gradient(step: int, norm: torch.Tensor, skipped: int, run: Run) -> None:
    """Raise TrainerError, on all ranks, where the last gradient was not finite, or too many were skipped.

    Before anything is saved: what follows from such a gradient is not worth keeping.
    """
    if skipped >= MOST_SKIPPED:
        raise TrainerError(f"{skipped} steps in a row had no finite gradient, up to step {step}: give a lower --lr.")
    if not skipped and not run.scaler.is_enabled() and not bool(torch.isfinite(norm)):
        raise TrainerError(f"The gradient of step {step} is {float(norm)}: {HELP}")


def settle(config: Config) -> None:
    """After the first step: expect the others soon, and keep the garbage collector out of the steps."""
    distributed.expect_steps_within(config.step_timeout or distributed.step_timeout())
    gc.collect()
    gc.freeze()
    gc.disable()
