"""Scripts and projects as people have them run unmodified; what cannot begin is refused before anything changes."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import cluster
import pytest
from cluster import TOOLS

from playbooks import Play

RUNS = "/srv/torchrun/runs"
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.usefixtures("nodes")


@pytest.mark.parametrize(
    ("script", "package", "printed"),
    [
        ("local_rank_only.py", "", "node1:0: local ranks only: 3 processes"),
        ("needs_master_addr.py", "", "node1:0: own rendezvous: sum of ranks 3"),
        ("with_accelerate.py", "accelerate==1.16.0", "node1:0: epoch 1: 3 processes, loss"),
        ("with_lightning.py", "lightning==2.6.6", "node1:0: lightning: 2 processes, 4 steps"),
    ],
)
def test_a_common_script_runs_unmodified(play: Play, tmp_path: Path, script: str, package: str, printed: str):
    (tmp_path / "r.txt").write_text(f"{package}\n")
    words = [f"-e job=common -e nnodes=2 -e script={PROGRAMS / script}"]
    if package:
        words.append(f"-e requirements={tmp_path}/r.txt")
    if package.startswith("lightning"):  # it wants as many processes on each node
        words.append("-e nproc_per_node=1")
    done = play("train.yml", *words)
    assert done.status == 0, done.output
    assert printed in done.output


def test_a_tutorial_script_keeps_its_snapshot_and_goes_on_from_it(play: Play, nodes: list[cluster.Node]):
    assert nodes
    words = f"-e job=tutorial -e nnodes=2 -e script={PROGRAMS / 'ddp_tutorial.py'}"
    failed = play("train.yml", words, """-e '{"script_args": ["not a number", "1"]}'""")
    assert failed.status != 0
    assert "invalid int value" in failed.errors[-1]
    first = play("train.yml", words, """-e '{"script_args": ["2", "1"]}'""", "-e wait=true")
    assert first.status == 0, first.output
    assert "epoch 1 steps" in first.output
    # A finished run is moved aside; its snapshot with it.
    assert nodes[0].run(f"test -e {RUNS}/tutorial/code/snapshot.pt", check=False).returncode == 0


def project_in(folder: Path) -> Path:
    """A project with a package, a configuration, and what its .gitignore names."""
    files = {
        "train/main.py": (
            "import os, pathlib\n"
            "from train.helper import words\n"
            "print(words(), pathlib.Path('config.txt').read_text(), os.environ.get('TOKEN'))\n"
            "pathlib.Path('made').write_text('by the job')\n"
        ),
        "train/helper.py": "def words(): return 'the project of ' + __file__.rpartition('/runs/')[2]\n",
        "config.txt": "its configuration",
        ".gitignore": "*.bin\n",
        "big.bin": "0",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("program", ["-e module=train.main", "-e script=train/main.py"])
def test_a_project_is_copied_whole_but_for_what_its_gitignore_names(
    play: Play, nodes: list[cluster.Node], tmp_path: Path, program: str
):
    project = project_in(tmp_path / "project")
    done = play("train.yml", f"-e job=project -e nnodes=2 -e workdir={project} {program}")
    assert done.status == 0, done.output
    assert "node1:0: the project of project/code/train/helper.py its configuration None" in done.output
    found = nodes[1].run(f"cd {RUNS}/project/code && find . -type f -not -name '*.pyc' | sort").stdout.split()
    assert found == ["./.gitignore", "./config.txt", "./made", "./train/helper.py", "./train/main.py"]


def test_secrets_come_from_a_file_or_vault_and_show_up_nowhere(play: Play, nodes: list[cluster.Node], tmp_path: Path):
    script = tmp_path / "look.py"
    script.write_text(
        "import hashlib, os\n"
        "for name in ('TOKEN', 'OTHER'): print(name, hashlib.sha256(os.environ[name].encode()).hexdigest()[:8])\n"
    )
    (tmp_path / "password").write_text("open sesame\n")
    (tmp_path / "secrets.env").write_text("TOKEN='hunter2 $x'\n")
    (tmp_path / "vars.yml").write_text("env: {OTHER: swordfish}\n")
    vault = ["ansible-vault", "encrypt", "--vault-password-file", str(tmp_path / "password")]
    subprocess.run(
        [str(TOOLS / vault[0]), *vault[1:], str(tmp_path / "secrets.env"), str(tmp_path / "vars.yml")],
        check=True, capture_output=True,
    )  # fmt: skip
    words = [f"-e job=secret -e nnodes=2 -e script={script}", f"-e env_file={tmp_path}/secrets.env"]
    done = play(
        "train.yml", *words, f"-e @{tmp_path}/vars.yml", f"--vault-password-file {tmp_path}/password", "-vvv", "--diff"
    )
    assert done.status == 0, done.output
    for name, value in (("TOKEN", "hunter2 $x"), ("OTHER", "swordfish")):
        assert f"{name} {hashlib.sha256(value.encode()).hexdigest()[:8]}" in done.output
    seen = [done.output, str(done.events)]
    for node in nodes:
        assert node.run("stat -c '%a %U' /etc/torchrun/jobs/secret.env").stdout == "600 root\n"
        seen.append(node.run(f"grep -rs . {RUNS}/secret; journalctl --no-pager --quiet; ps -ewwo args").stdout)
    assert not [text for text in seen if "hunter2" in text or "swordfish" in text]
    # Without the password there is one sentence.
    refused = play("train.yml", *words)
    assert refused.status != 0
    assert "secrets.env" in refused.errors[0]


@pytest.mark.parametrize(
    ("text", "named"),
    [("for x in\n", "syntax error in line 1"), ("import no_such_package\n", "imports no_such_package in line 1")],
)
def test_a_script_that_cannot_begin_is_refused_before_anything_changes(
    play: Play, state_of_nodes: Callable[[], list[str]], tmp_path: Path, text: str, named: str
):
    script = tmp_path / "wrong.py"
    script.write_text(text)
    before = state_of_nodes()
    done = play("train.yml", f"-e job=wrong -e nnodes=2 -e script={script}")
    assert done.status != 0
    assert f"wrong.py {'has a ' if 'syntax' in named else ''}{named}" in done.errors[0]
    assert state_of_nodes() == before


def test_requirements_that_do_not_exist_or_want_another_torch_are_refused(
    play: Play, nodes: list[cluster.Node], state_of_nodes: Callable[[], list[str]], tmp_path: Path
):
    assert nodes
    before = state_of_nodes()
    for line, named in (("no-such-package-of-ours==1", "no-such-package-of-ours"), ("torch==2.0.0", "torch")):
        (tmp_path / "r.txt").write_text(f"{line}\n")
        done = play("train.yml", f"-e job=wrong -e nnodes=2 -e requirements={tmp_path}/r.txt")
        assert done.status != 0
        assert named in done.errors[0]
    assert state_of_nodes() == before
