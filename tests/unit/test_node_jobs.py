"""What modules do on a node with jobs that are there already: ports, secrets, stops, removals."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import layer, run_folder
from ansible_collections.torchrun.cluster.plugins.modules import (
    job_clean,
    job_preflight,
    job_prepare,
    job_secrets,
    job_stop,
)

# Nobody to become: a test works as whoever runs it.
USER = "trainer"


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose folders are all in one place; no unit runs."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "shared/runs").mkdir(parents=True)
    monkeypatch.setattr(run_folder, "JOBS_DIR", tmp_path / "jobs")
    monkeypatch.setattr(run_folder, "WANTED", tmp_path)
    monkeypatch.setattr(layer, "LAYERS", tmp_path / "layers")
    monkeypatch.setattr(run_folder, "unit_states", lambda jobs: {job: {"ActiveState": "inactive"} for job in jobs})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


def make_run(host: Path, job: str, launch: str = "l1", folder: str | None = None) -> Path:
    path = host / "shared/runs" / (folder or job)
    (path / "code").mkdir(parents=True)
    (path / "code/a.py").write_text("x" * 1000)
    (path / "job.yml").write_text(json.dumps({"job": job, "launch": launch, "env_names": ["COLOUR"]}))
    return path


def make_environment(host: Path, job: str, **variables: str) -> Path:
    path = host / f"jobs/{job}.env"
    path.write_text("".join(f'{name}="{value}"\n' for name, value in variables.items()))
    return path


def test_the_first_port_that_no_job_has_and_nobody_listens_on_is_taken(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = listener.getsockname()[1]
        monkeypatch.setattr(job_preflight, "PORTS", [busy, busy + 1, busy + 2])
        others = {"other": {"PET_RDZV_ENDPOINT": f"10.0.0.1:{busy + 1}"}}
        assert job_preflight.free_port("127.0.0.1", others) == busy + 2
        monkeypatch.setattr(job_preflight, "PORTS", [busy])
        with pytest.raises(job_preflight.PreflightError, match="give a master_port"):
            job_preflight.free_port("127.0.0.1", {})


def test_requirements_are_kept_for_the_account_alone_and_only_while_the_job_has_some(tmp_path: Path):
    job_prepare.keep_requirements(tmp_path, "numpy")
    path = tmp_path / "requirements.txt"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("numpy\n", 0o600)
    job_prepare.keep_requirements(tmp_path, None)
    assert not path.exists()


def test_secrets_are_those_of_the_launch_in_the_run_folder(host: Path):
    run = make_run(host, "train")
    (run / "requirements.txt").write_text("numpy\n")
    assert job_secrets.secrets("train", run, USER) == {"requirements": "numpy"}
    make_environment(host, "train", TORCHRUN_LAUNCH="l0", COLOUR="of another launch")
    assert "env" not in job_secrets.secrets("train", run, USER)
    make_environment(host, "train", TORCHRUN_LAUNCH="l1", COLOUR="t", OMP_NUM_THREADS="1")
    assert job_secrets.secrets("train", run, USER)["env"] == {"COLOUR": "t"}


def test_a_stop_is_noted_once_and_for_the_newest_launch_alone(host: Path):
    run = make_run(host, "train")
    job_stop.mark_stopped(run, "l0", "a")
    assert not (run / "outcome.json").exists()
    job_stop.mark_stopped(run, "l1", "a")
    job_stop.mark_stopped(run, "l1", "b")
    assert run_folder.read_json(run / "outcome.json")["host"] == "a"


def clean(host: Path, runs: list[Path], check: bool = False, running: Any = None) -> list[str]:
    """Remove runs; return the names of what went."""
    wanted = [{"folder": run.name, "launch": "l1"} for run in runs]
    found = job_clean.set_aside(host / "shared/runs", wanted, running or {}, check)
    removed = job_clean.remove_runs(found, check)
    assert all(item["bytes"] > 0 for item in removed)
    return [Path(item["path"]).name for item in removed]


def test_a_run_is_removed_with_all_that_is_in_it(host: Path):
    run, other = make_run(host, "train"), make_run(host, "other")
    assert clean(host, [run], check=True) == ["train"]
    assert run.exists()
    assert clean(host, [run]) == ["train"]
    assert list((host / "shared/runs").iterdir()) == [other]
    assert clean(host, [run]) == []


def test_a_run_that_is_another_by_now_or_not_ours_or_runs_stays(host: Path):
    newer, mine = make_run(host, "newer", launch="l2"), make_run(host, "mine")
    (mine / "job.yml").unlink()
    busy = make_run(host, "busy")
    assert clean(host, [newer, mine, busy], running={"busy": {"TORCHRUN_LAUNCH": "l1"}}) == []
    assert all(path.exists() for path in (newer, mine, busy))


def test_a_removal_that_was_interrupted_is_finished(host: Path):
    left = make_run(host, "train").rename(host / "shared/runs/.removed-train")
    foreign = host / "shared/runs/.removed-foreign"
    foreign.mkdir()
    (foreign / "mine").touch()
    assert clean(host, []) == [".removed-train"]
    assert not left.exists()
    assert foreign.exists()


def leftovers(host: Path, check: bool = False, **params: Any) -> list[str]:
    given = {"jobs": [], "gone": [], "job": "", "user": USER, "shared_path": str(host / "shared"), **params}
    return [Path(item["path"]).name for item in job_clean.clean_host(given, check)]


def test_environment_files_of_jobs_without_a_run_go(host: Path):
    make_run(host, "kept")
    for job in ("kept", "seen-elsewhere", "left"):
        make_environment(host, job, COLOUR="t")
    assert leftovers(host, jobs=["seen-elsewhere"], job="another") == []
    assert leftovers(host, jobs=["seen-elsewhere"]) == ["left.env"]
    assert sorted(path.name for path in (host / "jobs").iterdir()) == ["kept.env", "seen-elsewhere.env"]
    assert leftovers(host, jobs=["seen-elsewhere"], gone=["kept"], check=True) == ["kept.env"]


def test_where_the_shared_storage_is_not_mounted_nothing_is_left_over(host: Path):
    make_environment(host, "train", COLOUR="t")
    (host / "shared/runs").rmdir()
    assert leftovers(host) == []


def test_a_unit_that_is_wanted_at_the_next_boot_keeps_its_environment(host: Path):
    make_environment(host, "train", COLOUR="t")
    link = host / "torchrun@train.service"
    link.symlink_to("/unit")
    assert leftovers(host) == []
    link.unlink()
    assert leftovers(host) == ["train.env"]


@pytest.mark.parametrize("state", [{"ActiveState": "active"}, {"ActiveState": "activating"}, {}])
def test_a_job_that_runs_has_no_leftovers(host: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, str]):
    monkeypatch.setattr(run_folder, "unit_states", lambda jobs: dict.fromkeys(jobs, state))
    make_environment(host, "train", COLOUR="t")
    assert leftovers(host) == []


def test_layers_that_no_job_names_go_once_they_are_old(host: Path):
    for name, age in (("layer-used", 9999), ("layer-old", 9999), ("layer-young", 0)):
        (host / "layers" / name).mkdir(parents=True)
        then = (host / "layers" / name).stat().st_mtime - age
        os.utime(host / "layers" / name, (then, then))
    make_environment(host, "train", TORCHRUN_PYTHON=f"{host}/layers/layer-used/bin/python")
    assert leftovers(host, jobs=["train"]) == ["layer-old"]
    assert sorted(path.name for path in (host / "layers").iterdir()) == ["layer-used", "layer-young"]
    # With the job goes what only it has used.
    assert leftovers(host, jobs=[]) == ["train.env", "layer-used"]


def test_wheels_of_layers_that_are_gone_go_once_they_are_old(host: Path):
    (host / "layers/layer-used").mkdir(parents=True)
    for name, age in (("layer-used", 9999), ("layer-old", 9999), ("layer-young", 0), ("cp311", 9999)):
        folder = host / "shared/wheels" / name
        folder.mkdir(parents=True)
        (folder / "a.whl").write_bytes(b"wheel")
        then = folder.stat().st_mtime - age
        os.utime(folder, (then, then))
    for check in (True, False):
        (gone,) = job_clean.clean_wheels(host / "shared", check)
        assert gone == {"path": f"{host}/shared/wheels/layer-old", "bytes": 5}
    assert sorted(path.name for path in (host / "shared/wheels").iterdir()) == ["cp311", "layer-used", "layer-young"]
