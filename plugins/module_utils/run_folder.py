"""A job's run folder and unit, as modules see them on a node. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

JOBS_DIR = Path("/etc/torchrun/jobs")
LOCK = Path("/run/lock/torchrun-launch")
WANTED = Path("/etc/systemd/system/multi-user.target.wants")


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Work on files as `user`: root is nobody on storage that squashes it. Without root's rights it changes nothing."""
    if os.geteuid() != 0:
        yield
        return
    account = pwd.getpwnam(user)
    groups = os.getgroups()
    os.setgroups([account.pw_gid])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object; an absent, unreadable or half-written file is an empty one."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def description_and_outcome(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what job.yml holds, and how that launch ended: empty while it is open."""
    description, outcome = read_json(run_dir / "job.yml"), read_json(run_dir / "outcome.json")
    return description, outcome if outcome.get("launch") == description.get("launch") else {}


def write_file(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically; never readable by more than `mode` allows, not even for a moment."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def read_environment_file(job: str) -> dict[str, str]:
    """Return the variables of a job's environment file on this host; empty where the host has none."""
    try:
        return parse_environment((JOBS_DIR / f"{job}.env").read_text())
    except OSError:
        return {}


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables of the text of an environment file of ours."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        name, found, quoted = line.partition("=")
        if found and not name.startswith("#"):
            variables[name] = re.sub(r"\\(.)", r"\1", quoted[1:-1])
    return variables


@contextlib.contextmanager
def one_launch_at_a_time() -> Iterator[None]:
    """Hold this host's lock of launches: what is found free cannot be taken before it is used."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unit_states(jobs: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return ActiveState, SubState, Result and NRestarts of the jobs' units on this host, in one call."""
    if not jobs:
        return {}
    names = "ActiveState,SubState,Result,NRestarts"
    units = [f"torchrun@{job}.service" for job in jobs]
    words = ["systemctl", "show", f"--property={names}", *units]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    # One block of lines a unit, in the order asked for, with an empty line between.
    blocks = done.stdout.strip().split("\n\n") if done.stdout.strip() else []
    states = [
        {name: value for name, _, value in (line.partition("=") for line in block.splitlines())} for block in blocks
    ]
    return dict(zip(jobs, states)) if len(states) == len(jobs) else {job: {} for job in jobs}


def unit_state(job: str) -> dict[str, str]:
    """Return the state of one job's unit on this host."""
    return unit_states([job])[job]


def is_wanted(state: dict[str, str]) -> bool:
    """Tell whether the unit runs, or waits to be started again."""
    return state.get("ActiveState") in ("active", "activating", "reloading", "deactivating")


def is_enabled(job: str) -> bool:
    """Tell whether the unit is started at the next boot. By its link: of a failed unit systemd remembers what was."""
    return (WANTED / f"torchrun@{job}.service").is_symlink()


def jobs_on_host() -> dict[str, dict[str, str]]:
    """Return the environment of every job whose unit runs on this host, by job name."""
    states = unit_states(sorted(path.stem for path in JOBS_DIR.glob("*.env")))
    return {job: read_environment_file(job) for job, state in states.items() if is_wanted(state)}


def node_reports(run_dir: Path, launch: str) -> dict[str, dict[str, Any]]:
    """Return what each host last reported for this launch, by host name."""
    reports = (read_json(path) for path in sorted((run_dir / "nodes").glob("*.json")))
    return {report["host"]: report for report in reports if report.get("launch") == launch and "host" in report}


def read_events(path: Path, offset: int, most: int = -1) -> tuple[list[dict[str, Any]], int]:
    """Return the complete JSON lines of `path` from byte `offset` on (`most` bytes), and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(most)
    except OSError:
        return [], offset
    complete = data.rpartition(b"\n")[0]
    events = []
    for line in complete.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events, offset + (len(complete) + 1 if complete else 0)


def new_output(logs: Path, launch: str, seen: str, offset: int, most: int) -> tuple[list[str], str, int]:
    """Return what the first worker of a host has printed since: (lines, file, offset behind them).

    `logs` is the host's log folder, `seen` and `offset` are what the last call returned ("" and 0 at first). Each
    attempt of a launch has a file of its own; of many lines the last `most` are returned, after one that says so.
    """
    files = sorted(logs.glob(f"*{launch}*/attempt_*/0/stdout.log"), key=lambda path: path.stat().st_mtime)
    if not files:
        return [], seen, offset
    newest = str(files[-1])
    start = offset if newest == seen else 0
    with files[-1].open("rb") as file:
        file.seek(start)
        complete = file.read(1 << 20).rpartition(b"\n")[0]
    lines = complete.decode(errors="replace").split("\n") if complete else []
    if len(lines) > most:
        lines = [f"({len(lines) - most} lines are not shown here: logs.yml has them)", *lines[-most:]]
    return lines, newest, start + (len(complete) + 1 if complete else 0)


def size(path: Path) -> int:
    """Return the size of a file in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def first_event(path: Path, kind: str, offset: int, window: int = 65536) -> dict[str, Any]:
    """Return the first event of a kind among `window` bytes of a metrics file; empty where there is none."""
    events, _ = read_events(path, offset, window)
    return next((event for event in events if event.get("event") == kind), {})


def last_event(path: Path, kind: str, offset: int = 0, window: int = 65536) -> dict[str, Any]:
    """Return the last event of a kind among the last `window` bytes of a metrics file, none before `offset`."""
    events, _ = read_events(path, max(offset, size(path) - window))
    return next((event for event in reversed(events) if event.get("event") == kind), {})
