"""Names of wheel folders and venvs, and running pip and uv on a node. Standard library only."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

UV = "uv==0.13.9"


class ToolError(Exception):
    """A tool failed; the message is its last word."""


def key_of(lock: str, wheel_tag: str) -> str:
    """Return what names the wheels, and the venv, of a lock file on one kind of node (Python version and machine)."""
    digest = hashlib.sha256(f"{wheel_tag}\n{lock}".encode()).hexdigest()[:12]
    return f"{wheel_tag}-{digest}"


def run_tool(words: Sequence[str], **variables: str) -> str:
    """Run a tool and return its output.

    Raises ToolError with the last line that it wrote to stderr that tells something.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**environment, **variables})
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
        raise ToolError((errors or ["no message"])[-1])
    return done.stdout


def make_python(folder: Path) -> Path:
    """Make a venv with pip in a folder, and return its interpreter."""
    run_tool(["/usr/bin/python3", "-m", "venv", str(folder)])
    return folder / "bin/python"


def points_to(link: Path, target: Path) -> bool:
    """Tell whether a symbolic link points to a path."""
    return link.is_symlink() and link.readlink() == target


def switch(link: Path, target: Path) -> bool:
    """Point a link to a path atomically; return whether it pointed elsewhere."""
    if points_to(link, target):
        return False
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    return True
