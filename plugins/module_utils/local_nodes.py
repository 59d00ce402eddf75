"""Names, addresses and paths of local nodes, computed from the checkout's path and the scenario's name. Pure functions.

Nothing is stored: two checkouts on one machine, or two scenarios of one checkout, get different ones by their digest.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

STATE_ROOT = "/var/lib/ansible-torchrun"
SHARED_PATH = "/srv/torchrun"
USER = "admin"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
KEYS = {"plugin", "scenario", "nodes", "count", "base_image", "network", "outsiders"}
NODE_KEYS = {"name", "nproc_per_node"}


class LocalNodesError(ValueError):
    """The file that describes the nodes is wrong; the message is one sentence."""


def digest(checkout: str, scenario: str = "") -> str:
    """Return eight hexadecimal digits that stand for a checkout, or for one of its scenarios."""
    return hashlib.sha256(f"{checkout}\n{scenario}".encode()).hexdigest()[:8]


def subnet_for(checkout: str, scenario: str, network: str) -> ipaddress.IPv4Network:
    """Return the subnet: the one that `network` gives, or for `auto` a /24 within 10.64.0.0/10 from the digest."""
    if network == "auto":
        number = int(digest(checkout, scenario), 16) % (64 * 256)
        return ipaddress.IPv4Network((0x0A400000 + number * 256, 24))
    try:
        subnet = ipaddress.IPv4Network(network)
    except ValueError as error:
        raise LocalNodesError(f"network is `{network}`, which is neither auto nor an IPv4 subnet ({error}).") from error
    if subnet.prefixlen > 24:
        raise LocalNodesError(f"network is `{network}`: give a /24 or larger.")
    return subnet


def user_of(subnet: str, routes: Sequence[Mapping[str, Any]], bridge: str) -> str:
    """Return the interface whose route overlaps the subnet, '' when it is free; `routes` are those of `ip -json route`.

    The default route overlaps everything and counts for nothing, and neither does the nodes' own bridge.
    """
    wanted = ipaddress.IPv4Network(subnet)
    for route in routes:
        if route.get("dst", "default") == "default" or route.get("dev") == bridge:
            continue
        if wanted.overlaps(ipaddress.IPv4Network(route["dst"], strict=False)):
            return str(route.get("dev", route["dst"]))
    return ""


def _checked_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise LocalNodesError(f"{where} `{name}` is no name: use up to 40 lower-case letters, digits and hyphens.")
    return name


def _checked_node(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise LocalNodesError(f"the node `{entry}` has no name: write {{name: node1, nproc_per_node: 1}}.")
    name = _checked_name(entry["name"], "the node name")
    unknown = sorted(str(key) for key in set(entry) - NODE_KEYS)
    if unknown:
        raise LocalNodesError(f"the node {name} has the unknown key {unknown[0]}: use name and nproc_per_node.")
    nproc = entry.get("nproc_per_node", 1)
    if not isinstance(nproc, int) or isinstance(nproc, bool) or nproc < 1:
        raise LocalNodesError(f"nproc_per_node of {name} is `{nproc}`: give a whole number from 1.")
    return {"name": name, "nproc_per_node": nproc}


def checked(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description with every default filled in: scenario, nodes, outsiders, base_image, network.

    Raises LocalNodesError for anything that is unknown or of the wrong type.
    """
    if not isinstance(description, Mapping):
        raise LocalNodesError(f"there are no keys: use {', '.join(sorted(KEYS))}.")
    unknown = sorted(str(key) for key in set(description) - KEYS)
    if unknown:
        raise LocalNodesError(f"the key {unknown[0]} is unknown: use {', '.join(sorted(KEYS))}.")
    if "nodes" in description and "count" in description:
        raise LocalNodesError("nodes and count exclude one another: keep one.")
    entries = description.get("nodes")
    if "count" in description:
        count = description["count"]
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 200:
            raise LocalNodesError(f"count is `{count}`: give a whole number from 1 to 200.")
        entries = [{"name": f"node{number}"} for number in range(1, count + 1)]
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise LocalNodesError("there are no nodes: give a list nodes, or a count.")
    nodes = [_checked_node(entry) for entry in entries]
    outsiders = description.get("outsiders") or []
    if not isinstance(outsiders, list):
        raise LocalNodesError(f"outsiders is `{outsiders}`: give a list of names.")
    outsiders = [_checked_name(name, "the outsider") for name in outsiders]
    base_image = description.get("base_image") or ""
    if not isinstance(base_image, str):
        raise LocalNodesError(f"base_image is `{base_image}`: give the name of one image, such as debian:12.")
    names = [node["name"] for node in nodes] + outsiders
    for name in names:
        if names.count(name) > 1:
            raise LocalNodesError(f"the name {name} is given twice.")
    if len(names) > 200:
        raise LocalNodesError(f"there are {len(names)} nodes: 200 fit in the subnet.")
    return {
        "scenario": _checked_name(description.get("scenario", "default"), "the scenario"),
        "nodes": nodes,
        "outsiders": outsiders,
        "base_image": base_image,
        "network": description.get("network") or "auto",
    }


def plan(description: Mapping[str, Any], checkout: str, owner: int = 0) -> dict[str, Any]:
    """Return the variables of all hosts (`all`) and of each (`hosts`: name to variables), as Ansible reads them.

    `owner` is the uid that the checkout belongs to. Jobs run with it, so that this person can read what they write; not
    with root's or another system account's.
    """
    wanted = checked(description)
    scenario = wanted["scenario"]
    identity = digest(checkout, scenario)
    subnet = subnet_for(checkout, scenario, wanted["network"])
    home = f"{STATE_ROOT}/{digest(checkout)}"
    state = f"{home}/scenarios/{scenario}"
    base_digest = digest(wanted["base_image"])
    hosts: dict[str, dict[str, Any]] = {}
    members = [(node["name"], node["nproc_per_node"]) for node in wanted["nodes"]]
    for number, (name, nproc) in enumerate([*members, *((name, None) for name in wanted["outsiders"])]):
        address = subnet.network_address + 11 + number
        hosts[name] = {
            "ansible_host": str(address),
            "ansible_become": True,
            "local_nodes_container": f"torchrun-{identity}-{name}",
            # Fixed, so that a node made again is reached at once and not after the neighbour's cache has expired.
            "local_nodes_mac": "0a:"
            + ":".join(identity[i : i + 2] for i in (0, 2, 4))
            + f":{number // 256:02x}:{number % 256:02x}",
            **({} if nproc is None else {"nproc_per_node": nproc}),
        }
    return {
        "all": {
            "ansible_user": USER,
            "ansible_ssh_private_key_file": f"{state}/keys/{USER}",
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={state}/known_hosts -o StrictHostKeyChecking=yes"
            " -o IdentitiesOnly=yes",
            **({"base_user_id": owner} if 1000 <= owner < 60000 else {}),
            "shared_storage_type": "existing",
            "shared_storage_path": SHARED_PATH,
            "local_nodes_scenario": scenario,
            "local_nodes_state": state,
            "local_nodes_networks": f"{home}/networks",
            "local_nodes_network": f"torchrun-{identity}",
            "local_nodes_bridge": f"trn-{identity}",
            "local_nodes_subnet": str(subnet),
            "local_nodes_gateway": str(subnet.network_address + 1),
            "local_nodes_base_image": wanted["base_image"],
            "local_nodes_image": f"localhost/ansible-torchrun-node:{base_digest}",
        },
        "hosts": hosts,
        "nodes": [name for name, _ in members],
        "outsiders": wanted["outsiders"],
    }
