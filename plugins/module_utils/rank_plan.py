"""The rank plan: which host gets which ranks. Pure; the only place where ranks are decided.

Everything is derived from the inventory, so neither `--limit` nor a host that is down changes it. GPUs are the one
thing that is counted on the hosts: a plan made before that leaves `nproc_per_node: auto` open.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class PlanError(ValueError):
    """The plan is refused; the message is one sentence that names the host and the variable."""


@dataclass(frozen=True)
class Host:
    """A host as the inventory describes it. `gpus` is None until they were counted."""

    name: str
    address: str
    node_rank: Any = None
    nproc_per_node: Any = "auto"
    gpus: int | None = None


@dataclass(frozen=True)
class Node:
    """A host with its place. `alias` orders nodes as c10d does, by string: zero-padded node_rank first."""

    name: str
    alias: str
    address: str
    node_rank: int
    nproc_per_node: int | None  # None: auto, and the GPUs are not counted yet


@dataclass(frozen=True)
class Plan:
    """The members in node_rank order, and their ranks.

    `first_ranks[i]` is the rank of member i's first process. For an elastic plan (min_nodes < max_nodes) ranks and
    world sizes are those of the full size and of the smallest that the first nodes or any others may reach.
    """

    members: list[Node]
    min_nodes: int
    max_nodes: int

    @property
    def master(self) -> Node:
        """The member of node_rank 0, which hosts the rendezvous."""
        return self.members[0]

    @property
    def processes(self) -> list[int]:
        """Number of processes of each member."""
        return [int(node.nproc_per_node or 0) for node in self.members]

    @property
    def first_ranks(self) -> list[int]:
        """Rank of each member's first process."""
        return [sum(self.processes[:index]) for index in range(len(self.members))]

    @property
    def world_size(self) -> str:
        """torchrun's notation: `N`, or `MIN:MAX` for an elastic plan."""
        largest = sum(self.processes)
        if self.min_nodes == self.max_nodes:
            return str(largest)
        return f"{sum(sorted(self.processes)[: self.min_nodes])}:{largest}"

    @property
    def nnodes(self) -> str:
        """torchrun's notation: `N` or `MIN:MAX`."""
        return str(self.min_nodes) if self.min_nodes == self.max_nodes else f"{self.min_nodes}:{self.max_nodes}"


def alias_of(node_rank: int, name: str) -> str:
    """Return the alias of a host: a valid host name whose string order is the order of node_rank."""
    return f"trn-{node_rank:04d}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'node'}"[:63].rstrip("-")


def parse_nnodes(value: Any, available: int) -> tuple[int, int]:
    """Return (min, max) of `N` or `MIN:MAX`; raise PlanError where it is no such thing or more than `available`."""
    text = str(value).strip()
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match or isinstance(value, bool):
        raise PlanError(f"nnodes is `{text}`: give a number of nodes, or MIN:MAX for an elastic job.")
    smallest = int(match[1])
    largest = int(match[2] or match[1])
    if smallest < 1:
        raise PlanError(f"nnodes is `{text}`: a job needs at least 1 node.")
    if smallest > largest:
        raise PlanError(f"nnodes is `{text}`: MIN is above MAX.")
    if largest > available:
        raise PlanError(
            f"nnodes is `{text}`, but the inventory has {available} "
            f"{'host' if available == 1 else 'hosts'} in the group nodes: give at most {available}, or add hosts."
        )
    return smallest, largest


