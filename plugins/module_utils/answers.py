"""What the hosts of a play answered to a task. On the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_hosts(name: str, variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each host registered as `name`; empty where it has registered nothing."""
    return {host: variables["hostvars"][host].get(name) or {} for host in variables["ansible_play_hosts_all"]}
