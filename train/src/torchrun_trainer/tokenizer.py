"""From text to tokens: bytes as they are, or a byte-level BPE trained on the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torchrun_trainer.errors import TrainerError


class Tokenizer(Protocol):
    """Turns text into tokens: `size` different ones, each of NumPy's `dtype`."""

    size: int
    dtype: str

    def encode(self, text: bytes) -> npt.NDArray[np.integer]:
        """Return the tokens of a text, shape (tokens,)."""
        ...


class ByteTokenizer:
    """Every byte is a token."""

    size = 256
    dtype = "uint8"

    def encode(self, text: bytes) -> npt.NDArray[np.integer]:
        """Return the bytes of a text, shape (bytes,)."""
        return np.frombuffer(text, dtype=np.uint8)


class BpeTokenizer:
    """A byte-level BPE in the format of the tokenizers library."""

    dtype = "uint16"

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Library  # noqa: PLC0415 (only who asks for a BPE needs the library)

        self._library = Library.from_file(str(path))
        self.size = self._library.get_vocab_size()

    def encode(self, text: bytes) -> npt.NDArray[np.integer]:
        """Return the tokens of a text, shape (tokens,); bytes that are no UTF-8 are replaced."""
        return np.asarray(self._library.encode(text.decode("utf-8", errors="replace")).ids, dtype=np.uint16)


def train_bpe(texts: Iterator[bytes], size: int, path: Path) -> BpeTokenizer:
    """Train a BPE of `size` tokens on texts, write it to `path`, and return it."""
    try:
        from tokenizers import Tokenizer as Library  # noqa: PLC0415
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    except ImportError as error:
        raise TrainerError("--tokenizer bpe needs the package tokenizers: install it, or give bytes.") from error
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator((text.decode("utf-8", errors="replace") for text in texts), trainer)
    library.save(str(path))
    return BpeTokenizer(path)