def whole_number(value: Any) -> int | None:
    """Return an int, also from a string of digits (as -e gives it); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()) else None


def processes_on(host: Host, override: Any = None) -> int | None:
    """Return the number of processes on a host, or None for `auto` while its GPUs are not counted."""
    value = host.nproc_per_node if override is None else override
    if value is None or value == "auto":
        return None if host.gpus is None else max(1, host.gpus)
    number = whole_number(value)
    if number is None or number < 1:
        raise PlanError(f"nproc_per_node of {host.name} is `{value}`: give auto, or a whole number from 1.")
    if host.gpus and number > host.gpus:
        raise PlanError(
            f"nproc_per_node of {host.name} is {number}, but it has {host.gpus} "
            f"GPU{'s' if host.gpus > 1 else ''}: give at most {host.gpus}, or auto."
        )
    return number


def node_ranks(hosts: Sequence[Host]) -> list[int]:
    """Return each host's node_rank: its own, or the free places in inventory order for those that have none."""
    taken: dict[int, str] = {}
    for host in hosts:
        if host.node_rank is None:
            continue
        rank = whole_number(host.node_rank)
        if rank is None or not 0 <= rank < len(hosts):
            raise PlanError(
                f"node_rank of {host.name} is `{host.node_rank}`: with {len(hosts)} hosts, "
                f"give a whole number from 0 to {len(hosts) - 1}."
            )
        if rank in taken:
            raise PlanError(f"node_rank of {host.name} is {rank}, which {taken[rank]} has already: give each its own.")
        taken[rank] = host.name
    free = iter(rank for rank in range(len(hosts)) if rank not in taken)
    return [next(free) if host.node_rank is None else int(whole_number(host.node_rank) or 0) for host in hosts]


def is_address(text: str) -> bool:
    """Tell whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Tell whether an address reaches only the host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower().rstrip(".") in ("localhost", "localhost.localdomain")


def check_addresses(hosts: Sequence[Host]) -> None:
    """Raise PlanError where a host has no address, an address of another, or one that its peers cannot reach."""
    seen: dict[str, str] = {}
    for host in hosts:
        if not host.address:
            raise PlanError(f"{host.name} has no address: set its cluster_addr or ansible_host.")
        if len(hosts) > 1 and is_loopback(host.address):
            raise PlanError(
                f"cluster_addr of {host.name} is {host.address}, which its peers cannot reach: "
                "give its address on the training network."
            )
        if host.address in seen:
            raise PlanError(
                f"cluster_addr of {host.name} is {host.address}, which {seen[host.address]} has already: "
                "give each host its own."
            )
        seen[host.address] = host.name


def place(hosts: Sequence[Host], nproc_per_node: Any = None) -> list[Node]:
    """Return all hosts in node_rank order, with aliases. Raises PlanError for whatever contradicts itself.

    `hosts` are in inventory order; `nproc_per_node` overrides that of every host.
    """
    if not hosts:
        raise PlanError("The group nodes of the inventory has no hosts: add at least one.")
    ranks = node_ranks(hosts)
    check_addresses(hosts)
    nodes = [
        Node(host.name, alias_of(rank, host.name), host.address, rank, processes_on(host, nproc_per_node))
        for host, rank in zip(hosts, ranks)
    ]
    return sorted(nodes, key=lambda node: node.node_rank)


def plan(hosts: Sequence[Host], nnodes: Any = None, nproc_per_node: Any = None) -> Plan:
    """Return the plan of a job on the first `nnodes` hosts by node_rank (all of them when None)."""
    nodes = place(hosts, nproc_per_node)
    smallest, largest = parse_nnodes(len(nodes) if nnodes is None else nnodes, len(nodes))
    return Plan(nodes[:largest], smallest, largest)


def as_dict(node: Node) -> dict[str, Any]:
    """Return a node as the fact `cluster` holds it; processes that are not counted yet are `auto`."""
    nproc = "auto" if node.nproc_per_node is None else node.nproc_per_node
    return {
        "name": node.name,
        "alias": node.alias,
        "address": node.address,
        "node_rank": node.node_rank,
        "nproc_per_node": nproc,
    }


def from_inventory(name: str, variables: Mapping[str, Any], gpus: int | None = None) -> Host:
    """Return a host from its inventory variables: cluster_addr defaults to ansible_host, and that to the name."""
    variable = next((given for given in ("cluster_addr", "ansible_host") if variables.get(given)), None)
    address = str(variables[variable] if variable else name)
    if not is_address(address):
        raise PlanError(
            f"{name} has the {variable or 'name'} `{address}`, which is no IP address: nodes find each other by "
            "address, so give cluster_addr its address on the training network."
        )
    return Host(name, address, variables.get("node_rank"), variables.get("nproc_per_node", "auto"), gpus)
