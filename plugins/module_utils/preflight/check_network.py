"""Checks of names, addresses, ports, reachability and clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import (
    Cluster,
    Finding,
    Report,
    differing,
    facts_of,
    odd_ones,
    plain,
    tries_of,
)

# Seconds between two clocks. The agent's rendezvous does without equal ones, but no reader of several hosts' logs.
MOST_OFFSET = 2.0


def names(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether every name means the same host everywhere."""
    site = "run `ansible-playbook site.yml`, which writes /etc/hosts"
    for host, fact in facts_of(reports).items():
        for node in cluster.nodes:
            for name in (node["alias"], node["name"]):
                found = fact["resolved"].get(name)
                if found is None or node["address"] in found or (name == node["name"] and not found):
                    continue
                told = f"resolves to {', '.join(found)}" if found else "does not resolve"
                yield Finding(
                    "names", (host,), "wrong", f"on {host} {name} {told}, and the inventory says {node['address']}",
                    "ranks would meet at the wrong place, or in the wrong order", site,
                    "error" if name == node["alias"] else "warning",
                )  # fmt: skip
        if any(address.startswith("127.") for address in fact["own_name"]):
            yield Finding(
                "names", (host,), "loopback",
                f"on {host} its own name {fact['hostname']} resolves to {', '.join(fact['own_name'])}",
                "programs that look their address up by name (plain torchrun, gloo) take loopback, and nobody reaches "
                "them; jobs of train.yml do not",
                f"remove that line from /etc/hosts of {host}", "warning",
            )  # fmt: skip


