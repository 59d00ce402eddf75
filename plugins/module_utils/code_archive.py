"""The user's code as one archive: a script, or a project directory without what its .gitignore names.

On the controller. The same files make the same bytes, so the archive's digest tells whether the code has changed.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# Code, not data: what is larger does not belong into each run's folder.
MOST_BYTES = 500 * 1000 * 1000
# Never part of a program: history, and what Python itself has written.
LEFT_OUT = (".git", "__pycache__")


class CodeError(ValueError):
    """The code cannot be taken along; the message is one sentence."""


@dataclass(frozen=True)
class Entry:
    """One file or link of a project; `name` is its path within it."""

    name: str
    path: Path
    size: int


class Ignored:
    """What the .gitignore files of a project name: those of its folders, and those above it in its repository."""

    def __init__(self, project: Path) -> None:
        try:
            from pathspec import GitIgnoreSpec  # noqa: PLC0415 (a missing install step gets a sentence)
        except ImportError as error:
            raise CodeError("pathspec is not installed: install requirements.txt on this machine.") from error
        self._spec: Any = GitIgnoreSpec
        self._specs: list[tuple[Path, Any]] = []
        repository = next((folder for folder in (project, *project.parents) if (folder / ".git").exists()), project)
        above = [folder for folder in project.parents if folder == repository or repository in folder.parents]
        for folder in reversed(above):
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        """Read the .gitignore of a folder, which counts for all that is below it."""
        try:
            text = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        self._specs.append((folder, self._spec.from_lines(text.splitlines())))

    def __call__(self, path: Path, is_folder: bool) -> bool:
        """Tell whether a path is ignored; the deepest file that says something of it decides, as in git."""
        for folder, spec in reversed(self._specs):
            if folder not in path.parents:
                continue
            name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            said = spec.check_file(name).include
            if said is not None:
                return bool(said)
        return False


def _raise(error: OSError) -> None:
    raise CodeError(f"workdir: {error.filename} cannot be read ({error.strerror}): name it in .gitignore.") from error


def entries(project: Path) -> Iterator[Entry]:
    """Yield the files and links of a project, in a fixed order. Raises CodeError."""
    ignored = Ignored(project)
    for at, folders, files in os.walk(project, onerror=_raise):
        folder = Path(at)
        ignored.enter(folder)
        links = [name for name in folders if (folder / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT
            and name not in links
            and not ignored(folder / name, is_folder=True)
            and not (folder / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files + links):
            path = folder / name
            if name in LEFT_OUT or ignored(path, is_folder=False):
                continue
            yield _entry(path, project)


def _entry(path: Path, project: Path) -> Entry:
    name, status = path.relative_to(project).as_posix(), path.lstat()
    if stat.S_ISLNK(status.st_mode):
        target = path.resolve()
        if not path.exists():
            raise CodeError(
                f"workdir: the link {name} leads nowhere ({path.readlink()}): remove it, or name it in .gitignore."
            )
        if project not in target.parents or path.readlink().is_absolute():
            raise CodeError(
                f"workdir: the link {name} leads out of {project} (to {target}), where the nodes have nothing: "
                "name it in .gitignore, or copy what it leads to."
            )
        return Entry(name, path, 0)
    if not stat.S_ISREG(status.st_mode):
        raise CodeError(f"workdir: {name} is no file, folder or link, and cannot be copied: name it in .gitignore.")
    return Entry(name, path, status.st_size)


def files_of(project: Path) -> list[Entry]:
    """Return the files and links of a project. Raises CodeError, also where they are too large together."""
    found: list[Entry] = []
    total = 0
    for entry in entries(project):
        found.append(entry)
        total += entry.size
        if total > MOST_BYTES:
            break
    if total > MOST_BYTES:
        sizes: dict[str, int] = {}
        for entry in found:
            top = entry.name.partition("/")[0]
            sizes[top] = sizes.get(top, 0) + entry.size
        largest = max(sizes, key=lambda name: sizes[name])
        raise CodeError(
            f"workdir: {project} has more than {MOST_BYTES // 1_000_000} MB, of which the most in {largest}: name data "
            "and outputs in .gitignore, and keep data on the shared storage."
        )
    if not found:
        raise CodeError(f"workdir: {project} has no files, or its .gitignore names all of them.")
    return found


def write(found: list[Entry], file: IO[bytes]) -> None:
    """Write an archive of the files; owners and times are left out. Raises CodeError."""
    with (
        gzip.GzipFile(fileobj=file, filename="", mode="wb", compresslevel=3, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in found:
            about = tarfile.TarInfo(entry.name)
            try:
                if entry.path.is_symlink():
                    about.type, about.linkname = tarfile.SYMTYPE, str(entry.path.readlink())
                    archive.addfile(about)
                    continue
                with entry.path.open("rb") as source:
                    status = os.fstat(source.fileno())
                    about.size, about.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
                    archive.addfile(about, source)
            except OSError as error:
                raise CodeError(
                    f"{entry.path} cannot be read ({error.strerror or error}): correct its permissions, or name it in "
                    ".gitignore."
                ) from error


def of_script(script: Path) -> list[Entry]:
    """Return a script alone."""
    return [Entry(script.name, script, script.stat().st_size)]
