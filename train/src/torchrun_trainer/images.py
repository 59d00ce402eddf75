"""Images for task image: a subfolder for each class, or the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchrun_trainer import prepared
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def read_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    """Return (1797 images of 8 x 8, uint8 of shape (images, 1, 8, 8); the digit of each; the names of the classes)."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 (only the default images need it, and it is slow)
    except ImportError as error:
        raise TrainerError("The default images need the package scikit-learn: install it, or give --data.") from error
    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    return pixels, digits.target.astype(np.int64), [str(digit) for digit in range(10)]


def read_folder(
    source: str, files: list[Path], size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    """Return (images scaled to size x size, uint8 of shape (images, 3, size, size); classes; their names).

    Raises TrainerError for a folder without classes, and for a file that is no image.
    """
    try:
        from PIL import Image  # noqa: PLC0415 (only a folder of images needs it)
    except ImportError as error:
        raise TrainerError("A folder of images needs the package pillow: install it.") from error
    top = Path(source).expanduser()
    images = [path for path in files if path.suffix.lower() in SUFFIXES and path.parent != top]
    names = sorted({path.relative_to(top).parts[0] for path in images})
    if len(names) < 2:
        raise TrainerError(
            f"--data {source} has images of {len(names)} classes: give a folder with a subfolder of images for each of "
            "two classes or more."
        )
    pixels = np.empty((len(images), 3, size, size), dtype=np.uint8)
    for row, path in zip(pixels, images, strict=True):
        try:
            with Image.open(path) as image:
                row[:] = np.asarray(image.convert("RGB").resize((size, size))).transpose(2, 0, 1)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise TrainerError(f"--data {source}: {path} cannot be read as an image: mend or remove it.") from error
    labels = np.asarray([names.index(path.relative_to(top).parts[0]) for path in images], dtype=np.int64)
    return pixels, labels, names


def prepare(config: Config, data_dir: Path) -> Path:
    """Return the folder of the prepared images, making it on the first call; rank 0 only. Raises TrainerError."""
    if not config.data:
        return prepared.once(
            data_dir, "digits-1", lambda folder: write(folder, *read_digits(), "scikit-learn's digits")
        )
    files = prepared.files_of(config.data, "images, one subfolder a class")
    source = Path(config.data).expanduser().resolve()
    digest = prepared.digest_of(f"1 {source} {config.image_size}", files)
    key = f"{source.name}-{config.image_size}-{digest}"
    return prepared.once(
        data_dir, key, lambda folder: write(folder, *read_folder(config.data, files, config.image_size), config.data)
    )


def write(
    folder: Path, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], names: list[str], source: str
) -> dict[str, Any]:
    """Write images and classes into a folder, and return what is to be known of them."""
    for name, array in (("pixels.npy", pixels), ("labels.npy", labels)):
        with (folder / name).open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
    return {
        "classes": names,
        "mean": float(pixels.mean() / 255),
        "deviation": float(pixels.std() / 255) or 1.0,
        "description": f"{source}: {len(pixels):,} images of {len(names)} classes",
    }


class Images:
    """Images with their classes."""

    unit = "image"
    unigram_entropy = None

    def __init__(self, folder: Path) -> None:
        about = prepared.about(folder)
        self.classes: list[str] = about["classes"]
        self.description: str = about["description"]
        self._mean, self._deviation = about["mean"], about["deviation"]
        self._pixels = np.load(folder / "pixels.npy", mmap_mode="r")
        self._labels = np.load(folder / "labels.npy")
        self.channels: int = self._pixels.shape[1]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._labels)

    def batch(self, indices: npt.NDArray[np.int64], epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, float32 of shape (samples, channels, height, width) and about unit variance; classes)."""
        del epoch
        pixels = torch.from_numpy(self._pixels[indices]).float().div_(255)
        return pixels.sub_(self._mean).div_(self._deviation), torch.from_numpy(self._labels[indices])
