"""The runs on the shared storage: what a folder says, what is shown, what goes."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import clean_plan, job_views, run_history

LAUNCH = "20261201T120000-aa"


def make(runs: Path, job: str, launch: str = LAUNCH, aside: bool = False, **outcome: Any) -> Path:
    """A run folder; `outcome` is how it ended."""
    folder = runs / (f"{job}.{launch}" if aside else job)
    (folder / "nodes").mkdir(parents=True)
    before, *mine = [{"event": "step", "step": 9}, {"event": "start", "steps": 300}, {"event": "step", "step": 120}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [before, *mine]))
    about = {"job": job, "launch": launch, "began": 1000.0, "world_size": "3", "nodes": [{"name": "a"}, {"name": "b"}]}
    (folder / "job.yml").write_text(json.dumps({**about, "metrics_offset": len(json.dumps(before)) + 1}))
    if outcome:
        (folder / "outcome.json").write_text(json.dumps({"launch": launch, "host": "a", "time": 1090.0, **outcome}))
    return folder


def run(launch: str = LAUNCH, job: str = "train", folder: str | None = None, **changes: Any) -> dict[str, Any]:
    values = {
        "job": job, "launch": launch, "folder": folder or job, "status": "finished", "reason": "", "began": 1000.0,
        "ended": 1090.0, "world_size": "3", "step": 120, "steps": 300, "members": ["a", "b"],
    }  # fmt: skip
    return {**values, **changes}


def on_host(launch: str = LAUNCH, active: bool = True) -> dict[str, Any]:
    return {"train": {"launch": launch, "active": active}}


def test_a_folder_says_how_its_run_ended(tmp_path: Path):
    failure = {"rank": 2, "how": "exited with 3", "message": "ValueError: boom", "time": 8.0}
    make(tmp_path, "train", status="failed", failure=failure)
    (entry,) = run_history.read(tmp_path)
    assert (entry["status"], entry["reason"]) == ("failed", "a: rank 2 exited with 3: ValueError: boom")
    assert (entry["began"], entry["ended"], entry["world_size"]) == (1000.0, 1090.0, "3")
    assert (entry["step"], entry["steps"], entry["members"]) == (120, 300, ["a", "b"])


def test_what_is_not_ours_is_no_run(tmp_path: Path):
    make(tmp_path, "train", aside=True, status="finished")
    (tmp_path / "foreign").mkdir()
    make(tmp_path, "copied").rename(tmp_path / "copy-of-mine")
    (tmp_path / "link").symlink_to(tmp_path / f"train.{LAUNCH}")
    (tmp_path / "file").touch()
    assert [entry["folder"] for entry in run_history.read(tmp_path)] == [f"train.{LAUNCH}"]


def test_steps_of_the_launch_before_are_not_those_of_this_one(tmp_path: Path):
    folder = make(tmp_path, "train")
    about = json.loads((folder / "job.yml").read_text())
    offset = (folder / "metrics.jsonl").stat().st_size
    (folder / "job.yml").write_text(json.dumps({**about, "metrics_offset": offset}))
    (entry,) = run_history.read(tmp_path)
    assert (entry["step"], entry["steps"]) == (None, None)


def test_without_a_time_the_id_of_the_launch_tells_it(tmp_path: Path):
    folder = make(tmp_path, "train", launch="19700101T000140-aa")
    about = json.loads((folder / "job.yml").read_text())
    del about["began"]
    (folder / "job.yml").write_text(json.dumps(about))
    assert run_history.read(tmp_path)[0]["began"] == 100.0


@pytest.mark.parametrize(
    ("changes", "hosts", "state"),
    [
        ({"status": ""}, {"a": on_host(), "b": {}}, "running"),
        ({"status": "stopped"}, {"a": {}, "b": on_host()}, "running"),  # it saves
        ({"status": ""}, {"a": on_host("another"), "b": {}}, "interrupted"),
        ({"status": ""}, {"a": on_host(active=False), "b": {}}, "interrupted"),
        ({"status": ""}, {"a": {}, "b": None}, "no answer"),
        ({"status": ""}, {"a": {}}, "no answer"),  # b is left out by --limit
        ({"status": "failed"}, {"a": {}, "b": None}, "failed"),
        ({"status": "", "folder": "train.l"}, {"a": on_host(), "b": None}, "interrupted"),
    ],
)
def test_the_state_of_a_run_is_what_its_hosts_say_and_its_end(
    changes: dict[str, Any], hosts: dict[str, Any], state: str
):
    assert run_history.state(run(**changes), hosts) == state


def test_jobs_that_are_over_have_no_table_of_hosts():
    hosts = {"a": {**on_host(), "done": {"launch": "l", "active": False}}, "b": {}}
    assert run_history.over([run(status=""), run(job="done")], hosts) == {"done"}
    assert run_history.over([], {"a": {"gone": {"launch": "l", "active": False}}}) == {"gone"}
    silent = {"a": on_host(active=False), "b": None}
    assert run_history.over([run(status="")], silent) == set()


def test_runs_are_listed_newest_first_and_fit():
    reason = "node-with-a-long-name: rank 2 exited with 3: " + "x" * 200 + "\x1b"
    runs = [
        run("20261201T120000-abcd", folder="train.20261201T120000-abcd"),
        run("20261202T120000-abcd", status="failed", reason=reason, ended=1000.0 + 12 * 86400),
        run(job="x" * 40, status="", ended=None, world_size="100:200", step=1000000, steps=1000000),
    ]
    lines = run_history.lines(runs, {"a": {}, "b": {}}, now=5000.0)
    assert max(map(len, lines)) <= 100
    table = lines[lines.index("runs of train") + 1 :]
    assert table[0].split() == ["launch", "state", "began", "took", "world", "step"]
    assert table[1].split()[:2] == ["20261202T120000-abcd", "failed"]
    assert table[2].startswith("    node-with-a-long-name: rank 2 exited with 3: xxx")
    assert table[2].endswith("...")
    began = datetime.fromtimestamp(1000.0).strftime("%Y-%m-%d %H:%M").split()
    assert table[3].split() == ["20261201T120000-abcd", "finished", *began, "0:01:30", "3", "120/300"]
    assert any("interrupted" in line for line in lines)


def test_status_leaves_out_what_is_over():
    entry = {"launch": "l", "active": False}
    assert job_views.status({"a": {"train": entry}}, "", 0.0, over={"train"}) == []


OLD = [run(f"2026120{day}T120000-aa", folder=f"train.2026120{day}T120000-aa") for day in (1, 2, 3)]


def chosen(runs: list[dict[str, Any]], keep: int, hosts: Any = None, job: str = "", unfinished: bool = False) -> Any:
    gone, resumable = clean_plan.choose(runs, hosts or {"a": {}, "b": {}}, keep, job, unfinished)
    return [each["launch"][6:8] for each in gone], [each["launch"][6:8] for each in resumable]


def test_the_newest_runs_of_each_job_stay():
    runs = [*OLD, run("20261204T120000-aa"), run("20261201T120000-aa", job="other")]
    assert chosen(runs, 2) == (["02", "01"], [])
    assert chosen(runs, 0, job="other") == (["01"], [])
    assert chosen(runs, 9) == ([], [])


@pytest.mark.parametrize("status", ["stopped", "failed", ""])
def test_what_can_be_resumed_goes_only_when_that_is_said(status: str):
    runs = [*OLD, run("20261204T120000-aa", status=status)]
    assert chosen(runs, 0) == (["03", "02", "01"], ["04"])
    assert chosen(runs, 0, unfinished=True) == (["04", "03", "02", "01"], [])


@pytest.mark.parametrize("hosts", [{"a": on_host("20261204T120000-aa"), "b": {}}, {"a": {}, "b": None}, {"a": {}}])
def test_what_runs_or_may_run_never_goes(hosts: dict[str, Any]):
    runs = [*OLD, run("20261204T120000-aa", status="")]
    assert chosen(runs, 0, hosts, unfinished=True) == (["03", "02", "01"], [])


def test_what_went_is_listed_with_its_size():
    removed = {"a": [{"path": "/s/runs/x", "bytes": 1_440_000}], "b": []}
    lines = clean_plan.lines(removed, ["train"], check=True)
    assert lines[0].split() == ["would", "remove", "1.4", "MB", "a:", "/s/runs/x"]
    assert "1.4 MB in all" in lines[1]
    assert "unfinished=true" in lines[2]
    assert clean_plan.lines({"a": []}, [], check=False) == ["Nothing is left to remove."]
    assert [clean_plan.size(count) for count in (0, 999, 12_345, 5 * 10**12)] == ["0 B", "999 B", "12 kB", "5.0 TB"]
