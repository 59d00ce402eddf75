"""What this node knows of the job it runs, kept on the shared storage for whoever follows.

Used by the agent, the guard and the after-stop script; standard library only. All of it is read from the environment
that systemd gives the unit (TORCHRUN_RUN_DIR, TORCHRUN_LAUNCH, TORCHRUN_HOST, TORCHRUN_NODE_RANK).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

# Exit statuses of the unit, from sysexits.h where one fits.
EXIT_FAILED = 70  # the job has failed for good: systemd must not try again
EXIT_TRY_AGAIN = 75  # this agent lost the others: systemd starts it again and it rejoins
EXIT_STOPPED = 143  # ended by SIGTERM: a stop, not a failure

LOOK_SECONDS = 1.0

# What each report has of its own, and what it takes over from the one before.
ALWAYS = ("launch", "host", "node_rank", "state", "since")
TAKEN_OVER = ("failures", "hangs")


def run_dir() -> Path:
    """Return the run folder of this job."""
    return Path(os.environ["TORCHRUN_RUN_DIR"])


def await_storage() -> None:
    """Wait until the run folder can be read and written. Where it is away nothing can be known, and nothing kept."""
    folder, told = run_dir(), False
    while not (os.access(folder / "job.yml", os.R_OK) and os.access(folder, os.W_OK)):
        if not told:
            print(f"torchrun agent: waiting for the storage: {folder} is not there, or cannot be written.", flush=True)  # noqa: T201 (goes to the journal)
            told = True
        time.sleep(LOOK_SECONDS)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object; an absent or half-written file is an empty one."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _temporary(path: Path, value: dict[str, Any]) -> Path:
    temporary = path.with_name(f".{path.name}.{os.environ['TORCHRUN_HOST']}.{os.getpid()}")
    temporary.write_text(json.dumps(value) + "\n")
    return temporary


def report(state: str, **details: Any) -> None:
    """Replace this host's report atomically. A full or vanished storage must not end the job, so it is only said."""
    value = {
        "launch": os.environ["TORCHRUN_LAUNCH"],
        "host": os.environ["TORCHRUN_HOST"],
        "node_rank": int(os.environ["TORCHRUN_NODE_RANK"]),
        "state": state,
        "since": time.time(),
        **{key: value for key, value in last_report().items() if key in TAKEN_OVER},
        **details,
    }
    path = run_dir() / "nodes" / f"{os.environ['TORCHRUN_HOST']}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _temporary(path, value).replace(path)
    except OSError as error:
        print(f"torchrun agent: could not report the state {state} to {path}: {error.strerror}.", flush=True)  # noqa: T201 (goes to the journal)


def amend(**details: Any) -> None:
    """Report the state of before once more, with more or other details."""
    before = last_report()
    kept = {key: value for key, value in before.items() if key not in ALWAYS}
    report(before.get("state", "running"), **{**kept, **details})


def report_of(host: str) -> dict[str, Any]:
    """Return what a host reported last for this launch, else an empty dict."""
    value = read_json(run_dir() / "nodes" / f"{host}.json")
    return value if value.get("launch") == os.environ["TORCHRUN_LAUNCH"] else {}


def last_report() -> dict[str, Any]:
    """Return what this host reported last for this launch, else an empty dict."""
    return report_of(os.environ["TORCHRUN_HOST"])


def ranks_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return what a later report keeps of this one: the ranks and the world size, where they are known."""
    return {key: report[key] for key in ("ranks", "world_size") if key in report}


def outcome() -> dict[str, Any]:
    """Return how this launch ended (`status`: finished, failed or stopped), else an empty dict."""
    value = read_json(run_dir() / "outcome.json")
    return value if value.get("launch") == os.environ["TORCHRUN_LAUNCH"] else {}


def is_superseded() -> bool:
    """Tell whether the job was launched again without this host, which was away: its own launch is over."""
    newest = read_json(run_dir() / "job.yml").get("launch")
    return newest is not None and newest != os.environ["TORCHRUN_LAUNCH"]


def conclude(status: str, **details: Any) -> None:
    """Say once for the whole job how it ended; the first to say it is right, whatever others find later."""
    path = run_dir() / "outcome.json"
    value = {
        "launch": os.environ["TORCHRUN_LAUNCH"],
        "status": status,
        "host": os.environ["TORCHRUN_HOST"],
        "time": time.time(),
        **details,
    }
    with contextlib.suppress(OSError):
        temporary = _temporary(path, value)
        try:
            os.link(temporary, path)  # fails where the file exists: unlike a rename, it never replaces
        finally:
            temporary.unlink()
