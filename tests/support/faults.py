"""Faults that are made on real nodes, and what preflight has to say of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SITE = "/opt/torchrun/venv/lib/python3*/site-packages"
SYN = "tcp flags & (syn|ack) == syn"


@dataclass(frozen=True)
class Fault:
    """A fault: `do` and `undo` on a host, which check finds it on which hosts, and words of the finding."""

    check: str
    said: str
    do: str = "true"
    undo: str = "true"
    on: int = 1
    host: str = "node2"
    overrides: dict[str, Any] | None = None
    severity: str = "error"


def package(name: str, version: str) -> dict[str, str]:
    """Return how to leave the metadata of another package in a venv, and take it away."""
    folder = f"$(echo {SITE})/{name}-{version}.dist-info"
    return {"do": f"mkdir {folder} && echo 'x,sha256=abc,1' >{folder}/RECORD", "undo": f"rm -r {folder}"}


def drop(what: str) -> dict[str, str]:
    """Return how to drop packets that come in."""
    chain = "nft add chain inet fault input '{ type filter hook input priority -300 ; }'"
    do = f"nft add table inet fault && {chain} && nft add rule inet fault input '{what} drop'"
    return {"do": do, "undo": "nft delete table inet fault"}


def on_storage(options: str, then: str = "true") -> dict[str, str]:
    """Return how to mount something else where the shared storage is."""
    return {"do": f"mount -t tmpfs -o {options} none /srv/torchrun && {then}", "undo": "umount /srv/torchrun"}


RUNS = "install -d -o trainer -g trainer /srv/torchrun/runs"
FAULTS = {
    "a second torch in a venv": Fault(
        "versions", "packages of torch: torch 2.12.0, torch 2.13.0", **package("torch", "2.12.0")
    ),
    "NCCL for two CUDAs": Fault(
        "versions", "node2 has nvidia-nccl-cu12 2.27.3", **package("nvidia_nccl_cu12", "2.27.3")
    ),
    "another Python": Fault(
        "versions", "Python: node2 has 3.10.9", do="sed -i.fault 's/^version_info = .*/version_info = 3.10.9/' "
        "/opt/torchrun/venv/pyvenv.cfg", undo="mv /opt/torchrun/venv/pyvenv.cfg.fault /opt/torchrun/venv/pyvenv.cfg",
    ),
    "a library that comes first": Fault(
        "versions", "node2 loads LD_PRELOAD=/usr/lib/libnccl.so.2", severity="warning",
        do="echo LD_PRELOAD=/usr/lib/libnccl.so.2 >>/etc/environment", undo="sed -i '/LD_PRELOAD/d' /etc/environment",
    ),
    "another address of an alias": Fault(
        "names", "on node2 trn-0000-node1 resolves to 10.99.0.1", do="cp /etc/hosts /root/hosts && "
        "sed '/trn-0000-node1/s/^[0-9.]*/10.99.0.1/' /root/hosts >/etc/hosts", undo="cat /root/hosts >/etc/hosts",
    ),
    "its own name is loopback": Fault(
        "names", "127.0.1.1", severity="warning", do="cp /etc/hosts /root/hosts && "
        "(echo 127.0.1.1 $(hostname); cat /root/hosts) >/etc/hosts", undo="cat /root/hosts >/etc/hosts",
    ),
    "a wrong cluster_addr": Fault(
        "network", "no interface of node2 has its address 10.99.0.2", overrides={"cluster_addr": "10.99.0.2"}
    ),
    "another MTU": Fault(
        "network", "the MTU: node2 has 1400, the others 1500",
        do="ip link set eth0 mtu 1400", undo="ip link set eth0 mtu 1500",
    ),
    "a port that is taken": Fault(
        "ports", "port 29400 of node1 cannot be used: Address already in use (by python3", on=0, host="node1",
        do="systemd-run --quiet --unit=fault python3 -m http.server 29400 && "
        "until ss -Hltn 'sport = :29400' | grep -q .; do sleep 0.1; done", undo="systemctl stop fault",
    ),
    "a firewall on a node": Fault(
        "reach", "node1 does not reach node2 on any port: no answer", host="node1", **drop(SYN + " tcp dport != 22")
    ),
    "a firewall in one direction": Fault(
        "reach", "node2 does not reach node1 on any port: no answer", on=0, **drop("ip saddr {node2} " + SYN)
    ),
    "a firewall for high ports": Fault(
        "reach", "node1 does not reach node2 on high ports: no answer", host="node1",
        **drop(SYN + " tcp dport 30000-65535"),
    ),
    "a clock that is ahead": Fault(
        "clock", "the clock of node2 is 60 s ahead of the others'",
        do="(command -v faketime || (apt-get -qq update && apt-get -qq install -y faketime)) >/dev/null 2>&1 && "
        "printf '#!/bin/sh\\nexec faketime -f +60s /usr/bin/python3 \"$@\"\\n' >/usr/local/bin/python-ahead && "
        "chmod +x /usr/local/bin/python-ahead", undo="rm /usr/local/bin/python-ahead",
        overrides={"ansible_python_interpreter": "/usr/local/bin/python-ahead"}, severity="warning",
    ),
    "no storage": Fault("storage", "/srv/torchrun of node2: trainer cannot write there", **on_storage("size=1m")),
    "a read-only storage": Fault("storage", "/srv/torchrun of node2: is read-only", **on_storage("ro")),
    "a full storage": Fault(
        "storage", "/srv/torchrun of node2 has 0.0 GiB left", **on_storage("size=2m", RUNS),
    ),
    "another storage": Fault("storage", "does not see at /srv/torchrun what", **on_storage("size=20g", RUNS)),
    "little /dev/shm": Fault(
        "limits", "/dev/shm of node2 has 1 of 1 MiB left", do="mount -o remount,size=1m /dev/shm",
        undo="mount -o remount,size=64m /dev/shm",
    ),
    "few open files": Fault(
        "limits", "the unit on node2 may open 64 files only",
        do="mkdir -p /run/systemd/system/torchrun@.service.d && printf '[Service]\\nLimitNOFILE=64\\n' "
        ">/run/systemd/system/torchrun@.service.d/fault.conf && systemctl daemon-reload",
        undo="rm -r /run/systemd/system/torchrun@.service.d && systemctl daemon-reload",
    ),
    "no unit": Fault(
        "limits", "node2 has no unit torchrun@.service (not-found)",
        do="mv /etc/systemd/system/torchrun@.service /root/ && systemctl daemon-reload",
        undo="mv /root/torchrun@.service /etc/systemd/system/ && systemctl daemon-reload",
    ),
    "a worker that outlived its job": Fault(
        "leftovers", "of the job gone is left on node2", severity="warning",
        do="systemd-run --quiet --unit=fault --setenv=TORCHRUN_JOB=gone sleep 600", undo="systemctl stop fault",
    ),
    "more processes than cores": Fault(
        "slots", "cores for 64 processes", overrides={"nproc_per_node": 64}, severity="warning"
    ),
    "no key of the mesh": Fault(
        "mesh", "node2 does not let trainer of node1 in by SSH", severity="warning",
        do="cd ~trainer/.ssh && cp -p authorized_keys keys.fault && sed -i /trn-0000-node1/d authorized_keys",
        undo="cd ~trainer/.ssh && mv keys.fault authorized_keys",
    ),
}  # fmt: skip
