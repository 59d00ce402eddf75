"""What is seen of a program before it is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "roles/torchrun/files/libexec/check_program.py"


def said(code: Path, kind: str, name: str) -> str:
    words = [sys.executable, "-B", str(CHECK), str(code), kind, name]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(code)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import os\nimport helper\nfrom . import x\nfrom json import loads\n", ""),
        ("for x in\n", "train.py has a syntax error in line 1"),
        ("import os\nimport no_such_package.part\n", "train.py imports no_such_package in line 2"),
        ("from no_such import x\n", "train.py imports no_such in line 1"),
        ("try:\n    import no_such\nexcept ImportError:\n    no_such = None\n", ""),
        ("if False:\n    import no_such\n", ""),
        ("import sys\nsys.path.append('/somewhere')\nimport no_such\n", ""),
        ("\0", "train.py"),
    ],
)
def test_a_script_that_cannot_begin_is_named_with_its_line(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "helper.py").write_text("raise RuntimeError('the check must run nothing')\n")
    (tmp_path / "train.py").write_text(text)
    found = said(tmp_path, "script", "train.py")
    assert found.startswith(named) if named else not found


def test_a_module_is_looked_for_in_the_project_and_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("raise RuntimeError('the check must run nothing')\n")
    (tmp_path / "pkg/main.py").write_text("import no_such\n")
    assert not said(tmp_path, "module", "json.tool")
    assert "no module nomod" in said(tmp_path, "module", "nomod")
    assert said(tmp_path, "module", "pkg.main").startswith("pkg/main.py imports no_such in line 1")
