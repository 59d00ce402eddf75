"""What a node is made of, found on the node itself. Standard library only."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path


def interface_of(address: str) -> str | None:
    """Return the network interface that owns an address, or None."""
    done = subprocess.run(["ip", "-json", "address", "show"], capture_output=True, text=True, check=False)
    for link in json.loads(done.stdout or "[]"):
        if any(entry.get("local") == address for entry in link.get("addr_info", [])):
            return str(link["ifname"])
    return None


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that the driver shows; 0 without a driver."""
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    return sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))
