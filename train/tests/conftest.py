"""A small corpus, and running the trainer under torchrun as a user does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# A model that trains in seconds, and a corpus with enough structure to learn.
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--block-size", "32", "--batch-size", "12", "--warmup", "5"]


@dataclass(frozen=True)
class Outcome:
    """What came of a run of the trainer."""

    status: int
    stderr: str
    folder: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the run folder."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each logged step, the last time it was done."""
        return {event["step"]: event["loss"] for event in self.of("step")}


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two text files of made-up sentences."""
    folder = tmp_path_factory.mktemp("texts")
    words = ["the", "cluster", "trains", "a", "model", "on", "every", "node", "and", "waits", "for", "its", "peers"]
    generator = random.Random(1)  # noqa: S311 (words, not secrets)
    for name in ("one.txt", "two.txt"):
        sentences = [" ".join(generator.choices(words, k=8)) + ".\n" for _ in range(800)]
        (folder / name).write_text("".join(sentences))
    return folder


Train = Callable[..., Outcome]


def command(nproc: int, *options: str) -> list[str]:
    """Return the command line: torchrun on this machine, or for one process the module alone, which starts sooner."""
    if nproc == 1:
        return [sys.executable, "-m", "torchrun_trainer", *SMALL, *options]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    return [*words, "-m", "torchrun_trainer", *SMALL, *options]


@pytest.fixture
def environment(tmp_path: Path, corpus_folder: Path) -> dict[str, str]:
    """The environment of a worker, with folders of this test's own."""
    return {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "TORCHRUN_RUN_DIR": str(tmp_path / "run"),
        "TORCHRUN_DATA_DIR": str(corpus_folder.parent / "data"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def train(environment: dict[str, str], corpus_folder: Path) -> Train:
    """Return a function that trains with so many processes and returns what came of it."""

    def run(nproc: int, *options: str, folder: Path | None = None) -> Outcome:
        variables = environment | ({"TORCHRUN_RUN_DIR": str(folder)} if folder else {})
        words = command(nproc, "--data", str(corpus_folder), *options)
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=120)
        return Outcome(done.returncode, done.stderr, Path(variables["TORCHRUN_RUN_DIR"]))

    return run
