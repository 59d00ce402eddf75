"""What cannot work is one sentence and exit status 2 on all ranks, and what was there stays as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Train
from PIL import Image


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts(place: Path, **files: bytes) -> list[str]:
    """Make a folder of files and return the options that name it."""
    folder = place / "texts"
    folder.mkdir()
    for name, value in files.items():
        (folder / name).write_bytes(value)
    return ["--data", str(folder)]


def images(place: Path, *classes: str) -> list[str]:
    """Make a folder of images and return the options that name it."""
    generator = random.Random(0)  # noqa: S311
    for name in classes:
        (place / "images" / name).mkdir(parents=True)
        for number in range(12):
            image = Image.new("RGB", (9, 11), tuple(generator.randrange(256) for _ in range(3)))
            image.save(place / "images" / name / f"{number}.png")
    return ["--task", "image", "--image-size", "8", "--data", str(place / "images")]


def damaged_image(place: Path) -> list[str]:
    """Make a folder of images of which one is cut off, and return the options that name it."""
    words = images(place, "cat", "dog")
    path = place / "images/dog/3.png"
    path.write_bytes(path.read_bytes()[:40])
    return words


CASES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no folder": (lambda place: ["--data", str(place / "none")], "none is no folder on the node of rank 0"),
    "an empty folder": (texts, "texts has no files: give a folder of text files."),
    "an empty corpus": (lambda place: texts(place, a=b"", b=b""), "has no text files"),
    "a binary corpus": (lambda place: texts(place, a=b"\0\1" * 500), "has no text files"),
    "a short corpus": (lambda place: texts(place, a=b"short"), "The corpus has 6 tokens, too few for samples of 16"),
    "one class": (lambda place: images(place, "cat"), "images has images of 1 classes"),
    "a damaged image": (damaged_image, "dog/3.png cannot be read as an image: mend or remove it."),
    "a model that is not there": (lambda _: ["--model", "no_such_module:net"], "no module no_such_module here"),
    "a function that is not there": (
        lambda _: ["--model", "odd_models:nothing"],
        "odd_models has no function nothing.",
    ),
    "a dataset that is not there": (lambda _: ["--dataset", "odd_models:x"], "odd_models has no function x."),
    "a dataset without samples": (lambda _: ["--dataset", "odd_models:no_numbers"], "a dataset without samples."),
    "a dataset for no model": (lambda _: ["--dataset", "odd_models:Numbers"], "has no attribute vocab_size"),
    "text for a model": (
        lambda _: ["--dataset", "odd_models:Numbers", "--model", "odd_models:text"],
        "returned str: return a torch.nn.Module.",
    ),
    "a batch below the world size": (lambda _: ["--batch-size", "1"], "--batch-size 1 is below the world size 2"),
    "a checkpoint of another model": (lambda _: ["--width", "32"], "is of another model: give its options"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_work_is_one_sentence_and_leaves_a_run_as_it_was(case: str, train: Train, tmp_path: Path):
    assert train(2, "--steps", "2").succeeded
    before = content_of(tmp_path / "run")
    prepare, said = CASES[case]
    run = train(2, "--steps", "4", *prepare(tmp_path))
    assert said in run.sentence
    assert content_of(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Mean", "returned losses of shape () for 6 samples: return one loss a sample, shape (6,)"),
        ("Pair", "returned tuple for 6 samples: return one loss a sample, shape (6,)"),
    ],
)
def test_a_model_that_returns_no_loss_for_each_sample_is_refused(model: str, said: str, train: Train):
    sentence = train(2, "--dataset", "odd_models:Numbers", "--model", f"odd_models:{model}").sentence
    assert sentence.startswith(f"--model odd_models:{model} {said}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_by_each_rank(train: Train):
    run = train(2, "--device", "cuda")
    assert run.statuses == (2, 2)
    assert run.stderr.count("--device is cuda, but PyTorch finds no GPU here: check the driver, or") == 2


@pytest.mark.parametrize("blocked", ["checkpoints", "report.html", "metrics.jsonl", "config.yaml"])
def test_storage_that_takes_nothing_is_one_sentence(train: Train, tmp_path: Path, blocked: str):
    folder = tmp_path / "run"
    folder.mkdir()
    if blocked == "checkpoints":
        (folder / blocked).write_text("a file where a folder belongs")
    else:
        (folder / blocked).mkdir()
    sentence = train(2, "--steps", "2").sentence
    assert "cannot be written" in sentence
    assert blocked in sentence


def test_a_run_folder_that_cannot_be_made_is_one_sentence(train: Train, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    assert "cannot be written (Not a directory)" in train(2, folder=tmp_path / "file/run").sentence


def test_a_data_folder_that_cannot_be_made_is_one_sentence(train: Train, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    run = train(2, TORCHRUN_DATA_DIR=str(tmp_path / "file/data"))
    assert run.sentence.startswith("The data cannot be prepared: ")


def test_a_typing_error_ends_all_ranks_before_they_meet(train: Train, tmp_path: Path):
    run = train(2, "--stesp", "3")
    assert run.statuses == (2, 2)
    assert "--steps" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "run").exists()


def test_an_error_in_the_users_own_code_is_shown_as_it_is(train: Train):
    run = train(1, "--dataset", "odd_models:Numbers", "--model", "odd_models:Broken")
    assert run.statuses == (1,)
    assert "ZeroDivisionError" in run.stderr


def test_a_folder_of_images_of_two_classes_is_learned(train: Train, tmp_path: Path):
    run = train(2, *images(tmp_path, "cat", "dog"), "--layers", "2", "--steps", "12", "--lr", "0.01")
    assert run.succeeded, run.stderr
    assert run.of("start")[0]["corpus"].endswith("24 images of 2 classes")
    assert run.losses[-1] < run.losses[0]
