"""A model and data of the user's own, as README.md shows them."""

from __future__ import annotations

from pathlib import Path

from conftest import Train
from odd_models import plugin

EXAMPLE = ["--dataset", "example_plugin:Digits", "--model", "example_plugin:Net"]
README = Path(__file__).parents[1] / "README.md"


def test_the_example_learns_on_two_ranks(train: Train):
    run = train(2, *EXAMPLE, "--steps", "60", "--batch-size", "60", "--width", "32", "--lr", "0.02")
    assert run.succeeded, run.stderr
    assert run.losses[0] > 2
    assert run.losses[-1] < 0.7
    assert run.of("start")[0]["unit"] == "sample"


def test_the_example_is_the_one_of_the_readme():
    code = (Path(__file__).parent / "example_plugin.py").read_text()
    body = code[code.index("class Digits") :]
    assert body.replace("\n\n\n", "\n\n").strip() in README.read_text().replace("\n\n\n", "\n\n")


def test_what_the_model_draws_at_random_is_seeded_by_rank_and_run(train: Train, tmp_path: Path):
    words = [*plugin("Dropout"), "--steps", "3"]
    runs = [train(2, *words, "--seed", seed, folder=tmp_path / str(n)) for n, seed in enumerate(("0", "0", "1"))]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses != runs[2].losses


def test_a_user_s_data_is_read_ahead_without_changing_the_run(train: Train, tmp_path: Path):
    words = [*plugin("Plain"), "--steps", "20"]
    runs = [train(2, *words, "--loader-threads", n, folder=tmp_path / n) for n in ("0", "2")]
    assert runs[0].losses == runs[1].losses


def test_a_model_whose_steps_differ_needs_a_word_and_is_told_which(train: Train, tmp_path: Path):
    run = train(2, *plugin("Sometimes"), "--steps", "6")
    assert 2 in run.statuses
    assert "or not the same in all steps: give --no-static-graph." in run.stderr
    for more in ([], ["--micro-batch", "3"]):
        run = train(
            2, *plugin("Sometimes"), "--steps", "6", "--no-static-graph", *more, folder=tmp_path / f"n{len(more)}"
        )
        assert run.succeeded, run.stderr
        assert len(run.losses) == 6
