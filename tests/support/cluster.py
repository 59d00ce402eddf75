"""The nodes of an inventory as tests and measurements see them: names, addresses, and how to reach them over SSH."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


@dataclass(frozen=True)
class Node:
    """A host of an inventory. `control` shares one SSH connection between commands when it is set."""

    name: str
    address: str
    nproc_per_node: int
    user: str
    ssh_host: str
    ssh_options: list[str]
    identity: str | None = None
    variables: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ssh(self) -> list[str]:
        """The ssh command up to and with the destination."""
        identity = ["-i", self.identity] if self.identity else []
        return ["ssh", *self.ssh_options, *identity, f"{self.user}@{self.ssh_host}"]

    def run(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the node as root."""
        return subprocess.run(
            [*self.ssh, f"sudo sh -c {shlex.quote(command)}"], capture_output=True, text=True, check=check
        )


def plain(value: Any) -> Any:
    """Return a value without the mark that ansible-inventory puts on what is no template."""
    return value["__ansible_unsafe"] if isinstance(value, dict) and "__ansible_unsafe" in value else value


def read_inventory(options: list[str], group: str = "nodes") -> list[Node]:
    """Return the hosts of a group in inventory order; `options` are those of ansible-inventory, such as -i."""
    done = subprocess.run(
        [str(TOOLS / "ansible-inventory"), *options, "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    inventory = json.loads(done.stdout)
    nodes = []
    for name in inventory[group]["hosts"]:
        found = inventory["_meta"]["hostvars"].get(name, {})
        variables = {key: plain(value) for key, value in found.items()}
        nodes.append(
            Node(
                name=name,
                address=variables.get("cluster_addr", variables["ansible_host"]),
                nproc_per_node=int(variables.get("nproc_per_node", 1)),
                user=variables.get("ansible_user", "root"),
                ssh_host=variables["ansible_host"],
                ssh_options=shlex.split(variables.get("ansible_ssh_common_args", "")),
                identity=variables.get("ansible_ssh_private_key_file"),
                variables=variables,
            )
        )
    return nodes
