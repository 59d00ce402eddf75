"""A block of lines of ours in a file that others write to as well. Pure, and a write that survives bind mounts."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

BEGIN = "# BEGIN torchrun cluster (managed by Ansible)"
END = "# END torchrun cluster"


def split(text: str) -> tuple[list[str], list[str]]:
    """Return (the lines of our block, all other lines) of a file's text."""
    ours: list[str] = []
    others: list[str] = []
    inside = False
    for line in text.splitlines():
        if line in (BEGIN, END):
            inside = line == BEGIN
        else:
            (ours if inside else others).append(line)
    return ours, others


def join(block: Sequence[str], others: Sequence[str]) -> str:
    """Return the text of a file with our block on top."""
    return "\n".join([BEGIN, *block, END, *others]) + "\n"


def write(path: Path, text: str, mode: int, owner: tuple[int, int] = (0, 0)) -> None:
    """Replace a file atomically, or in place where it is a mount point of its own, as /etc/hosts in a container."""
    temporary = path.with_name(f".{path.name}.torchrun")
    temporary.write_text(text)
    temporary.chmod(mode)
    os.chown(temporary, *owner)
    try:
        temporary.replace(path)
    except OSError as error:
        temporary.unlink()
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        path.write_text(text)
