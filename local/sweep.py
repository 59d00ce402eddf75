"""Remove this scenario's containers that do not run: local/sweep.py PREFIX. Prints the names of those that run.

A run that was ended from outside leaves containers whose processes are gone, though podman may still call them running.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PODMAN = str(Path(__file__).with_name("podman"))


def containers(prefix: str) -> list[dict[str, Any]]:
    """Return podman's containers whose names begin with the prefix."""
    done = subprocess.run(
        [PODMAN, "ps", "--all", "--sync", "--format=json"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"podman cannot list its containers ({done.stderr.strip().splitlines()[-1]}): run ./demo down --all.")
    return [entry for entry in json.loads(done.stdout or "[]") if entry["Names"][0].startswith(prefix)]


def runs(container: dict[str, Any]) -> bool:
    """Tell whether the container's first process is there."""
    return container["State"] == "running" and Path(f"/proc/{container['Pid']}").exists()


def main() -> None:
    """Sweep, then print the names of the containers that stay."""
    found = containers(sys.argv[1])
    dead = [entry["Names"][0] for entry in found if not runs(entry)]
    if dead:
        subprocess.run([PODMAN, "rm", "--force", "--time=0", *dead], check=True, capture_output=True)
    for entry in found:
        if entry["Names"][0] not in dead:
            print(entry["Names"][0])  # noqa: T201 (read by up.yml)


if __name__ == "__main__":
    main()
