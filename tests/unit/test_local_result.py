"""The lines that end the demo."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
START = {"event": "start", "world_size": 3, "unigram_entropy": 3.2}
STEPS = [{"event": "step", "step": step, "loss": loss} for step, loss in ((1, 5.5), (100, 2.25))]
END = {"event": "end", "step": 100, "loss": 2.25, "samples_per_s": 210.0, "status": "finished"}


@pytest.fixture
def local_result(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "local"))
    return importlib.import_module("result")


def test_the_last_launch_counts_and_a_line_that_is_cut_off_does_not(local_result: ModuleType) -> None:
    earlier = [START | {"world_size": 1}, {"event": "step", "step": 7, "loss": 9.0}, END]
    lines = [json.dumps(event) for event in [*earlier, START, *STEPS, END]]
    events = local_result.last_launch([*lines, '{"event": "st'])
    assert events == {"start": START, "first": STEPS[0], "step": STEPS[1], "end": END}


def test_a_launch_that_runs_again_has_no_end_yet(local_result: ModuleType) -> None:
    lines = [json.dumps(event) for event in [START, *STEPS, END, START]]
    assert "end" not in local_result.last_launch(lines)


def test_the_summary_has_what_a_person_looks_for(local_result: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    for host in ("node1", "node2"):
        (tmp_path / "nodes" / f"{host}.json").touch()
    events = {"start": START, "first": STEPS[0], "step": STEPS[1], "end": END}
    text = "\n".join(local_result.summary(events, tmp_path))
    for wanted in (
        "3 on node1, node2",
        "2.250",
        "5.500",
        "210.0 samples/s",
        f"{tmp_path}/report.html",
        "./demo down",
    ):
        assert wanted in text


def test_a_job_that_has_not_run_is_one_sentence() -> None:
    command = [sys.executable, str(ROOT / "local" / "result.py"), "--job", "no-such-job"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("The result of the job no-such-job cannot be read")
    assert len(done.stderr.splitlines()) == 1
