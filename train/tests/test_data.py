"""Which samples a step has, and what they are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchrun_trainer import corpus, images, prepared
from torchrun_trainer.config import Config
from torchrun_trainer.corpus import TextBlocks
from torchrun_trainer.data import Loader, Order
from torchrun_trainer.loop import learning_rate
from torchrun_trainer.tokenizer import BpeTokenizer


@given(st.integers(1, 60), st.integers(0, 3), st.integers(0, 300), st.integers(1, 100))
def test_the_order_is_that_of_all_samples_however_a_step_is_cut(samples: int, seed: int, first: int, count: int):
    order = Order(samples, seed)

    def indices(numbers: range) -> list[tuple[int, int]]:
        return [(epoch, int(index)) for epoch, piece in order.pieces(numbers) for index in piece]

    whole = indices(range(first, first + count))
    assert whole == [pair for number in range(first, first + count) for pair in indices(range(number, number + 1))]
    assert whole == [
        (number // samples, index) for number, (_, index) in zip(range(first, first + count), whole, strict=True)
    ]


@given(st.integers(2, 60), st.integers(0, 5))
def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(samples: int, seed: int):
    order = Order(samples, seed)
    for epoch in (0, 1, 7):
        ((_, indices),) = order.pieces(range(epoch * samples, (epoch + 1) * samples))
        assert sorted(indices) == list(range(samples))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [
        tuple(Order(100, seed).pieces(range(100 * epoch, 100 * epoch + 100))[0][1])
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(set(orders)) == 3


@pytest.fixture
def blocks(corpus_folder: Path, tmp_path: Path) -> TextBlocks:
    """A corpus in blocks of 16 bytes."""
    config = Config(data=str(corpus_folder), block_size=16, seed=3)
    return corpus.load(config, corpus.prepare(config, tmp_path))


def test_targets_are_the_bytes_that_follow(blocks: TextBlocks, corpus_folder: Path):
    content = b"".join(path.read_bytes() + b"\n" for path in sorted(corpus_folder.iterdir()))
    for epoch in (0, 1):
        indices = np.array([0, 5, len(blocks) - 1])
        inputs, targets = blocks.batch(indices, epoch)
        assert inputs.dtype == targets.dtype == torch.int64
        for row, start in enumerate(blocks.starts(indices, epoch)):
            assert bytes(inputs[row].tolist()) == content[start : start + 16]
            assert bytes(targets[row].tolist()) == content[start + 1 : start + 17]
    assert len({int(blocks.starts(np.array([0]), epoch)[0]) for epoch in range(9)}) > 1


def test_threads_that_load_ahead_give_what_is_wanted(blocks: TextBlocks):
    wanted = [[range(0, 3), range(3, 5)], [range(5, 8), range(8, 10)], [range(2, 9)]]
    for threads in (0, 2):
        loader = Loader(blocks, 0, torch.device("cpu"), threads)
        following = [wanted[1], [range(99, 100)], []]  # the second is not what comes then
        for now, later in zip(wanted, following, strict=True):
            for numbers, batch in zip(now, loader.take(now, later), strict=True):
                (expected,) = Loader(blocks, 0, torch.device("cpu"), 0).take([numbers], [])
                assert all(torch.equal(one, other) for one, other in zip(batch, expected, strict=True))
        loader.close()


def test_a_step_over_the_end_of_an_epoch_has_samples_of_both(blocks: TextBlocks):
    n = len(blocks)
    (batch,) = Loader(blocks, 0, torch.device("cpu"), 0).take([range(n - 2, n + 3)], [])
    assert batch[0].shape == (5, 16)


def test_a_corpus_is_made_once_and_anew_when_a_file_changes(tmp_path: Path):
    texts, folder = tmp_path / "texts", tmp_path / "data"
    texts.mkdir()
    (texts / "a.txt").write_text("some text " * 50)
    (texts / "image.bin").write_bytes(b"\0\1\2" * 100)
    (texts / ".hidden").write_text("not for a corpus")
    config = Config(data=str(texts), block_size=8)
    first = corpus.prepare(config, folder)
    assert corpus.load(config, first).description == f"{texts}: 1 files, 501 bytes, 1 passed over, empty or no text"
    made = (first / "tokens.bin").stat().st_mtime_ns
    assert corpus.prepare(config, folder) == first
    assert (first / "tokens.bin").stat().st_mtime_ns == made
    (texts / "a.txt").write_text("other text " * 50)
    assert corpus.prepare(config, folder) != first
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_utf_16_is_text_and_a_late_nul_is_not(tmp_path: Path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for encoding in ("utf-16-le", "utf-16-be"):
        (texts / f"{encoding}.txt").write_bytes("\ufeffgrün".encode(encoding))
    (texts / "late.bin").write_bytes(b"a" * 5000 + b"\0")
    folder = corpus.prepare(Config(data=str(texts), block_size=1), tmp_path / "data")
    assert (folder / "tokens.bin").read_bytes().decode() == "grün\ngrün\n"


def test_names_that_are_no_utf_8_and_pipes_do_no_harm(tmp_path: Path):
    texts = tmp_path / "t\udcffexts"
    texts.mkdir()
    (texts / "na\udcffme.txt").write_text("some text")
    os.mkfifo(texts / "pipe")
    folder = corpus.prepare(Config(data=str(texts), block_size=2), tmp_path / "data")
    description = corpus.load(Config(block_size=2), folder).description
    assert description.encode().endswith(b"t\\udcffexts: 1 files, 10 bytes")


def test_what_a_killed_preparation_left_is_removed_when_it_is_old(corpus_folder: Path, tmp_path: Path):
    for name, age in (("old", 2 * prepared.STALE_SECONDS), ("young", 0.0)):
        (tmp_path / f".texts-bytes-1.{name}").mkdir()
        os.utime(tmp_path / f".texts-bytes-1.{name}", (time.time() - age,) * 2)
    corpus.prepare(Config(data=str(corpus_folder), block_size=16), tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [".texts-bytes-1.young"]


def folder_of_images(top: Path, **pictures: Image.Image) -> list[float]:
    """Prepare a folder with one image a class, and return the mean of each, from 0 to 255."""
    for name, image in pictures.items():
        (top / "in" / name).mkdir(parents=True)
        image.save(top / f"in/{name}/image.png")
    folder = images.prepare(Config(task="image", data=str(top / "in"), image_size=4), top / "data")
    return [float(row.mean()) for row in images.Images(folder)._pixels]


def test_grey_images_of_16_bits_are_scaled_to_8(tmp_path: Path):
    deep = Image.fromarray(np.full((4, 4), 32896, dtype=np.uint16))
    assert folder_of_images(tmp_path, dark=Image.new("L", (4, 4), 64), deep=deep) == [64, 128]


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 90, 90, 90])
    palette.info["transparency"] = b"\x00\x80"
    assert folder_of_images(tmp_path, a=palette, b=Image.new("L", (4, 4), 64)) == [90, 64]
    assert not recwarn.list


def test_mean_and_deviation_are_those_of_all_pixels(tmp_path: Path):
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (3, 5, 5), dtype=np.uint8) for _ in range(7)]
    facts = images.write(tmp_path, pictures, np.arange(7), ["a"], "here")
    assert facts["mean"] == pytest.approx(np.mean(pictures) / 255)
    assert facts["deviation"] == pytest.approx(np.std(pictures) / 255)


def test_a_bpe_has_fewer_tokens_and_loses_nothing(corpus_folder: Path, tmp_path: Path):
    config = Config(data=str(corpus_folder), tokenizer="bpe", vocab_size=300, block_size=16)
    folder = corpus.prepare(config, tmp_path)
    blocks = corpus.load(config, folder)
    assert 256 < blocks.vocab_size <= 300
    text = (corpus_folder / "one.txt").read_bytes()
    tokenizer = BpeTokenizer(folder / "tokenizer.json")
    tokens = tokenizer.encode(text)
    assert len(tokens) < len(text) / 2
    assert tokenizer._library.decode(tokens.tolist()).encode() == text
    assert int(blocks.batch(np.arange(len(blocks)), 0)[0].max()) < blocks.vocab_size


def test_the_standard_library_is_a_corpus():
    files = corpus.find_files("")
    assert len(files) > 300
    assert files == corpus.find_files("")
    assert not [path for path in files if "test" in path.parts or "site-packages" in path.parts]


def test_unigram_entropy_of_a_fair_coin_is_ln_2():
    assert corpus.entropy(np.array([5, 5, 0])) == pytest.approx(np.log(2))


def test_the_digits_of_scikit_learn_are_the_default_images(tmp_path: Path):
    digits = images.Images(images.prepare(Config(task="image"), tmp_path))
    assert (len(digits), digits.channels, digits.classes) == (1797, 1, [str(digit) for digit in range(10)])
    pixels, labels = digits.batch(np.arange(1797), 0)
    assert pixels.shape == (1797, 1, 8, 8)
    assert labels[:10].tolist() == list(range(10))
    assert float(pixels.std()) == pytest.approx(1, abs=0.01)
    assert float(pixels.mean()) == pytest.approx(0, abs=0.01)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    rates = [learning_rate(step, 100, 10, 1.0) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert max(rates) == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert learning_rate(0, 100, 0, 1.0) == 1.0
