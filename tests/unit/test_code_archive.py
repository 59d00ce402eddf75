"""What of a project is taken along, and what is refused."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import code_archive


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def taken(project: Path) -> list[str]:
    return sorted(entry.name for entry in code_archive.files_of(project))


def test_what_gitignore_names_stays_behind_and_what_git_would_keep_is_taken(tmp_path: Path) -> None:
    names = [
        "train.py", "pkg/model.py", "pkg/.gitignore", "data/a.bin", "out.log", "keep.log", "pkg/out.log",
        "sub/deep/x.tmp", "sub/deep/.gitignore", "build/x/y", "odd name é.py",
    ]  # fmt: skip
    make(tmp_path, *names)
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/data/\nbuild/\n")
    (tmp_path / "pkg/.gitignore").write_text("!out.log\n")
    (tmp_path / "sub/deep/.gitignore").write_text("*.tmp\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    words = ["git", "-C", str(tmp_path), "-c", "core.quotepath=off", "ls-files", "--others", "--exclude-standard"]
    by_git = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert taken(tmp_path) == sorted(by_git)


def test_a_gitignore_above_the_project_counts_within_its_repository(tmp_path: Path) -> None:
    make(tmp_path, "project/train.py", "project/weights.pt", "project/.venv/pyvenv.cfg", "project/__pycache__/a.pyc")
    (tmp_path / ".gitignore").write_text("*.pt\n")
    assert taken(tmp_path / "project") == ["train.py", "weights.pt"]
    (tmp_path / ".git").mkdir()
    assert taken(tmp_path / "project") == ["train.py"]


def test_links_within_the_project_are_taken_and_others_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make(project, "train.py", "configs/a.yaml")
    (project / "current").symlink_to("configs")
    assert taken(project) == ["configs/a.yaml", "current", "train.py"]
    (project / "gone").symlink_to("nothing")
    with pytest.raises(code_archive.CodeError, match=r"the link gone leads nowhere .*\.gitignore"):
        taken(project)
    (project / "gone").unlink()
    (project / "out").symlink_to("../elsewhere")
    make(tmp_path, "elsewhere")
    with pytest.raises(code_archive.CodeError, match=r"the link out leads out of"):
        taken(project)


def test_a_socket_is_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "train.py")
    before = Path.cwd()
    os.chdir(tmp_path)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("control")
            with pytest.raises(code_archive.CodeError, match=r"control is no file.*\.gitignore"):
                taken(tmp_path)
    finally:
        os.chdir(before)


def test_a_project_of_gigabytes_is_refused_with_its_largest_folder_before_it_is_read(tmp_path: Path) -> None:
    make(tmp_path, "train.py", "data/huge.bin")
    os.truncate(tmp_path / "data/huge.bin", 5_000_000_000)
    with pytest.raises(code_archive.CodeError, match=r"more than 500 MB, of which the most in data: .*\.gitignore"):
        taken(tmp_path)


def test_an_empty_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(code_archive.CodeError, match="no files"):
        taken(tmp_path)


def test_the_same_files_make_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    make(tmp_path, "b.py", "a.py")
    (tmp_path / "a.py").chmod(0o755)

    def archive() -> bytes:
        file = io.BytesIO()
        code_archive.write(code_archive.files_of(tmp_path), file)
        return file.getvalue()

    first = archive()
    os.utime(tmp_path / "a.py", (1, 1))
    assert archive() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as packed:
        found = {member.name: (member.mode, member.mtime) for member in packed}
    assert found == {"a.py": (0o755, 0), "b.py": (0o644, 0)}
    (tmp_path / "b.py").write_text("other")
    assert archive() != first
