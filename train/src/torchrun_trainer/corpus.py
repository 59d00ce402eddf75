"""Text for task lm: the files of a folder become one memory-mapped file of tokens, and samples are blocks of it."""

from __future__ import annotations

import codecs
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchrun_trainer import prepared
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.tokenizer import ByteTokenizer, Tokenizer, train_bpe

STANDARD_LIBRARY = "the source of Python's standard library"
# Not source of the library itself: installed packages, tests (many are data), and what is generated.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}


def standard_library() -> Iterator[Path]:
    """Yield the source files of Python's standard library, sorted."""
    top = Path(sysconfig.get_path("stdlib"))
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def find_files(source: str) -> list[Path]:
    """Return the files of a corpus. Raises TrainerError where there are none."""
    if source:
        return prepared.files_of(source, "text files")
    files = list(standard_library())
    if not files:
        raise TrainerError(
            f"{sysconfig.get_path('stdlib')} on the node of rank 0 has no source files: "
            "give --data a folder of text files."
        )
    return files


def text_of(content: bytes) -> bytes | None:
    """Return the text of a file in UTF-8, or None where it holds something else: a NUL is in no text."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        with suppress(UnicodeDecodeError):
            content = content.decode("utf-16").encode()
    return None if b"\0" in content else content


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of token counts in nats: what a model reaches that knows only how frequent each is."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def texts(files: list[Path]) -> Iterator[bytes]:
    """Yield the content of each file that is text and not empty, with a line end after it."""
    for path in files:
        content = text_of(path.read_bytes())
        if content:
            yield content + b"\n"


def key_of(config: Config, files: list[Path]) -> str:
    """Return a name for the prepared corpus that changes when a file or the tokenizer does; no file is read."""
    source = str(Path(config.data).expanduser().resolve()) if config.data else ""
    tokens = config.tokenizer if config.tokenizer == "bytes" else f"bpe{config.vocab_size}"
    digest = prepared.digest_of(f"3 {source} {sys.version} {tokens}", files)
    return f"{Path(source).name if source else 'python'}-{tokens}-{digest}"


def write(config: Config, files: list[Path], folder: Path) -> dict[str, Any]:
    """Write tokens.bin (and the tokenizer) into a folder, and return what is to be known of them."""
    tokenizer: Tokenizer = ByteTokenizer()
    if config.tokenizer == "bpe":
        tokenizer = train_bpe(texts(files), config.vocab_size, folder / "tokenizer.json")
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    used = size = 0
    with (folder / "tokens.bin").open("wb") as output:
        for content in texts(files):
            tokens = tokenizer.encode(content)
            output.write(tokens.tobytes())
            counts += np.bincount(tokens, minlength=tokenizer.size)
            used += 1
            size += len(content)
        output.flush()
        os.fsync(output.fileno())
    passed_over = len(files) - used
    if not used:
        raise TrainerError(f"--data {config.data} has no text files: all of them hold binary data or nothing.")
    return {
        "tokens": int(counts.sum()),
        "vocab_size": tokenizer.size,
        "dtype": tokenizer.dtype,
        "unigram_entropy": entropy(counts),
        "description": f"{prepared.shown(config.data) or STANDARD_LIBRARY}: {used:,} files, {size:,} bytes"
        + (f", {passed_over:,} passed over, empty or no text" if passed_over else ""),
    }


class TextBlocks:
    """Blocks of a corpus, each with the token that follows each of its tokens.

    Blocks are cut anew in each epoch, by a shift that depends on seed and epoch alone.
    """

    unit = "token"

    def __init__(self, folder: Path, about: dict[str, Any], block_size: int, seed: int) -> None:
        # One token more than a block: the target of the last. And room to shift the blocks in each epoch.
        self._length = (about["tokens"] - 1) // block_size - 1
        if self._length < 1:
            raise TrainerError(
                f"The corpus has {about['tokens']} tokens, too few for samples of {block_size}: give more text, "
                "or a smaller --block-size."
            )
        self.block_size, self.seed = block_size, seed
        self.vocab_size: int = about["vocab_size"]
        self.description: str = about["description"]
        self.unigram_entropy: float = about["unigram_entropy"]
        self._tokens = np.memmap(folder / "tokens.bin", dtype=np.dtype(about["dtype"]), mode="r")
        self._span = np.arange(block_size + 1)

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return self._length

    def starts(self, indices: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.int64]:
        """Return the token at which each sample begins in an epoch."""
        shift = int(np.random.Generator(np.random.Philox(key=[self.seed, epoch])).integers(self.block_size))
        return indices * self.block_size + shift

    def batch(self, indices: npt.NDArray[np.int64], epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (inputs, targets), each int64 of shape (samples, block_size); a target is the token that follows."""
        rows = self._tokens[self.starts(indices, epoch)[:, None] + self._span]  # one gather for the whole batch
        block = torch.from_numpy(rows.astype(np.int64))
        return block[:, :-1].contiguous(), block[:, 1:].contiguous()


def prepare(config: Config, data_dir: Path) -> Path:
    """Return the folder of the prepared corpus, making it on the first call; rank 0 only. Raises TrainerError."""
    files = find_files(config.data)
    return prepared.once(data_dir, key_of(config, files), lambda folder: write(config, files, folder))


def load(config: Config, folder: Path) -> TextBlocks:
    """Return the samples of a prepared corpus; every rank. Raises TrainerError."""
    return TextBlocks(folder, prepared.about(folder), config.block_size, config.seed)
