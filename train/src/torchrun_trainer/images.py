"""Images for task image: a subfolder for each class, or the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from torchrun_trainer import prepared
from torchrun_trainer.config import Config
from torchrun_trainer.errors import TrainerError

try:
    import PIL.Image
except ImportError:  # only a folder of images needs it
    PIL = None  # type: ignore[assignment]
if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def read_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return (1797 images of 8 x 8, uint8 of shape (images, 1, 8, 8); the digit of each)."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 (only the default images need it, and it is slow)
    except ImportError as error:
        raise TrainerError("The default images need the package scikit-learn: install it, or give --data.") from error
    digits = load_digits()
    return np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None], digits.target.astype(np.int64)


def in_8_bits(image: Image.Image) -> Image.Image:
    """Return an image as RGB; Pillow would cut 16 bits off at 255. Raises ValueError for pixels of no known range."""
    if image.mode.startswith("I"):
        return PIL.Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known")
    if image.mode == "P" and "transparency" in image.info:  # else Pillow warns
        image = image.convert("RGBA")
    return image.convert("RGB")


def read_image(source: str, path: Path, size: int) -> npt.NDArray[np.uint8]:
    """Return an image scaled to size x size, uint8 of shape (3, size, size). Raises TrainerError."""
    where = f"--data {source}: {prepared.shown(str(path))}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            with PIL.Image.open(path) as image:
                return np.asarray(in_8_bits(image).resize((size, size))).transpose(2, 0, 1)
    except PIL.Image.DecompressionBombError as error:
        most = 2 * (PIL.Image.MAX_IMAGE_PIXELS or 0)
        raise TrainerError(f"{where} has more than the {most:,} pixels that Pillow reads: scale it down.") from error
    except (OSError, ValueError, SyntaxError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) else ""
        raise TrainerError(f"{where} cannot be read as an image{reason}: mend or remove it.") from error


def classes_of(source: str, files: list[Path]) -> tuple[list[Path], npt.NDArray[np.int64], list[str]]:
    """Return (the images of a folder; the class of each; the names of the classes: those of the subfolders).

    Raises TrainerError for fewer than two classes.
    """
    top = Path(source).expanduser()
    images = [path for path in files if path.suffix.lower() in SUFFIXES and path.parent != top]
    found = [path.relative_to(top).parts[0] for path in images]
    names = sorted(set(found))
    if len(names) < 2:
        raise TrainerError(
            f"--data {source} has images of {'one class' if names else 'no class'}: give a folder with a subfolder of "
            "images for each of two classes or more."
        )
    return images, np.asarray([names.index(name) for name in found], dtype=np.int64), names


def prepare(config: Config, data_dir: Path) -> Path:
    """Return the folder of the prepared images, making it on the first call; rank 0 only. Raises TrainerError."""
    if not config.data:

        def write_digits(folder: Path) -> dict[str, Any]:
            images, labels = read_digits()
            return write(folder, images, labels, [str(digit) for digit in range(10)], "scikit-learn's digits")

        return prepared.once(data_dir, "digits-2", write_digits)
    if PIL is None:
        raise TrainerError("A folder of images needs the package pillow: install it.")
    files = prepared.files_of(config.data, "images, one subfolder a class")
    paths, labels, names = classes_of(config.data, files)
    folder = Path(config.data).expanduser().resolve()
    key = f"{folder.name}-{config.image_size}-" + prepared.digest_of(f"2 {folder} {config.image_size}", paths)
    images = (read_image(config.data, path, config.image_size) for path in paths)
    return prepared.once(data_dir, key, lambda target: write(target, images, labels, names, config.data))


def write(
    folder: Path, images: Iterable[npt.NDArray[np.uint8]], labels: npt.NDArray[np.int64], names: list[str], source: str
) -> dict[str, Any]:
    """Write images, one after the other, and their classes into a folder, and return what is to be known of them."""
    count = total = squares = 0
    with (folder / "pixels.bin").open("wb") as file:
        for image in images:
            file.write(image.tobytes())
            values = image.astype(np.int64)
            count, total, squares = count + values.size, total + int(values.sum()), squares + int((values**2).sum())
            shape = image.shape
        file.flush()
        os.fsync(file.fileno())
    with (folder / "labels.npy").open("wb") as file:
        np.save(file, labels)
        file.flush()
        os.fsync(file.fileno())
    mean = total / count
    return {
        "classes": [prepared.shown(name) for name in names],
        "shape": list(shape),
        "mean": mean / 255,
        "deviation": math.sqrt(squares / count - mean**2) / 255 or 1.0,
        "description": f"{prepared.shown(source)}: {len(labels):,} images of {len(names)} classes",
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
        self._labels = np.load(folder / "labels.npy")
        shape = (len(self._labels), *about["shape"])
        self._pixels = np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r", shape=shape)
        self.channels: int = shape[1]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._labels)

    def batch(self, indices: npt.NDArray[np.int64], epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, float32 of shape (samples, channels, height, width) and about unit variance; classes)."""
        del epoch
        pixels = torch.from_numpy(self._pixels[indices]).float().div_(255)
        return pixels.sub_(self._mean).div_(self._deviation), torch.from_numpy(self._labels[indices])
