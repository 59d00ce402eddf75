"""Running a playbook of the repository through ansible_runner, and what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible_runner
from cluster import ROOT, TOOLS

HAPPENED = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable")


@dataclass(frozen=True)
class Run:
    """What came of a playbook: its exit status, its events, and what it showed."""

    status: int
    events: list[dict[str, Any]]
    output: str

    def results(self, task: str | None = None) -> list[dict[str, Any]]:
        """Return the results of all tasks, or of those whose name contains `task`."""
        found = [event["event_data"] for event in self.events if event["event"] in HAPPENED]
        return [data["res"] | {"host": data["host"]} for data in found if task is None or task in data["task"]]

    @property
    def changed(self) -> dict[str, int]:
        """Number of changes by host."""
        stats = [event for event in self.events if event["event"] == "playbook_on_stats"]
        return {host: count for host, count in stats[-1]["event_data"]["changed"].items() if count} if stats else {}

    @property
    def errors(self) -> list[str]:
        """The messages of all that failed or did not answer."""
        kinds = ("runner_on_failed", "runner_on_unreachable")
        return [str(event["event_data"]["res"].get("msg")) for event in self.events if event["event"] in kinds]

    @property
    def shown(self) -> list[str]:
        """The lines that results asked to be shown."""
        return [line for result in self.results() for line in result.get("display", [])]


Play = Callable[..., Run]
KillInTheMiddle = Callable[..., None]


def play(playbook: str, *words: str, inventory: Path, overrides: Path | None = None) -> Run:
    """Run a playbook with the given words of a command line; `overrides` is an inventory that wins over the first."""
    with tempfile.TemporaryDirectory(prefix="torchrun-e2e-") as folder:
        runner = ansible_runner.run(
            private_data_dir=folder,
            project_dir=str(ROOT),
            playbook=str(ROOT / playbook),
            inventory=[str(path) for path in (inventory, overrides) if path],
            cmdline=" ".join(words) or None,
            envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{TOOLS}:{os.environ['PATH']}"},
            quiet=True,
        )
        assert runner.rc is not None
        return Run(runner.rc, list(runner.events), Path(runner.config.artifact_dir, "stdout").read_text())


def kill_in_the_middle(playbook: str, *words: str, inventory: Path, when: Callable[[], bool]) -> None:
    """Run a playbook and kill all of it as soon as `when` holds, as a power cut of the controller does."""
    process = subprocess.Popen(
        [str(TOOLS / "ansible-playbook"), "-i", str(inventory), playbook, *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not when():
        time.sleep(0.1)
    assert process.poll() is None, f"{playbook} was over before it could be killed"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
