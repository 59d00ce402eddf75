"""Data that is prepared once for all ranks and runs, in a folder on storage that all nodes share."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchrun_trainer.errors import TrainerError, write_whole

ABOUT = "about.json"


# Half of a preparation that was killed; one that is still at work is younger.
STALE_SECONDS = 24 * 3600.0


def shown(path: str) -> str:
    """Return a path as it can be printed: names of files need not be UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted; hidden names, pipes and sockets are passed over.

    Raises TrainerError for a link to nothing.
    """
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(current, name) for name in sorted(files) if not name.startswith(".")):
            if path.is_file():
                yield path
            elif path.is_symlink() and not path.exists():
                raise TrainerError(f"--data {folder}: {shown(str(path))} is a link to nothing: mend or remove it.")


def files_of(source: str, what: str) -> list[Path]:
    """Return the files of a folder of --data. Raises TrainerError where there is no folder, or nothing in it."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise TrainerError(f"--data {source} is no folder on the node of rank 0: give one that it can read.")
    files = list(walk(folder))
    if not files:
        raise TrainerError(f"--data {source} has no files: give a folder of {what}.")
    return files


def digest_of(recipe: str, files: Iterable[Path]) -> str:
    """Return a short digest that changes when a file or how it is prepared does; no file is read."""
    digest = hashlib.sha256(os.fsencode(recipe))
    for path in files:
        status = path.stat()
        digest.update(b"\n%b %d %d" % (os.fsencode(path), status.st_size, status.st_mtime_ns))
    return digest.hexdigest()[:12]


def once(data_dir: Path, key: str, write: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder `key`, made by `write` on the first call; `write` returns what is to be known of it.

    It is made under a temporary name and renamed, so a reader sees all of it or nothing, and two jobs at once are safe.
    Raises TrainerError for what cannot be read or written.
    """
    target = data_dir / key
    try:
        if not target.exists():
            data_dir.mkdir(parents=True, exist_ok=True)
            remove_stale(data_dir)
            temporary = Path(tempfile.mkdtemp(dir=data_dir, prefix=f".{key}."))
            try:
                facts = write(temporary)
                write_whole(temporary / ABOUT, json.dumps(facts, indent=2) + "\n")
                temporary.chmod(0o755)
                temporary.rename(target)
            except OSError:
                if not target.exists():  # else another job was faster, with the same content
                    raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise TrainerError(
            f"The data cannot be prepared: {shown(str(error.filename or data_dir))}: {error.strerror or error}."
        ) from error
    return target


def remove_stale(data_dir: Path) -> None:
    """Remove what preparations left behind that were killed long ago."""
    for path in data_dir.glob(".*-*.*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path)


def about(folder: Path) -> dict[str, Any]:
    """Return what is to be known of prepared data. Raises TrainerError."""
    try:
        facts = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainerError(f"The prepared data {folder} is damaged: remove it, and it is made anew.") from error
    except OSError as error:
        raise TrainerError(f"The prepared data {folder} cannot be read here: {error.strerror or error}.") from error
    return facts
