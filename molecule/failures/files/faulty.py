"""The packaged trainer's GPT, in which one rank comes to harm once, in the forward pass of a step."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import torch
from torchrun_trainer.gpt import GPT

CALL = 25


class Faulty(GPT):
    """A GPT that does the harm that HARM names in the rank that HARM_RANK names, unless that was done before."""

    calls = 0

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        Faulty.calls += 1
        done = Path(os.environ["TORCHRUN_RUN_DIR"], "harm-was-done")
        if Faulty.calls == CALL and os.environ["RANK"] == os.environ["HARM_RANK"] and not done.exists():
            done.touch()
            harm(os.environ["HARM"])
        return super().forward(inputs, targets)


def harm(kind: str) -> None:
    """Do it."""
    if kind == "raise":
        raise ValueError("the harm that was asked for")
    if kind == "exit":
        os._exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        hoard = []
        while True:
            hoard.append(bytearray(256 << 20))


def build(config: Any, dataset: Any) -> Faulty:
    """Build it, as the packaged trainer asks for it."""
    return Faulty(config, dataset.vocab_size)
