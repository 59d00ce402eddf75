"""The options of a run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Literal

from torchrun_trainer.errors import TrainerError

# What a checkpoint's weights depend on: another value means another model.
SHAPE = ("task", "model", "tokenizer", "vocab_size", "block_size", "image_size", "layers", "heads", "width")


@dataclass(frozen=True)
class Config:
    """Train on every process that torchrun starts: a GPT on text, a ResNet on images, or a model of your own."""

    task: Literal["lm", "image"] = "lm"
    """lm: predict text. image: classify images."""
    data: str = ""
    """Folder of text files (lm; by default the source of Python's standard library on the node of rank 0), or folder
    with a subfolder of images for each class (image; by default the handwritten digits of scikit-learn)."""
    dataset: str = ""
    """Your own data instead: package.module:function. It gets this config and returns a map-style dataset."""
    model: str = ""
    """Your own model instead: package.module:function. It gets this config and the dataset and returns a module that,
    called with a batch, returns the loss of each sample."""

    steps: int = 200
    """Optimizer steps of the whole run, those before a restart included."""
    batch_size: int = 36
    """Samples of one step, over all ranks together."""
    micro_batch: int = 0
    """Most samples that a rank computes at once; a rank with more accumulates gradients. 0: no limit."""

    tokenizer: Literal["bytes", "bpe"] = "bytes"
    """lm: bytes, or a byte-level BPE that is trained on the corpus."""
    vocab_size: int = 4096
    """lm: tokens of the BPE."""
    block_size: int = 96
    """lm: tokens of one sample."""
    image_size: int = 32
    """image: side in pixels that the images of a folder are scaled to."""
    layers: int = 3
    """Transformer blocks; residual stages for images."""
    heads: int = 4
    """lm: attention heads."""
    width: int = 128
    """Size of the residual stream; channels of the last stage for images."""

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
    nonfinite: Literal["stop", "skip"] = "stop"
    """At a loss or gradient that is not finite: stop, or skip the step and say so (ten in a row stop all the same)."""

    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the forward pass; auto takes the fastest that all ranks have in hardware."""
    compile: bool = False
    """Compile the model with torch.compile: a slow first step, then faster ones."""
    static_graph: bool = True
    """Tell DDP that every step uses the same parameters; turn it off for a model whose steps differ."""
    comm_hook: Literal["none", "bf16", "powersgd"] = "none"
    """Compress gradients on the way: for links that are slower than the nodes."""
    powersgd_rank: int = 4
    """Rank of the matrices that powersgd sends."""
    loader_threads: int = -1
    """Threads that load ahead; -1: one where a GPU computes, else none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    balance: Literal["auto", "equal"] = "auto"
    """How a step's samples are divided: by the measured speed of each rank, or equally."""
    rebalance_above: float = 0.1
    """auto: divide anew when that would make steps shorter by this share, three measurements in a row."""

    checkpoint_every: int = 50
    """Steps between checkpoints."""
    keep: int = 3
    """Newest checkpoints to keep."""
    keep_every: int = 0
    """Keep also those whose step is a multiple of this; 0: none."""
    resume: Literal["auto", "never"] = "auto"
    """Go on from the newest checkpoint of the run folder, or begin anew."""
    log_every: int = 10
    """Steps between lines of metrics."""
    tensorboard: bool = True
    """Write TensorBoard's event files beside metrics.jsonl."""
    step_timeout: int = 0
    """Seconds after which a step that hangs ends the process; 0: a quarter more than the job's hang timeout (or 96),
    after which the node's agent has kept the stacks. The first step has ten minutes."""

    def check(self, world_size: int) -> None:
        """Raise TrainerError for values that cannot work."""
        self._check_ranges()
        for name in ("model", "dataset"):
            value = getattr(self, name)
            if value and not re.fullmatch(DOTTED, value):
                raise TrainerError(
                    f"--{name} is {value}: give package.module:function, with the folder of the package in PYTHONPATH."
                )
        if not self.model and self.task == "lm" and self.width % self.heads:
            raise TrainerError(f"--width {self.width} is no multiple of --heads {self.heads}: change one of them.")
        if self.tokenizer == "bpe" and not 257 <= self.vocab_size <= 65536:
            raise TrainerError(f"--vocab-size is {self.vocab_size}: give one from 257 to 65536.")
        if self.batch_size < world_size:
            raise TrainerError(
                f"--batch-size {self.batch_size} is below the world size {world_size}: every rank needs a sample."
            )

    def _check_ranges(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise TrainerError(f"--{dashed(name)} is {getattr(self, name)}: give a whole number from 1.")
        for name in NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainerError(f"--{dashed(name)} is {getattr(self, name)}: give a number from 0.")
        for name, most in LIMITS.items():
            if getattr(self, name) > most:
                raise TrainerError(f"--{dashed(name)} is {getattr(self, name)}: the most is {most}.")
        for name in ("lr", "grad_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainerError(f"--{dashed(name)} is {getattr(self, name)}: give a number above 0.")

    def model_hash(self) -> str:
        """Return a digest of what a checkpoint's weights depend on."""
        kept = {name: asdict(self)[name] for name in SHAPE}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


COUNTS = (
    "steps", "batch_size", "block_size", "layers", "heads", "width", "checkpoint_every", "keep", "log_every",
    "image_size", "powersgd_rank",
)  # fmt: skip
NOT_NEGATIVE = ("seed", "warmup", "weight_decay", "micro_batch", "keep_every", "rebalance_above", "step_timeout")
LIMITS = {
    "seed": 2**63 - 1, "batch_size": 2**24, "image_size": 4096, "step_timeout": 7 * 24 * 3600, "loader_threads": 256
}  # fmt: skip
DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


def dashed(name: str) -> str:
    """Return an option as it is typed."""
    return name.replace("_", "-")
