"""The state of a run: saved in checkpoints, and taken from the newest one that is whole."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchrun_trainer import __version__, checkpoint, distributed, random_state
from torchrun_trainer.balance import Balancer
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.config import Config
from torchrun_trainer.distributed import Place
from torchrun_trainer.errors import TrainerError, writing
from torchrun_trainer.loop import Run
from torchrun_trainer.metrics import Metrics
from torchrun_trainer.progress import Progress as Display
from torchrun_trainer.snapshot import Writer


class Keeper:
    """Saves and restores the state of a run; rank 0 writes, and every rank reads."""

    def __init__(self, folder: Path, config: Config, place: Place, metrics: Metrics, display: Display) -> None:
        self._folder, self._config, self._place = folder, config, place
        self._metrics, self._display = metrics, display
        self._writer = Writer()

    def choose(self) -> str:
        """Return the checkpoint to go on from, or '' to begin; rank 0 only. Raises TrainerError."""
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        checkpoint.clean(self._folder)
        path = None
        if self._config.resume == "auto":
            path, warnings = checkpoint.newest_readable(self._folder, self._config.model_hash())
            for warning in warnings:
                self._say(warning)
        step = checkpoint.step_of(path) if path else 0
        if step > self._config.steps:
            raise TrainerError(
                f"The run has done {step} steps already, and --steps is {self._config.steps}: give more, or another "
                "job name."
            )
        for sentence in checkpoint.set_aside_newer(self._folder, step):
            self._say(sentence)
        return str(path or "")

    def _say(self, warning: str) -> None:
        self._metrics.event("warning", text=warning)
        self._display.say(f"warning: {warning}")

    def resume(
        self,
        chosen: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        balancer: Balancer,
    ) -> Progress:
        """Take the state of the chosen checkpoint, on every rank, and return where the run was.

        Random numbers and the division of samples are taken as they were when the ranks are the same; else they are
        made anew. Raises TrainerError.
        """
        place, config = self._place, self._config
        if not chosen:
            random_state.seed(config.seed, place.rank, 0)
            return Progress()
        state = checkpoint.read(Path(chosen))
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        try:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainerError(
                f"The checkpoint {chosen} is of another model ({str(error).splitlines()[0]}): give its code and "
                "options, another job name, or --resume never."
            ) from error
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay  # an option, which may be another one now
        if state["scaler"] and scaler.is_enabled():
            scaler.load_state_dict(state["scaler"])
        progress = Progress(state["step"], state["samples"])
        if len(state["random"]) == place.world_size:
            random_state.restore(state["random"][place.rank], place.device)
        else:
            random_state.seed(config.seed, place.rank, progress.step)
        same_ranks = state["hosts"] == list(place.hosts) and sum(state["plan"]) == config.batch_size
        if same_ranks and config.balance == "auto":
            balancer.plan = tuple(state["plan"])
            balancer.calibrated = state["calibrated"]
        return progress

    def save(self, run: Run) -> None:
        """Take a checkpoint, on all ranks. Training goes on as soon as the state is copied in memory.

        When the one before could not be written, this one is not, and the next step ends the run on all ranks.
        """
        config = self._config
        random = distributed.gather(random_state.capture(self._place.device))
        if random is None:
            return
        progress = run.progress
        state: dict[str, Any] = {
            "step": progress.step,
            "samples": progress.samples,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "random": random,
            "plan": list(run.balancer.plan),
            "calibrated": run.balancer.calibrated,
            "hosts": list(self._place.hosts),
            "config": asdict(config),
            "config_hash": config.model_hash(),
            "versions": {"torch": str(torch.__version__), "numpy": np.__version__, "trainer": __version__},
        }

        def write(copied: dict[str, Any]) -> Path:
            return checkpoint.write(
                self._folder,
                progress,
                copied,
                model_hash=config.model_hash(),
                keep=config.keep,
                keep_every=config.keep_every,
            )

        def done(path: Path) -> None:
            self._metrics.event("checkpoint", step=progress.step, path=str(path))

        self._writer.start(state, write, done)

    def problem(self) -> TrainerError | None:
        """Return why a checkpoint could not be written, if so."""
        return self._writer.problem

    def finish(self) -> None:
        """Wait for the last checkpoint. Raises TrainerError when it could not be written."""
        self._writer.finish()
