"""The options of a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from torchrun_trainer.errors import TrainerError


@dataclass(frozen=True)
class Config:
    """Train a byte-level GPT on text, on every process that torchrun starts."""

    data: str = ""
    """Folder of text files; by default the source of Python's standard library on the node of rank 0."""
    steps: int = 200
    """Optimizer steps of the whole run, those before a restart included."""
    batch_size: int = 36
    """Samples of one step, over all ranks together."""
    block_size: int = 96
    """Bytes of one sample."""
    layers: int = 3
    """Transformer blocks."""
    heads: int = 4
    """Attention heads."""
    width: int = 128
    """Size of the residual stream."""
    lr: float = 3e-3
    """Highest learning rate; it rises linearly over warmup steps and falls along a cosine to a tenth."""
    warmup: int = 20
    """Steps until the highest learning rate."""
    weight_decay: float = 0.1
    """Weight decay of matrices; biases and norms have none."""
    grad_clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Seed of the weights and of the order of samples."""
    checkpoint_every: int = 50
    """Steps between checkpoints."""
    keep: int = 3
    """Checkpoints to keep."""
    log_every: int = 10
    """Steps between lines of metrics."""
    resume: Literal["auto", "never"] = "auto"
    """Go on from the newest checkpoint of the run folder, or begin anew."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward pass; auto is bfloat16 on a GPU that has it, else float32."""

    def check(self, world_size: int) -> None:
        """Raise TrainerError for values that cannot work."""
        positive = (
            "steps",
            "batch_size",
            "block_size",
            "layers",
            "heads",
            "width",
            "checkpoint_every",
            "keep",
            "log_every",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise TrainerError(f"--{name.replace('_', '-')} is {getattr(self, name)}: give a whole number from 1.")
        for name in ("lr", "grad_clip"):
            if not getattr(self, name) > 0:
                raise TrainerError(f"--{name.replace('_', '-')} is {getattr(self, name)}: give a number above 0.")
        if self.seed < 0:
            raise TrainerError(f"--seed is {self.seed}: give a whole number from 0.")
        if self.warmup < 0 or self.weight_decay < 0:
            raise TrainerError("--warmup and --weight-decay cannot be negative.")
        if self.width % self.heads:
            raise TrainerError(f"--width {self.width} is no multiple of --heads {self.heads}: change one of them.")
        if self.batch_size < world_size:
            raise TrainerError(
                f"--batch-size {self.batch_size} is below the world size {world_size}: every rank needs a sample."
            )

    def model_hash(self) -> str:
        """Return a digest of what a checkpoint's weights depend on: another value means another model."""
        kept = {name: asdict(self)[name] for name in ("block_size", "layers", "heads", "width")}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
