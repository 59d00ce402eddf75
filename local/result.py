"""Show what the demo's training job came to: local/result.py. Reads the local nodes' shared storage."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "plugins" / "module_utils"))

import local_nodes  # noqa: E402 (found beside the plugins, without Ansible)


def run_folder(inventory: Path, job: str) -> Path:
    """Return where the job's folder is on this machine."""
    variables = local_nodes.plan(yaml.safe_load(inventory.read_text()), str(CHECKOUT))["all"]
    return Path(variables["local_nodes_state"], "shared", "runs", job)


def last_launch(lines: list[str]) -> dict[str, dict[str, Any]]:
    """Return the first event of the last launch, its first and last step, its end: start, first, step, end.

    Lines that are cut off are passed over; what the launch has not written is absent.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        kind = event.get("event")
        if kind == "start":
            found = {"start": event}
        elif kind == "step":
            found.setdefault("first", event)
            found["step"] = event
        elif kind == "end":
            found["end"] = event
    return found


def hosts(folder: Path) -> list[str]:
    """Return the hosts that have reported in the job's folder."""
    return sorted(path.stem for path in folder.glob("nodes/*.json"))


def summary(events: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """Return the lines that end the demo."""
    start, end = events["start"], events["end"]
    loss = f"{end['loss']:.3f}"
    if "first" in events:
        loss += f" after step {end['step']}, from {events['first']['loss']:.3f} at step {events['first']['step']}"
    if start.get("unigram_entropy"):
        loss += f" (a model that knows byte frequencies only: {start['unigram_entropy']:.3f})"
    return [
        "",
        f"  World size    {start['world_size']} on {', '.join(hosts(folder))}",
        f"  Final loss    {loss}",
        f"  Speed         {end['samples_per_s']:.1f} samples/s",
        "",
        f"  Report        {folder}/report.html",
        f"  Logs          {folder}/logs/",
        f"  Checkpoints   {folder}/checkpoints/",
        "",
        "  Look further  .venv/bin/ansible-playbook playbooks/status.yml    (or playbooks/logs.yml)",
        '                .venv/bin/ansible node1 -a "systemctl status torchrun@train"',
        "  Train again   .venv/bin/ansible-playbook train.yml -e nnodes=2 -e job=second",
        "  Remove it     ./demo down",
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--job", default="train", help="the job's name")
    parser.add_argument("--inventory", type=Path, default=CHECKOUT / "inventory" / "local" / "local_nodes.yml")
    arguments = parser.parse_args()
    try:
        folder = run_folder(arguments.inventory, arguments.job)
        events = last_launch((folder / "metrics.jsonl").read_text().splitlines())
    except (OSError, yaml.YAMLError, local_nodes.LocalNodesError) as error:
        sys.exit(f"The result of the job {arguments.job} cannot be read ({error}): see playbooks/status.yml.")
    if events.get("end", {}).get("status") != "finished" or "start" not in events:
        sys.exit(f"The job {arguments.job} has not finished: see playbooks/status.yml and {folder}/logs.")
    print("\n".join(summary(events, folder)))  # noqa: T201 (the result)


if __name__ == "__main__":
    main()
