#!/usr/bin/python
"""Ansible module: this host's part of a test of collective operations."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_collective
short_description: This host's part of a test of collective operations
description:
  - Starts this host's ranks of C(collective.py) as the account of jobs, and waits for them. All hosts have to do so at
    the same time. Changes nothing but, on the host of rank 0, the record of earlier results.
options:
  user: {description: Account that jobs run as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
  hosts: {description: "All hosts, in node_rank order.", type: list, elements: str, required: true}
  processes: {description: Processes of each host., type: list, elements: int, required: true}
  host: {description: Name of this host in the inventory., type: str, required: true}
  address: {description: This host's address on the training network., type: str, required: true}
  master_addr: {description: That of the host of rank 0., type: str, required: true}
  master_port: {description: A port of it that is free., type: int, required: true}
  pairs: {description: Measure each pair of hosts too., type: bool, default: false}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Test collective operations
  torchrun.cluster.preflight_collective:
    user: trainer
    shared_path: /srv/torchrun
    hosts: [node1, node2]
    processes: [2, 1]
    host: node1
    address: 10.0.0.11
    master_addr: 10.0.0.11
    master_port: 40123
"""

RETURN = r"""
ranks: {description: "By rank what C(collective.py) printed, or C(problem).", type: dict, returned: always}
earlier: {description: The newest earlier result of the same hosts., type: dict, returned: where there is one}
"""

import json
import os
import pwd
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import node, run_folder

PROGRAM = "/opt/torchrun/libexec/collective.py"
PYTHON = "/opt/torchrun/venv/bin/python"
# Of the ranks together; a collective operation alone has 60 s.
MOST_SECONDS = 170.0


def environment_of(params: dict[str, Any], rank: int, local_rank: int) -> dict[str, str]:
    """Return the environment of a rank; as train.yml makes it, where it counts here."""
    interface = node.interface_of(params["address"]) or ""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(sum(params["processes"])),
        "MASTER_ADDR": params["master_addr"],
        "MASTER_PORT": str(params["master_port"]),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "OMP_NUM_THREADS": "1",
    }


def run(params: dict[str, Any]) -> dict[str, Any]:
    """Start this host's ranks and return by rank what they printed."""
    place = params["hosts"].index(params["host"])
    firsts = [sum(params["processes"][:index]) for index in range(len(params["hosts"]))]
    account = pwd.getpwnam(params["user"])
    words = [PYTHON, PROGRAM, *([json.dumps(firsts)] if params["pairs"] else [])]
    started = {
        firsts[place] + local: subprocess.Popen(
            words,
            env=environment_of(params, firsts[place] + local, local),
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=account.pw_uid if os.geteuid() == 0 else None,
            group=account.pw_gid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
        for local in range(params["processes"][place])
    }
    deadline, found = time.monotonic() + MOST_SECONDS, {}
    for rank, process in started.items():
        try:
            output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[str(rank)] = {"problem": "it did not end in time"}
            continue
        if process.returncode == 0:
            found[str(rank)] = json.loads(output.splitlines()[-1])
        else:
            said = [line.strip() for line in errors.splitlines() if line.strip()]
            found[str(rank)] = {"problem": said[-1] if said else f"it exited with {process.returncode}"}
    return found


def record(params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any] | None:
    """Keep what rank 0 measured, and return the newest earlier result of the same hosts."""
    path = Path(params["shared_path"]) / "runs/.preflight/collectives.jsonl"
    key = [params["hosts"], params["processes"]]
    with run_folder.acting_as(params["user"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        earlier = [entry for entry in map(json.loads, lines) if [entry["hosts"], entry["processes"]] == key]
        with path.open("a") as file:
            entry = {"time": time.time(), "hosts": key[0], "processes": key[1], "sizes": result["sizes"]}
            file.write(json.dumps(entry) + "\n")
    return earlier[-1] if earlier else None


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
            "hosts": {"type": "list", "elements": "str", "required": True},
            "processes": {"type": "list", "elements": "int", "required": True},
            "host": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "master_addr": {"type": "str", "required": True},
            "master_port": {"type": "int", "required": True},
            "pairs": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        found = run(module.params)
        result: dict[str, Any] = {"ranks": found}
        if "0" in found and "sizes" in found["0"]:
            earlier = record(module.params, found["0"])
            result |= {"earlier": earlier} if earlier else {}
    except (OSError, KeyError, ValueError) as error:
        module.fail_json(msg=f"The test of collective operations cannot be run on this host ({error}): run site.yml.")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
