#!/usr/bin/python
"""Ansible module: find out in one call whether this host can run a job."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_preflight
short_description: Find out in one call whether this host can run a job
description:
  - Changes nothing. Fails with one sentence where the host is not provisioned or something is in the way.
  - Returns what the launch must know of the host.
options:
  job: {description: Name of the job., type: str, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
  host: {description: Name of this host in the inventory., type: str, required: true}
  address: {description: This host's address on the training network., type: str, required: true}
  aliases: {description: "Address of each member, by its alias.", type: dict, required: true}
  master_port:
    description: Port of the rendezvous on the host of node_rank 0; without it the first free one from 29400 on.
    type: int
  is_master: {description: Whether this is the host of node_rank 0., type: bool, required: true}
  thorough:
    description: Also look at all that C(preflight.yml) looks at, and listen for C(job_start) of the other members.
    type: bool
    default: true
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Find out whether this host can run the job
  torchrun.cluster.job_preflight:
    job: train
    host: node1
    user: trainer
    shared_path: /srv/torchrun
    address: 10.0.0.11
    aliases: {trn-0000-node1: 10.0.0.11, trn-0001-node2: 10.0.0.12}
    master_port: 29400
    is_master: true
"""

RETURN = r"""
report:
  description: What the launch must know of this host.
  type: dict
  returned: always
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import node, run_folder, slots
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import facts, network

UNIT = Path("/etc/systemd/system/torchrun@.service")
VENV = Path("/opt/torchrun/venv")
TRAINER = Path("/opt/torchrun/trainer/current")
# torchrun's own default first. Few enough that a host where none can be bound says so soon.
PORTS = range(29400, 29900)


class PreflightError(Exception):
    """Something is in the way; the message is one sentence."""


def check_provisioned() -> None:
    """Raise where site.yml has not done its work here."""
    for path, what in (
        (UNIT, "the torchrun unit"),
        (VENV / "bin/python", "the PyTorch venv"),
        (TRAINER, "the trainer"),
    ):
        if not path.exists():
            raise PreflightError(f"{path} ({what}) is not on this host: run `ansible-playbook site.yml` first.")


def check_aliases(aliases: dict[str, str]) -> None:
    """Raise where an alias does not resolve to its member's address: ranks would not follow node_rank."""
    for alias, address in sorted(aliases.items()):
        try:
            found = {entry[4][0] for entry in socket.getaddrinfo(alias, None)}
        except OSError:
            found = set()
        if address not in found:
            told = f"resolves to {', '.join(sorted(map(str, found)))}" if found else "does not resolve"
            raise PreflightError(
                f"The alias {alias} {told} on this host, and the inventory says {address}: "
                "run `ansible-playbook site.yml`, which writes /etc/hosts."
            )


def check_storage(shared_path: Path, user: str) -> None:
    """Raise where the job's account cannot write run folders."""
    runs = shared_path / "runs"
    with run_folder.acting_as(user):
        usable = os.access(runs, os.W_OK | os.X_OK, effective_ids=True)
    if not usable:
        raise PreflightError(
            f"{user} cannot write to {runs} on this host: mount the shared storage, then run "
            "`ansible-playbook site.yml`."
        )


def check_port(address: str, port: int, others: dict[str, dict[str, str]]) -> None:
    """Raise where the rendezvous port is taken, naming the job that has it if it is one of ours."""
    for name, variables in others.items():
        if slots.port_of(variables) == str(port):
            raise PreflightError(
                f"The job {name} has its rendezvous on port {port} of this host: give this one another master_port."
            )
    try:
        bind(address, port)
    except OSError as error:
        raise PreflightError(
            f"Port {port} of {address} cannot be used ({error.strerror}): something else listens there. "
            f"Find it with `ss -ltnp 'sport = :{port}'`, or give another master_port."
        ) from error


def bind(address: str, port: int) -> None:
    """Take a port for a moment; raises OSError where it is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the store does: connections that linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))


def free_port(address: str, others: dict[str, dict[str, str]]) -> int:
    """Return the first port for a rendezvous that no other job has and that can be bound."""
    taken = {slots.port_of(variables) for variables in others.values()}
    for port in PORTS:
        if str(port) not in taken:
            with contextlib.suppress(OSError):
                bind(address, port)
                return port
    raise PreflightError(
        f"No port from {PORTS[0]} to {PORTS[-1]} of {address} is free for the rendezvous: give a master_port."
    )


def examine(params: dict[str, Any]) -> dict[str, Any]:
    """Run every check; return the report."""
    job, shared_path = params["job"], Path(params["shared_path"])
    check_provisioned()
    interface = node.interface_of(params["address"])
    if interface is None:
        raise PreflightError(
            f"No interface of this host has the address {params['address']}: correct its cluster_addr in the inventory."
        )
    check_aliases(params["aliases"])
    check_storage(shared_path, params["user"])
    running = run_folder.jobs_on_host()
    others = {name: variables for name, variables in running.items() if name != job}
    port = params["master_port"]
    if params["is_master"] and job in running:
        port = port or int(slots.port_of(running[job]) or 0)
    elif params["is_master"] and port:
        check_port(params["address"], port, others)
    elif params["is_master"]:
        port = free_port(params["address"], others)
    with run_folder.acting_as(params["user"]):
        described = run_folder.read_json(shared_path / "runs" / job / "job.yml")
    examined = examination(params, running) if params["thorough"] else None
    return {
        "interface": interface,
        # Asking the driver takes long: what the examination has asked is not asked again.
        "gpus": (len(examined["facts"]["gpus"]) if examined else 0) or node.count_gpus(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": str(VENV.resolve() / "bin/python"),
        "trainer_path": str(TRAINER.resolve()),
        "running_launch": running.get(job, {}).get("TORCHRUN_LAUNCH", ""),
        "description": described,
        "master_port": port,
        "examination": examined,
        "others": {
            name: {"slots": int(variables["PET_NPROC_PER_NODE"]), "gpus": variables.get("CUDA_VISIBLE_DEVICES")}
            for name, variables in others.items()
            if "PET_NPROC_PER_NODE" in variables
        },
    }


def examination(params: dict[str, Any], running: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return what the controller judges."""
    peers, host = len(params["aliases"]) - 1, params["host"]
    with run_folder.acting_as(params["user"]):
        storage = facts.storage(Path(params["shared_path"]))
    listens = peers and not params["check"] and params["job"] not in running
    return {
        "facts": facts.of_node(params["job"], list(params["aliases"]), list(running)),
        "storage": storage,
        "busy": sorted(running),
        "ports": network.listen(params["address"], 0, host, peers)["ports"] if listens else [],
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
            "address": {"type": "str", "required": True},
            "aliases": {"type": "dict", "required": True},
            "master_port": {"type": "int"},
            "is_master": {"type": "bool", "required": True},
            "host": {"type": "str", "required": True},
            "thorough": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        report = examine({**module.params, "check": module.check_mode})
    except PreflightError as error:
        module.fail_json(msg=str(error))
    except KeyError:
        module.fail_json(
            msg=f"The account {module.params['user']} is not on this host: run `ansible-playbook site.yml` first."
        )
    module.exit_json(changed=False, report=report)


if __name__ == "__main__":
    main()
