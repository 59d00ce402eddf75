"""Names of wheel folders and venvs, and running pip and uv on a node. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder

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
        # pip's last word on packages that exclude one another is where to read about it.
        errors = [line for line in lines if line.lower().startswith("error") and "ResolutionImpossible" not in line]
        errors = errors or lines[-1:]
        raise ToolError((errors or ["no message"])[-1])
    return done.stdout


def make_python(folder: Path) -> Path:
    """Make a venv with pip in a folder, and return its interpreter."""
    run_tool(["/usr/bin/python3", "-m", "venv", str(folder)])
    return folder / "bin/python"


@contextlib.contextmanager
def uv_of(wheels: Path, target: Path) -> Iterator[Callable[..., str]]:
    """Give a function that runs uv, which comes with the wheels: no node needs an index. Unpacked, not installed."""
    (wheel,) = wheels.glob("uv-*.whl")
    tools = target / ".uv"
    tools.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        (tools / "uv").write_bytes(archive.read(member))
        (tools / "uv").chmod(0o755)
    # The cache is on the venv's own disk: files are linked from it, and then it goes.
    options = ["--quiet", "--no-config", "--cache-dir", str(tools / "cache")]
    yield lambda *words: run_tool([str(tools / "uv"), *words, *options])
    shutil.rmtree(tools)


def publish(wheels: Path, folder: Path, user: str) -> None:
    """Copy the wheels beside `folder` as the account, then rename: others see all of them or none."""
    os.umask(0o022)
    with run_folder.acting_as(user):
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for wheel in wheels.iterdir():
                shutil.copyfile(wheel, temporary / wheel.name)
            temporary.chmod(0o755)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary)
            raise


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
