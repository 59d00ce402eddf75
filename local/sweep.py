"""Clear what stands in the way of a scenario's nodes: local/sweep.py WANTED. Prints the containers that can stay.

WANTED is JSON: {"network": name, "subnet": CIDR, "bridge": interface, "image": name, "containers": {name: address}}.

A run that was ended from outside leaves containers whose processes are gone though podman may still call them running,
or, when podman's own state is gone, processes that podman no longer knows. Both are removed, and so are containers
that the inventory no longer describes; one that was stopped is started again.
A subnet that something else on this machine uses is refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PODMAN = str(HERE / "podman")
sys.path.insert(0, str(HERE.parent / "plugins" / "module_utils"))

import local_nodes  # noqa: E402 (found beside the plugins, without Ansible)


def podman(*words: str) -> str:
    """Return what podman prints; exits with a sentence when it fails."""
    done = subprocess.run([PODMAN, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        sys.exit(f"podman {words[0]} does not work ({said}): run ./demo down --all, then this again.")
    return done.stdout


def containers(prefix: str) -> dict[str, dict[str, Any]]:
    """Return what podman knows of its containers whose names begin with the prefix, by name."""
    names = [name for name in podman("ps", "--all", "--format={{.Names}}").split() if name.startswith(prefix)]
    return {entry["Name"]: entry for entry in json.loads(podman("inspect", *names))} if names else {}


def belongs_to(pid: int, identifier: str) -> bool:
    """Tell whether a process is one of the container's: a pid alone may have been given to another since."""
    try:
        return identifier in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def runs(container: dict[str, Any]) -> bool:
    """Tell whether the container's first process is there."""
    state = container["State"]
    return bool(state["Running"] and belongs_to(state["Pid"], container["Id"]))


def is_wanted(container: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Tell whether the inventory still describes the container: its name, its address, its image."""
    networks = container["NetworkSettings"].get("Networks") or {}
    address = (networks.get(wanted["network"]) or {}).get("IPAddress")
    if address is None or wanted["containers"].get(container["Name"]) != address:
        return False
    return bool(container["ImageName"] == wanted["image"])


def start_stopped(found: dict[str, dict[str, Any]], wanted: set[str]) -> bool:
    """Start the wanted containers that were stopped; tell whether there were any."""
    stopped = [name for name in found if name in wanted and found[name]["State"]["Status"] in ("exited", "stopped")]
    for name in stopped:
        subprocess.run([PODMAN, "start", name], capture_output=True, check=False)
    return bool(stopped)


def command_line(pid: Path) -> list[str]:
    """Return a process's arguments, none when it has ended."""
    try:
        return (pid / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found: list[int] = []
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [int(word) for word in tasks.read_text().split()]
    return found


def end_unknown(prefix: str, known: set[str]) -> None:
    """End the containers of this scenario that podman no longer knows: their monitors, and what these watch."""
    ended: list[int] = []
    for pid in Path("/proc").glob("[0-9]*"):
        words = command_line(pid)
        if not words or Path(words[0]).name != "conmon" or not any(word.startswith(prefix) for word in words):
            continue
        if known.isdisjoint(words):
            ended += [int(pid.name), *children(int(pid.name))]
    for number in ended:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{number}").exists() for number in ended) and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    """Sweep, then print the names of the containers that stay."""
    wanted = json.loads(sys.argv[1])
    done = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True)
    other = local_nodes.user_of(wanted["subnet"], json.loads(done.stdout), wanted["bridge"])
    if other:
        taken = f"The subnet {wanted['subnet']} of the local nodes is in use on this machine by {other}"
        sys.exit(f"{taken}: set network in local_nodes.yml of the inventory to a free one.")
    prefix = f"{wanted['network']}-"
    found = containers(prefix)
    # A node that was stopped is started: it has what was installed on it. Its address it has only then.
    if start_stopped(found, set(wanted["containers"])):
        found = containers(prefix)
    staying = {name for name, entry in found.items() if runs(entry) and is_wanted(entry, wanted)}
    end_unknown(prefix, {found[name]["Id"] for name in found if runs(found[name])})
    if set(found) - staying:
        podman("rm", "--force", "--time=0", *sorted(set(found) - staying))
    print("\n".join(sorted(staying)))  # noqa: T201 (read by up.yml)


if __name__ == "__main__":
    main()
