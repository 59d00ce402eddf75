"""What cannot work is one sentence and exit status 2 on all ranks, and what was there stays as it was."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Start, Train
from PIL import Image


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder, by its path."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


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


def odd_image(place: Path, image: Image.Image, suffix: str) -> list[str]:
    """Make a folder of images of which one is odd, and return the options that name it."""
    words = images(place, "cat", "dog")
    image.save(place / f"images/dog/odd{suffix}")
    return words


def dangling(place: Path) -> list[str]:
    """Make a folder of texts of which one is a link to nothing, and return the options that name it."""
    words = texts(place, a=b"text " * 500)
    (place / "texts/gone.txt").symlink_to(place / "nowhere")
    return words


CASES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no folder": (lambda place: ["--data", str(place / "none")], "none is no folder on the node of rank 0"),
    "an empty folder": (texts, "texts has no files: give a folder of text files."),
    "an empty corpus": (lambda place: texts(place, a=b"", b=b""), "has no text files"),
    "a binary corpus": (lambda place: texts(place, a=b"\0\1" * 500), "has no text files"),
    "a short corpus": (lambda place: texts(place, a=b"short"), "The corpus has 6 tokens, too few for samples of 16"),
    "one class": (lambda place: images(place, "cat"), "images has images of one class: give"),
    "a link to nothing": (dangling, "texts/gone.txt is a link to nothing: mend or remove it."),
    "an image of very many pixels": (
        lambda place: odd_image(place, Image.new("1", (20000, 10000)), ".png"),
        "dog/odd.png has more than the 178,956,970 pixels that Pillow reads: scale it down.",
    ),
    "an image of floating-point numbers": (
        lambda place: odd_image(place, Image.new("F", (9, 9)), ".tif"),
        "dog/odd.tif cannot be read as an image (its pixels are floating-point numbers",
    ),
    "a damaged image": (damaged_image, "dog/3.png cannot be read as an image: mend or remove it."),
    "a model that is not there": (lambda _: ["--model", "no_such_module:net"], "no module no_such_module here"),
    "a function that is not there": (
        lambda _: ["--model", "odd_models:nothing"],
        "odd_models has no function nothing.",
    ),
    "a dataset that is not there": (lambda _: ["--dataset", "odd_models:x"], "odd_models has no function x."),
    "a dataset without samples": (lambda _: ["--dataset", "odd_models:no_numbers"], "a dataset without samples."),
    "no dataset": (
        lambda _: ["--dataset", "odd_models:nothing_at_all"],
        "returned NoneType: return a map-style dataset",
    ),
    "an iterable dataset": (
        lambda _: ["--dataset", "odd_models:Stream"],
        "returned Stream: return a map-style dataset, with __len__ and __getitem__",
    ),
    "a dataset of bare tensors": (
        lambda _: ["--dataset", "odd_models:Bare"],
        "returned Bare, whose sample 0 is Tensor: return a tuple, such as (inputs, targets)",
    ),
    "a dataset whose batch is no tuple": (
        lambda _: ["--dataset", "odd_models:BareBatch"],
        "returned BareBatch, whose batch() returned Tensor: return a tuple of tensors.",
    ),
    "a model without parameters": (
        lambda _: ["--dataset", "odd_models:Numbers", "--model", "odd_models:Empty"],
        "returned a model without parameters to train.",
    ),
    "a model of another shape on a rank": (
        lambda _: ["--dataset", "odd_models:Numbers", "--model", "odd_models:other_by_rank"],
        "The model's layers.0.weight is (33, 8) of float32 on rank 1 and (32, 8) of float32 on rank 0: build the same",
    ),
    "a model that no checkpoint can hold": (
        lambda _: ["--dataset", "odd_models:Numbers", "--model", "odd_models:Unsavable"],
        "has a state that no checkpoint can hold (_extra_state): return tensors and plain values",
    ),
    "a model named by a path": (
        lambda _: ["--model", "./net.py:build"],
        "--model is ./net.py:build: give package.module:function, with the folder of the package in PYTHONPATH.",
    ),
    "a number that is none": (lambda _: ["--lr", "nan"], "--lr is nan: give a number above 0."),
    "fewer steps than are done": (
        lambda _: ["--steps", "1"],
        "The run has done 2 steps already, and --steps is 1: give",
    ),
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
        ("NoGradient", "returned losses without a gradient: compute them from the model's parameters, outside of"),
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
    if blocked != "report.html":  # the one thing that is written at the end alone
        assert not (folder / "metrics.jsonl").is_file() or "step" not in (folder / "metrics.jsonl").read_text()


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


def test_what_is_refused_at_once_leaves_no_run_folder(train: Train, tmp_path: Path):
    assert "no module no_such_module" in train(2, "--model", "no_such_module:net").sentence
    assert not (tmp_path / "run").exists()


def test_a_rank_whose_data_is_short_says_so_and_no_sample_counts_less(train: Train):
    run = train(2, "--dataset", "odd_models:Short", "--model", "odd_models:Plain", "--steps", "4")
    assert run.statuses[1] == 2
    assert "torchrun_trainer: --dataset Short: batch() returned tensors of 5, 5 rows for 6 samples" in run.stderr
    assert not run.of("end")


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(start: Start, train: Train):
    first = start(2, "--steps", "100000")
    first.wait_for_step(2)
    assert "Another run uses the folder" in train(2, "--steps", "100000", "--resume", "never").sentence
    reached = len(first.outcome().of("step"))
    first.wait_until(lambda: len(first.outcome().of("step")) > reached)
    first.signal(signal.SIGTERM, 0)
    assert first.finish().succeeded
    assert train(1, "--steps", str(first.outcome().of("end")[-1]["step"])).succeeded  # nothing holds it any more


def test_an_error_in_the_users_own_code_is_shown_as_it_is(train: Train):
    run = train(1, "--dataset", "odd_models:Numbers", "--model", "odd_models:Broken")
    assert run.statuses == (1,)
    assert "ZeroDivisionError" in run.stderr


def test_a_folder_of_images_of_two_classes_is_learned(train: Train, tmp_path: Path):
    run = train(2, *images(tmp_path, "cat", "dog"), "--layers", "2", "--steps", "12", "--lr", "0.01")
    assert run.succeeded, run.stderr
    assert run.of("start")[0]["corpus"].endswith("24 images of 2 classes")
    assert run.losses[-1] < run.losses[0]
