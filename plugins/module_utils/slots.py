"""Processes, GPUs and ports of a host that jobs hold: one job each. Pure; runs on the node."""

from __future__ import annotations

from collections.abc import Mapping


def port_of(environment: Mapping[str, str]) -> str:
    """Return the port of a job's rendezvous."""
    return environment.get("PET_RDZV_ENDPOINT", "").rpartition(":")[2] or environment.get("PET_MASTER_PORT", "")


def gpus_of(environment: Mapping[str, str]) -> set[str]:
    """Return the GPUs that a job was given; empty where it was given no choice of them."""
    return set(filter(None, environment.get("CUDA_VISIBLE_DEVICES", "").split(",")))


def conflict(
    wanted: Mapping[str, str], others: Mapping[str, Mapping[str, str]], slots: int, is_master: bool
) -> str | None:
    """Return a sentence when a job cannot start beside the others of its host, or None.

    Environments are those of the jobs' agents; `slots` is how many processes the host takes.
    """
    used_by_all = sum(int(each.get("PET_NPROC_PER_NODE", "0")) for each in (wanted, *others.values()))
    for name, other in others.items():
        used = int(other.get("PET_NPROC_PER_NODE", "0"))
        shared = gpus_of(wanted) & gpus_of(other)
        if used_by_all > slots or shared:
            what = f"GPU {', '.join(sorted(shared))}" if shared else f"{used} of the {slots} slots"
            return (
                f"The job {name} has just taken {what} of this host: stop it with "
                f"`ansible-playbook playbooks/stop.yml -e job={name}`, or launch on other hosts."
            )
        if is_master and port_of(wanted) and port_of(wanted) == port_of(other):
            return (
                f"The job {name} has just taken port {port_of(wanted)} of this host for its rendezvous: give this one "
                "another master_port."
            )
    return None
