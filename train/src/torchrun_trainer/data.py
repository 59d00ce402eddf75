"""The corpus: bytes in one memory-mapped file, and which samples a rank gets in a step."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from torchrun_trainer.errors import TrainerError

# Not source of the library itself: installed packages, tests (many are data), and what is generated.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: `path` holds `size` bytes; `unigram_entropy` is in nats per byte."""

    path: str
    size: int
    files: int
    unigram_entropy: float
    source: str


def standard_library() -> Iterator[Path]:
    """Yield the source files of Python's standard library, sorted."""
    top = Path(sysconfig.get_path("stdlib"))
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def text_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted; hidden ones are passed over."""
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(current, name) for name in sorted(files) if not name.startswith("."))


def is_text(content: bytes) -> bool:
    """Tell whether bytes are text: a NUL among the first is not."""
    return b"\0" not in content[:4096]


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of byte counts in nats: what a model reaches that knows only how frequent each byte is."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def find_files(source: str) -> list[Path]:
    """Return the files of a corpus. Raises TrainerError where there are none."""
    if not source:
        files = list(standard_library())
        if not files:
            raise TrainerError(
                f"{sysconfig.get_path('stdlib')} on the node of rank 0 has no source files: "
                "give --data a folder of text files."
            )
        return files
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise TrainerError(f"--data {source} is no folder on the node of rank 0: give one that it can read.")
    files = list(text_files(folder))
    if not files:
        raise TrainerError(f"--data {source} has no files: give a folder of text files.")
    return files


def key_of(source: str, files: list[Path]) -> str:
    """Return a name for the corpus that changes when a file does, without reading the files."""
    digest = hashlib.sha256(f"1 {source and Path(source).expanduser().resolve()} {sys.version}".encode())
    for path in files:
        status = path.stat()
        digest.update(f"\n{path} {status.st_size} {status.st_mtime_ns}".encode())
    return f"{Path(source).expanduser().resolve().name if source else 'python'}-{digest.hexdigest()[:12]}"


def prepare(source: str, data_dir: Path) -> Corpus:
    """Return the corpus of a folder ('' for the standard library), making it on the first call; rank 0 only.

    It is made under a temporary name and renamed, so a reader sees all of it or nothing, and two jobs at once are safe.
    Raises TrainerError for what cannot be read or written.
    """
    try:
        files = find_files(source)
        target = data_dir / key_of(source, files)
        if not target.exists():
            data_dir.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=data_dir, prefix=f".{target.name}."))
            try:
                _write(files, source, temporary)
                temporary.chmod(0o755)
                temporary.rename(target)
            except OSError:
                if not target.exists():  # else another job was faster, with the same content
                    raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return Corpus(path=str(target / "corpus.bin"), **json.loads((target / "corpus.json").read_text()))
    except (ValueError, TypeError) as error:
        raise TrainerError(f"The prepared corpus {target} is damaged: remove it, and it is made anew.") from error
    except OSError as error:
        raise TrainerError(
            f"The corpus cannot be prepared: {error.filename or data_dir}: {error.strerror or error}."
        ) from error


def _write(files: list[Path], source: str, folder: Path) -> None:
    counts = np.zeros(256, dtype=np.int64)
    used = 0
    with (folder / "corpus.bin").open("wb") as output:
        for path in files:
            content = path.read_bytes()
            if not content or not is_text(content):
                continue
            output.write(content + b"\n")
            counts += np.bincount(np.frombuffer(content, dtype=np.uint8), minlength=256)
            counts[10] += 1
            used += 1
        output.flush()
        os.fsync(output.fileno())
    if not used:
        raise TrainerError(f"--data {source} has no text files: all of them hold binary data or nothing.")
    meta = {
        "size": int(counts.sum()),
        "files": used,
        "unigram_entropy": entropy(counts),
        "source": source or "Python's standard library",
    }
    (folder / "corpus.json").write_text(json.dumps(meta, indent=2) + "\n")


def shard(count: int, rank: int, world_size: int) -> range:
    """Return which of `count` samples a rank gets: contiguous, no remainder, sizes differ by one at most."""
    base, extra = divmod(count, world_size)
    first = rank * base + min(rank, extra)
    return range(first, first + base + (rank < extra))


class Samples:
    """Samples of a corpus in an order that depends on the seed and the epoch alone.

    Global sample number g is the (g mod n)-th of epoch (g div n), where n is the number of samples of an epoch; so it
    is the same on any number of ranks, and after a restart.
    """

    def __init__(self, corpus: Corpus, block_size: int, seed: int) -> None:
        # One byte more than a block: the target of the last. And room to shift the blocks in each epoch.
        self.per_epoch = (corpus.size - 1) // block_size - 1
        if self.per_epoch < 1:
            raise TrainerError(
                f"The corpus has {corpus.size} bytes, too few for samples of {block_size}: give more text, "
                "or a smaller --block-size."
            )
        self.block_size, self.seed = block_size, seed
        self._bytes = np.memmap(corpus.path, dtype=np.uint8, mode="r")
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return (a permutation of the epoch's samples, by how much its blocks are shifted)."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        return generator.permutation(self.per_epoch), int(generator.integers(self.block_size))

    def start_of(self, number: int) -> int:
        """Return the byte at which a global sample begins."""
        epoch, position = divmod(number, self.per_epoch)
        order, shift = self._order(epoch)
        return int(order[position]) * self.block_size + shift

    def batch(self, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (inputs, targets), each int64 of shape (samples, block_size); a target is the byte that follows."""
        rows = np.stack([self._bytes[start : start + self.block_size + 1] for start in map(self.start_of, numbers)])
        block = torch.from_numpy(rows.astype(np.int64))
        return block[:, :-1], block[:, 1:]


def learning_rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return highest * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))
