"""The corpus and the order of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchrun_trainer import data
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError


@given(st.integers(1, 500), st.integers(1, 64))
def test_every_sample_goes_to_exactly_one_rank(count: int, world_size: int):
    shards = [data.shard(count, rank, world_size) for rank in range(world_size)]
    assert [number for shard in shards for number in shard] == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.fixture
def corpus(corpus_folder: Path, tmp_path: Path) -> data.Corpus:
    return data.prepare(str(corpus_folder), tmp_path)


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(corpus: data.Corpus):
    samples = data.Samples(corpus, 32, seed=3)
    n = samples.per_epoch
    first, second = ([samples.start_of(number) for number in range(n * e, n * (e + 1))] for e in (0, 1))
    assert len(set(first)) == n
    assert first != second
    assert max(first) + 33 <= corpus.size
    assert first == [data.Samples(corpus, 32, seed=3).start_of(number) for number in range(n)]
    assert first != [data.Samples(corpus, 32, seed=4).start_of(number) for number in range(n)]


def test_targets_are_the_bytes_that_follow(corpus: data.Corpus):
    samples = data.Samples(corpus, 16, seed=0)
    inputs, targets = samples.batch(range(3))
    assert inputs.shape == targets.shape == (3, 16)
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    content = Path(corpus.path).read_bytes()
    start = samples.start_of(1)
    assert bytes(inputs[1].tolist()) == content[start : start + 16]


def test_unigram_entropy_of_a_fair_coin_is_ln_2():
    assert data.entropy(np.array([5, 5, 0])) == pytest.approx(np.log(2))


def test_a_corpus_is_made_once_and_anew_when_a_file_changes(tmp_path: Path):
    texts, folder = tmp_path / "texts", tmp_path / "data"
    texts.mkdir()
    (texts / "a.txt").write_text("some text " * 50)
    (texts / "image.bin").write_bytes(b"\0\1\2" * 100)
    first = data.prepare(str(texts), folder)
    assert (first.files, first.size) == (1, 501)
    made = Path(first.path).stat().st_mtime_ns
    assert data.prepare(str(texts), folder) == first
    assert Path(first.path).stat().st_mtime_ns == made
    (texts / "a.txt").write_text("other text " * 50)
    assert data.prepare(str(texts), folder).path != first.path
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_standard_library_is_a_corpus(tmp_path: Path):
    corpus = data.prepare("", tmp_path)
    assert corpus.size > 5_000_000
    assert 2.5 < corpus.unigram_entropy < 4


@pytest.mark.parametrize("content", [None, {}, {"a.bin": b"\0" * 100}, {"a.txt": b"short"}])
def test_a_folder_that_is_no_corpus_is_refused_by_name(tmp_path: Path, content: dict[str, bytes] | None):
    texts = tmp_path / "texts"
    if content is not None:
        texts.mkdir()
        for name, value in content.items():
            (texts / name).write_bytes(value)
    with pytest.raises(TrainerError, match=r"--data|too few"):
        data.Samples(data.prepare(str(texts), tmp_path / "data"), 64, 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"steps": 0}, "--steps"), ({"lr": 0.0}, "--lr"), ({"heads": 3}, "--heads"), ({"batch_size": 2}, "--batch-size")],
)
def test_options_that_cannot_work_are_refused_by_name(changes: dict[str, float], named: str):
    with pytest.raises(TrainerError, match=named):
        Config(**changes).check(world_size=3)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    rates = [data.learning_rate(step, 100, 10, 1.0) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert max(rates) == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
