"""A job's own packages on top of a venv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ansible_collections.torchrun.cluster.plugins.module_utils import layer


def make_venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def test_a_layer_finds_the_packages_below_it_and_its_own_come_first(tmp_path: Path) -> None:
    base, top = make_venv(tmp_path / "base"), make_venv(tmp_path / "top")
    for folder, name in ((base, "below"), (base, "both"), (top, "both")):
        (layer.site_packages(folder) / f"{name}.py").write_text(f"where = {folder.name!r}\n")
    layer.stand_on(top, base)
    program = "import below, both; print(below.where, both.where)"
    done = subprocess.run([str(top / "bin/python"), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["base", "top"]


def test_torch_is_kept_at_the_version_of_the_nodes(tmp_path: Path) -> None:
    base = make_venv(tmp_path / "base")
    about = layer.site_packages(base) / "torch-2.13.0+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n\nName: not this\n")
    assert layer.constraints(base) == "torch==2.13.0+cpu\n"


def test_what_pip_would_install_is_fetched_at_exactly_that_version() -> None:
    archive = {"archive_info": {"hashes": {}}, "url": "https://example.org/a-1.0.whl"}
    git = {"vcs_info": {"vcs": "git", "commit_id": "abc"}, "url": "https://example.org/b.git"}
    items = [
        {"metadata": {"name": "a", "version": "1.0"}, "download_info": archive},
        {"metadata": {"name": "a2", "version": "1.0"}, "download_info": archive, "is_direct": True},
        {"metadata": {"name": "b", "version": "2.0"}, "download_info": git, "is_direct": True},
    ]
    assert layer.to_fetch({"install": items}) == [
        "a==1.0",
        "a2 @ https://example.org/a-1.0.whl",
        "b @ git+https://example.org/b.git@abc",
    ]


def test_other_requirements_or_another_base_are_another_layer() -> None:
    keys = {layer.key_of(text, Path(base)) for text in ("a", "b") for base in ("/x/one", "/x/two")}
    assert len(keys) == 4
