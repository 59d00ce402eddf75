"""What modules write into files of a node that others write to as well."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder, text_block, venv
from ansible_collections.torchrun.cluster.plugins.modules import hosts_aliases, job_prepare, ssh_mesh
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
NODES = [
    {"name": "node1", "alias": "trn-0000-node1", "address": "10.0.0.1"},
    {"name": "10.0.0.2", "alias": "trn-0001-10-0-0-2", "address": "10.0.0.2"},
]


@given(st.lists(st.text("ab #.", max_size=8)), st.lists(st.text("xy", min_size=1)))
def test_a_block_is_replaced_and_the_rest_kept(others: list[str], block: list[str]):
    once = text_block.join(block, others)
    assert text_block.split(once) == (block, others)
    assert text_block.join(block, text_block.split(once)[1]) == once


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("old")
    text_block.write(path, "new", 0o640, (os.getuid(), os.getgid()))
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_names_and_aliases_stand_with_their_address():
    assert hosts_aliases.wanted_lines(NODES, [], job_runs=False) == [
        "10.0.0.1 node1 trn-0000-node1",
        "10.0.0.2 trn-0001-10-0-0-2",
    ]


def test_an_alias_of_before_is_kept_while_a_job_may_restart_with_it():
    present = ["10.0.0.2 old trn-0000-old", "10.0.0.1 node1 trn-0000-node1"]
    assert "10.0.0.2 trn-0000-old" in hosts_aliases.wanted_lines(NODES, present, job_runs=True)
    assert "trn-0000-old" not in str(hosts_aliases.wanted_lines(NODES, present, job_runs=False))


IDENTITY = {"public_key": "ssh-ed25519 KEY1", "host_keys": ["ssh-ed25519 HOST1", "ecdsa HOST1"]}


def test_a_key_opens_from_its_own_node_only():
    (line,) = ssh_mesh.authorized_lines(NODES[:1], {"node1": IDENTITY}, [])
    assert line == 'from="10.0.0.1,127.0.0.1,::1" ssh-ed25519 KEY1 trn-0000-node1'


def test_host_keys_are_known_by_name_alias_and_address():
    assert ssh_mesh.known_lines(NODES[:1], {"node1": IDENTITY}, []) == [
        "node1,trn-0000-node1,10.0.0.1 ssh-ed25519 HOST1",
        "node1,trn-0000-node1,10.0.0.1 ecdsa HOST1",
    ]


def test_a_node_that_was_not_asked_keeps_its_keys_and_one_that_left_loses_them():
    authorized = ['from="10.0.0.2" k trn-0001-10-0-0-2', 'from="10.0.0.9" k trn-0009-gone']
    assert ssh_mesh.authorized_lines(NODES, {"node1": IDENTITY}, authorized)[1:] == authorized[:1]
    known = ["10.0.0.2,trn-0001-10-0-0-2 k", "gone,trn-0009-gone k"]
    assert ssh_mesh.known_lines(NODES, {"node1": IDENTITY}, known)[2:] == known[:1]


def test_events_cut_off_by_a_crash_are_read_when_they_are_whole(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "start"}\n{"event": "st')
    events, offset = run_folder.read_events(path, 0)
    assert events == [{"event": "start"}]
    path.write_text('{"event": "start"}\n{"event": "step", "step": 1}\n')
    assert run_folder.read_events(path, offset)[0] == [{"event": "step", "step": 1}]
    assert run_folder.last_event(path, "start") == {"event": "start"}


def test_output_of_the_newest_attempt_is_read_on_where_it_was_left(tmp_path: Path):
    earlier = tmp_path / "job-l0_x/attempt_0/0/stdout.log"  # of another launch
    earlier.parent.mkdir(parents=True)
    earlier.write_text("stale\n")
    first = tmp_path / "job-l1_x/attempt_0/0/stdout.log"
    first.parent.mkdir(parents=True)
    first.write_text("one\ntwo\nthr")
    assert run_folder.new_output(tmp_path, "l1", "", 0, 20) == (["one", "two"], str(first), 8)
    first.write_text("one\ntwo\nthree\n")
    assert run_folder.new_output(tmp_path, "l1", str(first), 8, 20) == (["three"], str(first), 14)
    again = tmp_path / "job-l1_x/attempt_1/0/stdout.log"
    again.parent.mkdir(parents=True)
    again.write_text("anew\n")
    os.utime(first, (0, 0))
    assert run_folder.new_output(tmp_path, "l1", str(first), 14, 20) == (["anew"], str(again), 5)
    again.write_text("1\n2\n3\n")
    assert run_folder.new_output(tmp_path, "l1", "", 0, 2)[0] == [
        "(1 lines are not shown here: logs.yml has them)",
        "2",
        "3",
    ]


def description(launch: str, **program: str) -> dict[str, object]:
    return {"launch": launch, "program": program or {"module": "m"}, "nodes": [{"name": "node1"}]}


def prepare(run_dir: Path, launch: str, **program: str) -> dict[str, object]:
    values = {
        "run_dir": str(run_dir),
        "description": description(launch, **program),
        "python": sys.executable,
        "requirements": None,
    }
    (kind, name), *_ = (program or {"module": "json"}).items()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        about = tarfile.TarInfo("a.py" if kind == "module" else name)
        about.size = len(launch)
        packed.addfile(about, io.BytesIO(launch.encode()))
    archive.seek(0)
    return job_prepare.prepare({**values, "python_path": "", "kind": kind, "program": name}, archive)


def test_a_stopped_run_goes_on_and_a_finished_one_is_moved_aside(tmp_path: Path):
    run_dir = tmp_path / "train"
    assert prepare(run_dir, "l1")["continues"] is False
    (run_dir / "checkpoints/one").touch()
    (run_dir / "outcome.json").write_text('{"launch": "l1", "status": "stopped"}')
    assert prepare(run_dir, "l2")["continues"] is True
    assert (run_dir / "checkpoints/one").exists()
    assert not (run_dir / "outcome.json").exists()
    (run_dir / "outcome.json").write_text('{"launch": "l2", "status": "finished"}')
    assert prepare(run_dir, "l3")["moved_to"] == str(tmp_path / "train.l2")
    assert (tmp_path / "train.l2/checkpoints/one").exists()
    assert not (run_dir / "checkpoints/one").exists()


def test_new_code_replaces_that_of_before_and_leaves_what_the_job_has_written(tmp_path: Path):
    prepare(tmp_path / "train", "l1", script="a.py")
    code = tmp_path / "train/code"
    assert (code / "a.py").read_text() == "l1"
    (code / "snapshot.pt").touch()
    prepare(tmp_path / "train", "l2", script="a.py")
    assert (code / "a.py").read_text() == "l2"
    assert sorted(path.name for path in code.iterdir()) == ["a.py", "snapshot.pt"]


def test_a_program_that_cannot_begin_leaves_the_run_as_it_was(tmp_path: Path):
    prepare(tmp_path / "train", "l1", script="a.py")
    with pytest.raises(job_prepare.ProgramError, match="syntax error"):
        prepare(tmp_path / "train", "l2 !", script="a.py")
    assert (tmp_path / "train/code/a.py").read_text() == "l1"
    assert '"l1"' in (tmp_path / "train/job.yml").read_text()


@pytest.fixture(autouse=True)
def check_of_this_repository(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_prepare, "CHECK", str(ROOT / "roles/torchrun/files/libexec/check_program.py"))


def test_another_program_does_not_go_on_from_this_ones_checkpoints(tmp_path: Path):
    prepare(tmp_path / "train", "l1", script="a.py")
    assert prepare(tmp_path / "train", "l2", script="b.py")["moved_to"] == str(tmp_path / "train.l1")


def test_a_venv_is_named_by_its_lock_and_the_kind_of_node():
    keys = {venv.key_of(lock, tag) for lock in ("a", "b") for tag in ("cp311-x86_64", "cp312-x86_64")}
    assert len(keys) == 4
    assert venv.key_of("a", "cp311-x86_64") == venv.key_of("a", "cp311-x86_64")


def test_a_tool_that_fails_says_its_last_error():
    with pytest.raises(venv.ToolError, match="error: this"):
        venv.run_tool(["sh", "-c", "echo 'warning: that' >&2; echo 'error: this' >&2; echo bye >&2; exit 1"])
