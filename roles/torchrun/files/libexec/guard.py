"""Runs in every worker, after the rendezvous and before any code of the user.

c10d leaves out a node that it takes for dead, also while all meet: the others would run without it, a node alone with
WORLD_SIZE 1 and exit status 0.
So the world is compared with the one that was planned, and a smaller one is refused. Then this process becomes the
user's program.
"""

from __future__ import annotations

import ctypes
import os
import sys

import run_state

# Of prctl(2), from linux/prctl.h.
PR_SET_PTRACER = 0x59616D61


def complaint(environment: dict[str, str]) -> str | None:
    """Return what is wrong with the world that torchrun made, or None.

    `TORCHRUN_WORLD_SIZE` is the planned number of ranks: `N`, or `MIN:MAX` for an elastic job, whose group ranks may
    differ from node_rank while a node is missing.
    """
    planned = environment["TORCHRUN_WORLD_SIZE"]
    smallest, _, largest = planned.partition(":")
    world_size = int(environment["WORLD_SIZE"])
    if not int(smallest) <= world_size <= int(largest or smallest):
        return (
            f"WORLD_SIZE is {world_size}, but the job was planned with {planned} ranks: some nodes met without the "
            "others, which gave no sign of life for 15 s. See with playbooks/preflight.yml that all nodes reach one "
            "another, then launch again."
        )
    node_rank, group_rank = environment["TORCHRUN_NODE_RANK"], environment["GROUP_RANK"]
    if not largest and group_rank != node_rank:
        return (
            f"GROUP_RANK is {group_rank} on the host whose node_rank is {node_rank}: the aliases in /etc/hosts differ "
            "from the inventory. Run site.yml, then launch again."
        )
    return None


def let_agent_look_inside() -> None:
    """Allow the agent and what it starts to read this process's stack, also where Yama forbids it by default."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(PR_SET_PTRACER, os.getppid(), 0, 0, 0)


def main() -> None:
    """Check the world, report the ranks of this host, and become the program given as arguments."""
    environment = dict(os.environ)
    problem = complaint(environment)
    if problem:
        print(f"torchrun guard: {problem}", file=sys.stderr, flush=True)  # noqa: T201 (goes to the journal)
        sys.exit(run_state.EXIT_FAILED)
    if environment["LOCAL_RANK"] == "0":
        first = int(environment["RANK"])
        run_state.report(
            "running",
            ranks=[first, first + int(environment["LOCAL_WORLD_SIZE"]) - 1],
            world_size=int(environment["WORLD_SIZE"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
    let_agent_look_inside()
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])  # noqa: S606 (this process becomes the worker)


if __name__ == "__main__":
    main()
