#!/usr/bin/python
"""Ansible module: what this host says of itself before a job, and a listener for the others to try."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_facts
short_description: What this host says of itself before a job, and a listener for the others to try
description:
  - Looks at versions, addresses, storage, limits and leftovers. Leaves a token of this host on the shared storage.
  - A process of its own listens for a moment, so that C(preflight_probe) can try every pair of hosts.
options:
  host: {description: Name of this host in the inventory., type: str, required: true}
  address: {description: This host's address on the training network., type: str, required: true}
  names: {description: Names that have to resolve here., type: list, elements: str, required: true}
  peers: {description: How many other hosts there are., type: int, required: true}
  port: {description: Port of the rendezvous to try too., type: int, required: true}
  token: {description: What this host's token is named by., type: str, required: true}
  user: {description: Account that jobs run as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Look at this host
  torchrun.cluster.preflight_facts:
    host: node1
    address: 10.0.0.11
    names: [trn-0000-node1, trn-0001-node2]
    peers: 1
    port: 29400
    token: 1a2b3c
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
report: {description: What was found., type: dict, returned: always}
"""

import contextlib
import pwd
import re
import socket
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder, slots
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import facts, network


def leave_token(shared: Path, host: str, token: str) -> None:
    """Write this host's token, and remove those that it left before."""
    folder = shared / "runs/.preflight"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{host}.*"):
            old.unlink()
        (folder / f"{host}.{token}").touch()


def listener_of(port: int) -> str:
    """Return the name of the program that listens on a port of this host, as far as it can be known."""
    text = facts.output_of("ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header", f"sport = :{port}")
    found = re.search(r'users:\(\("([^"]+)",pid=(\d+)', text)
    return f"{found[1]}, process {found[2]}" if found else ""


def look(params: dict[str, Any]) -> dict[str, Any]:
    """Return the report of this host."""
    running = run_folder.jobs_on_host()
    shared = Path(params["shared_path"])
    report: dict[str, Any] = {"port": params["port"], "busy": sorted(running)}
    report["facts"] = facts.of_node("train", params["names"], list(running))
    try:
        with run_folder.acting_as(params["user"]):
            report["storage"] = facts.storage(shared)
            report["mesh"] = facts.mesh(Path(pwd.getpwnam(params["user"]).pw_dir))
            leave_token(shared, params["host"], params["token"])
    except KeyError:
        report["storage"] = {**facts.storage(shared), "writable": False, "problem": f"no account {params['user']}"}
    report["own_port"] = any(slots.port_of(variables) == str(params["port"]) for variables in running.values())
    try:
        report["listen"] = network.listen(params["address"], params["port"], params["host"], params["peers"])
    except OSError:  # not an address of this host: its interfaces tell
        report["listen"] = {"ports": [], "busy": ""}
    with contextlib.suppress(OSError), socket.create_server((params["address"], 0)) as free:
        report["free_port"] = free.getsockname()[1]
    if report["listen"]["busy"]:
        report["listener"] = listener_of(params["port"])
    return report


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "peers": {"type": "int", "required": True},
            "port": {"type": "int", "required": True},
            "token": {"type": "str", "required": True, "no_log": False},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, report=look(module.params))


if __name__ == "__main__":
    main()
