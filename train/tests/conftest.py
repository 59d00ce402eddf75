"""A small corpus, and training with so many ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import Before, Outcome, Ranks, start_server

start_server()

# A model that trains in milliseconds. Equal shares and float32: nothing that is measured changes the result.
SMALL = [
    *("--layers", "1", "--width", "16", "--heads", "2", "--block-size", "16", "--batch-size", "12", "--warmup", "5"),
    *("--steps", "10", "--log-every", "1", "--precision", "float32", "--balance", "equal", "--no-tensorboard"),
]


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


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where data is prepared, for all tests."""
    return tmp_path_factory.mktemp("data")


Start = Callable[..., Ranks]
Train = Callable[..., Outcome]


@pytest.fixture(scope="session")
def start_in(corpus_folder: Path, data_folder: Path) -> Callable[[Path], Start]:
    """Return a function that returns one that starts so many ranks, with their files in a folder."""

    def starter(place: Path) -> Start:
        count = 0

        def begin(
            world_size: int, *options: str, folder: Path | None = None, before: Before | None = None, **environment: str
        ) -> Ranks:
            nonlocal count
            count += 1
            text = [] if {"--dataset", "--data", "--config", "image"} & set(options) else ["--data", str(corpus_folder)]
            variables = {"TORCHRUN_DATA_DIR": str(data_folder), **environment}
            logs = place / f"logs-{count}"
            return Ranks(world_size, [*SMALL, *text, *options], folder or place / "run", logs, variables, before)

        return begin

    return starter


@pytest.fixture
def start(start_in: Callable[[Path], Start], tmp_path: Path) -> Start:
    """Return a function that starts so many ranks."""
    return start_in(tmp_path)


@pytest.fixture
def train(start: Start) -> Train:
    """Return a function that trains with so many ranks to the end, and returns what came of it."""

    def run(world_size: int, *options: str, **more: object) -> Outcome:
        return start(world_size, *options, **more).finish()

    return run
