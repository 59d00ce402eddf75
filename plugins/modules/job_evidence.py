#!/usr/bin/python
"""Ansible module: all that this host can tell of how a job failed: logs of unit, agent, workers and kernel."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_evidence
short_description: All that this host can tell of how a job failed
description:
  - Logs of the unit and its agent, of the workers, of the kernel, and what NCCL tells while it hangs, since the launch.
  - Of each log its end. Changes nothing, and fails for nothing that is missing.
options:
  job: {description: Name of the job., type: str, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Gather what every host can tell
  torchrun.cluster.job_evidence:
    job: train
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
sources: {description: "C(kind), C(name), C(text), C(rank), C(until) of each log.", type: list, returned: always}
description: {description: What C(job.yml) holds; empty where there is none., type: dict, returned: always}
outcome: {description: How that launch ended; empty while it is open., type: dict, returned: always}
report: {description: What this host's agent reported last., type: dict, returned: always}
progressed: {description: Unix time of the last step that was logged., type: float, returned: where there is one}
active: {description: Whether the unit runs here., type: bool, returned: always}
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import journal, run_folder
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis import events

# Of each log its end, and of all worker logs together so much.
MOST_BYTES, MOST_LINES = 64_000, 2000
MOST_FILES = 64
# Where NCCL answers who asks what it does, also while it hangs (2.24 and newer).
RAS = ("localhost", 28028)
RAS_SECONDS = 5.0


def tail(path: Path) -> str:
    """Return the end of a text file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= MOST_BYTES else text.partition("\n")[2]


def written(since: float, *options: str) -> Iterator[tuple[str, str]]:
    """Yield (who wrote it, a line with its time) of the journal since a unix time; nothing where it cannot be read."""
    with contextlib.suppress(journal.JournalError):
        for when, who, text in journal.read([*options, f"--since=@{int(since)}", f"--lines={MOST_LINES}"]):
            time_of_entry = datetime.fromtimestamp(when / 1e6, timezone.utc).isoformat()
            yield from ((who, f"{time_of_entry} {line}") for line in text.splitlines())


def of_unit(job: str, since: float) -> list[dict[str, Any]]:
    """Return what systemd and the agent wrote."""
    entries = list(written(since, f"--unit=torchrun@{job}.service"))
    texts = {
        "unit": "\n".join(line for who, line in entries if who == "systemd"),
        "agent": "\n".join(line for who, line in entries if who != "systemd"),
    }
    return [{"kind": kind, "name": f"journal of the {kind}", "text": text} for kind, text in texts.items() if text]


def of_kernel(since: float) -> list[dict[str, Any]]:
    """Return what the kernel wrote."""
    text = "\n".join(line for _, line in written(since, "--dmesg"))
    return [{"kind": "kernel", "name": "kernel", "text": text}] if text else []


def of_workers(folder: Path, since: float, first_rank: int | None) -> list[dict[str, Any]]:
    """Return what the workers wrote, those of the newest attempt first in the count."""
    files = [path for path in folder.glob("**/*.log") if path.name in ("stderr.log", "stdout.log")]
    files += folder.glob("**/error.json")
    newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_FILES]
    found = []
    for path in newest:
        status = path.stat()
        if status.st_mtime < since or not status.st_size:
            continue
        text = events.message_of(tail(path)) if path.name == "error.json" else tail(path)
        local = path.parent.name
        rank = int(local) + first_rank if local.isdigit() and first_rank is not None else None
        name = str(path.relative_to(folder))
        found.append({"kind": "worker", "name": name, "text": text, "rank": rank, "until": status.st_mtime})
    return found


def of_nccl() -> list[dict[str, Any]]:
    """Return what NCCL tells of the job that runs; nothing where none listens."""
    with contextlib.suppress(OSError), socket.create_connection(RAS, timeout=RAS_SECONDS) as connection:
        connection.sendall(b"verbose status\n")
        text = b""
        while part := connection.recv(65536):
            text += part
        return [{"kind": "nccl", "name": "NCCL RAS", "text": text.decode(errors="replace"), "until": time.time()}]
    return []


def examine(params: dict[str, Any]) -> dict[str, Any]:
    """Return all that is known here."""
    job, run_dir = params["job"], Path(params["shared_path"]) / "runs" / params["job"]
    host = run_folder.read_environment_file(job).get("TORCHRUN_HOST", "")
    found: dict[str, Any] = {"sources": [], "description": {}, "outcome": {}, "report": {}}
    with contextlib.suppress(KeyError, OSError), run_folder.acting_as(params["user"]):
        found["description"], found["outcome"] = run_folder.description_and_outcome(run_dir)
        since = float(found["description"].get("began", 0.0))
        launch = found["description"].get("launch", "")
        found["report"] = run_folder.node_reports(run_dir, launch).get(host, {})
        ranks = found["report"].get("ranks")
        if host:
            found["sources"] += of_workers(run_dir / "logs" / host, since, ranks[0] if ranks else None)
        step = run_folder.last_event(run_dir / "metrics.jsonl", "step")
        if step.get("time", 0.0) > since:
            found["progressed"] = step["time"]
    if not host:
        return {**found, "active": False}
    since = float(found["description"].get("began", time.time() - 24 * 3600))
    found["active"] = run_folder.is_wanted(run_folder.unit_state(job))
    found["sources"] += [*of_unit(job, since), *of_kernel(since), *(of_nccl() if found["active"] else [])]
    return found


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **examine(module.params))


if __name__ == "__main__":
    main()