def network(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether addresses are on an interface, alone in their subnet, and carry packets of one size."""
    sizes, facts = {}, facts_of(reports)
    for node in cluster.nodes:
        host, fact = node["name"], facts.get(node["name"])
        if fact is None:
            continue
        mine = interface_of(fact, node["address"])
        if mine is None:
            yield Finding(
                "network", (host,), "address", f"no interface of {host} has its address {node['address']}",
                "the others look for it there",
                f"correct cluster_addr of {host} in the inventory: it has {plain(addresses_of(fact))}",
            )  # fmt: skip
            continue
        if node["address"].startswith("127."):
            yield Finding(
                "network", (host,), "loopback", f"the address of {host} is {node['address']}",
                "no other host reaches loopback", f"give {host} a cluster_addr on the network of the nodes",
            )  # fmt: skip
        sizes[host] = mine["mtu"]
        for pair in fact["twins"]:
            if mine["name"] in pair:
                yield Finding(
                    "network", (host,), "twins", f"{' and '.join(pair)} of {host} are in one subnet",
                    "answers may leave by the other interface, and be dropped",
                    "give them different subnets", "warning",
                )  # fmt: skip
    yield from differing(
        "network",
        "MTU",
        sizes,
        label="the MTU",
        why="large packets are lost without a word, and collectives hang",
        do="give the interfaces of all hosts, and the switch, one MTU",
    )
    explained = odd_ones(sizes)
    for host, peer, tried in tries_of(reports):
        if tried.get("mtu") is False and host not in explained and peer not in explained:
            yield Finding(
                "network", (host,), "MTU", f"packets of {sizes.get(host)} bytes of {host} do not reach {peer} whole",
                "something between them carries smaller ones only; collectives hang",
                "give the whole path one MTU: interfaces, bridges, tunnels, switch",
            )  # fmt: skip


def interface_of(fact: Mapping[str, Any], address: str) -> Mapping[str, Any] | None:
    """Return the interface of a host that has an address."""
    return next(
        (link for link in fact["interfaces"] if address in [entry.partition("/")[0] for entry in link["addresses"]]),
        None,
    )


def addresses_of(fact: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a host, with their interfaces."""
    return [f"{entry.partition('/')[0]} ({link['name']})" for link in fact["interfaces"] for entry in link["addresses"]]


def ports(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether the port of the rendezvous is free on the host of node_rank 0, or held by a job of ours."""
    del cluster
    for host, report in reports.items():
        busy = (report.get("listen") or {}).get("busy")
        if busy and not report.get("own_port"):
            yield Finding(
                "ports", (host,), "taken", f"port {report['port']} of {host} cannot be used: {busy}{_by(report)}",
                "the rendezvous of a job that is given it could not begin",
                f"end what listens there (`ss -ltnp 'sport = :{report['port']}'` on {host}), or launch with another "
                "master_port",
            )  # fmt: skip


def _by(report: Report) -> str:
    return f" (by {report['listener']})" if report.get("listener") else ""


def reach(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether every host reaches every other, on the port of the rendezvous and on any."""
    del cluster
    for host, peer, tried in tries_of(reports):
        on = tried.get("rendezvous")
        bad_high, bad_port = tried.get("problem"), on.get("problem") if on else None
        if not bad_high and not bad_port:
            if tried.get("host") not in (None, peer):
                yield Finding(
                    "reach", (host,), "other", f"at the address of {peer} {host} met {tried['host']}",
                    "two hosts have one address, or a name server answers wrongly", "give each host its own address",
                )  # fmt: skip
            continue
        one = "high ports" if bad_high else "the port of the rendezvous"
        which = "any port" if bad_high and bad_port else one
        yield Finding(
            "reach", (host,), f"to {peer}", f"{host} does not reach {peer} on {which}: {bad_high or bad_port}",
            "NCCL and gloo connect every pair, in both directions, on ports that they choose",
            f"run `ansible-playbook site.yml`; if it stays, look for a firewall on {peer}, on {host} (outgoing), or "
            "between",
        )  # fmt: skip


def mesh(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether the account of jobs can go from every host to every other by SSH."""
    found = {host: report["mesh"] for host, report in reports.items() if "mesh" in report}
    alias = {node["name"]: node["alias"] for node in cluster.nodes}
    site = "run `ansible-playbook site.yml`, which hands out all keys"
    for host, mine in found.items():
        closed = [
            peer for peer, other in found.items() if peer != host and not set(other["own"]) & set(mine["accepts"])
        ]
        unknown = [
            peer
            for peer, other in found.items()
            if peer != host and not set(other["host"]) & set(mine["knows"].get(alias[peer], []))
        ]
        if closed or not mine["own"]:
            what = f"{host} does not let {cluster.user} of {', '.join(closed)} in by SSH"
            if not mine["own"]:
                what = f"{cluster.user} of {host} has no SSH key"
            why = "tools that go from node to node by themselves (mpirun, rsync, DeepSpeed's launcher) fail"
            yield Finding("mesh", (host,), "closed", what, why, site, "warning")
        if unknown:
            yield Finding(
                "mesh", (host,), "unknown",
                f"{host} does not know the host key of {', '.join(unknown)}, or knows another",
                "SSH from there asks or refuses", site, "warning",
            )  # fmt: skip


def clock(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether the clocks agree."""
    offsets: dict[str, list[float]] = {}
    for host, peer, tried in tries_of(reports):
        if abs(tried.get("offset", 0.0)) > MOST_OFFSET:
            offsets.setdefault(peer, []).append(tried["offset"])
            offsets.setdefault(host, []).append(-tried["offset"])
    many = max((len(found) for found in offsets.values()), default=0)
    # The one that differs from all is off; of two hosts nobody knows which, and it is said of the later one.
    for host in [name for name in cluster.names if len(offsets.get(name, [])) == many and many][-1:]:
        middle = sorted(offsets[host])[many // 2]
        yield Finding(
            "clock", (host,), f"{middle:+.0f} s", f"the clock of {host} is {abs(middle):.0f} s "
            f"{'ahead of' if middle > 0 else 'behind'} the others'",
            "logs of several hosts cannot be put in order, and torchrun by hand forms wrong worlds beyond 15 s",
            f"start chrony or systemd-timesyncd on {host}, or set its clock", "warning",
        )  # fmt: skip
