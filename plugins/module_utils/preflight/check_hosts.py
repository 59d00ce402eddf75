"""Checks of what each host has: storage, limits, leftovers, room for processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import (
    Cluster,
    Finding,
    Report,
    facts_of,
    plain,
)

SHM = "/dev/shm"  # noqa: S108 (a name)
LEAST_FREE = 5 << 30
LEAST_SHM = 32 << 20
LEAST_FILES = 65536


def answers(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether every host answered."""
    for host in cluster.names:
        problem = reports.get(host, {"problem": "no answer"}).get("problem")
        if problem:
            yield Finding(
                "answers", (host,), "no", f"{host} does not answer: {problem}", "a job needs all of its hosts",
                f"log in to {host} by hand with the inventory's address, user and key; then run site.yml",
            )  # fmt: skip


def storage(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether all hosts have the same shared storage, and can write there."""
    path = cluster.shared_path
    found = {host: report["storage"] for host, report in reports.items() if "storage" in report}
    again = f"mount the shared storage at {path}, then run `ansible-playbook site.yml`"
    explained = set()
    for host, mounted in found.items():
        if mounted.get("problem") or mounted["read_only"] or not mounted["writable"]:
            explained.add(host)
            state = mounted.get("problem") or (
                "is read-only" if mounted["read_only"] else f"{cluster.user} cannot write there"
            )
            yield Finding(
                "storage", (host,), "read-only" if mounted["read_only"] else "no", f"{path} of {host}: {state}",
                "runs, checkpoints and logs are there", again,
            )  # fmt: skip
        elif mounted["free"] < LEAST_FREE:
            yield Finding(
                "storage", (host,), "full", f"{path} of {host} has {mounted['free'] / (1 << 30):.1f} GiB left",
                "a job whose checkpoint finds no room ends",
                "`ansible-playbook playbooks/clean.yml` removes old runs",
                "error" if mounted["free"] < LEAST_FREE // 50 else "warning",
            )  # fmt: skip
    tokens = {host: set(report["tokens"]) for host, report in reports.items() if "tokens" in report}
    for host, seen in tokens.items():
        others = [other for other in tokens if other not in (host, *explained)]
        unseen = [other for other in others if other not in seen]
        # Of more than two, the one that sees none of the others is apart; of two nobody knows which.
        if host in explained or not unseen or len(unseen) < len(others):
            continue
        apart = (host,) if len(tokens) > 2 else tuple(tokens)
        explained |= set(apart)
        has = "; ".join(f"{each} has {found[each]['type']} {found[each]['source']}" for each in apart if each in found)
        yield Finding(
            "storage", apart, "other", f"{host} does not see at {path} what {', '.join(unseen)} wrote there ({has})",
            "it is not the same storage: checkpoints and code would be missing", again,
        )  # fmt: skip


def limits(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether a job may use what it needs."""
    del cluster
    for host, fact in facts_of(reports).items():
        shm = fact["shm"]
        if shm["free"] < LEAST_SHM:
            yield Finding(
                "limits", (host,), "shm", f"{SHM} of {host} has {shm['free'] / (1 << 20):.0f} of "
                f"{shm['total'] / (1 << 20):.0f} MiB left",
                "NCCL and DataLoaders share memory there, and crash (Bus error) without it",
                f"`mount -o remount,size=50% /dev/shm` on {host}; remove nccl-* of dead jobs there",
            )  # fmt: skip
        units = fact["limits"]
        if units.get("LoadState") == "masked":
            yield Finding(
                "limits", (host,), "masked", f"the unit {units['Id']} of {host} is masked",
                "the job's agent could not be started", f"`systemctl unmask {units['Id']}` on {host}",
            )  # fmt: skip
            continue
        if units.get("LoadState") not in ("loaded", None):
            yield Finding(
                "limits", (host,), "unit", f"{host} has no unit torchrun@.service ({units['LoadState']})",
                "the job's agent could not be started", "run `ansible-playbook site.yml`",
            )  # fmt: skip
            continue
        files = units.get("LimitNOFILE", "infinity")
        if files != "infinity" and int(files) < LEAST_FILES:
            yield Finding(
                "limits", (host,), "nofile", f"the unit on {host} may open {files} files only",
                "data loaders and NCCL hold thousands",
                "remove what overrides LimitNOFILE: `systemctl cat torchrun@train`",
            )  # fmt: skip
        if units.get("LimitMEMLOCK", "infinity") != "infinity":
            yield Finding(
                "limits", (host,), "memlock", f"the unit on {host} may lock {units['LimitMEMLOCK']} bytes only",
                "InfiniBand and pinned memory need more",
                "remove what overrides LimitMEMLOCK: `systemctl cat torchrun@train`", "warning",
            )  # fmt: skip


def leftovers(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether dead jobs left something behind."""
    del cluster
    for host, fact in facts_of(reports).items():
        for left in fact["leftovers"][:3]:
            yield Finding(
                "leftovers", (host,), "process", f"process {left['pid']} of the job {left['job']} is left on {host}: "
                f"{left['command']}",
                "it holds memory, ports or GPUs that the next job needs", f"`kill {left['pid']}` on {host}", "warning",
            )  # fmt: skip
        foreign = [pid for pid in fact["gpu_processes"] if pid not in [left["pid"] for left in fact["leftovers"]]]
        if foreign and not reports[host].get("busy"):
            yield Finding(
                "leftovers", (host,), "GPU", f"processes {plain(foreign)} use GPUs of {host}, and no job runs there",
                "they hold memory that the next job needs", f"look at `nvidia-smi` on {host}", "warning",
            )  # fmt: skip
        if fact["shm"]["nccl"] and not reports[host].get("busy"):
            yield Finding(
                "leftovers", (host,), "shm", f"{len(fact['shm']['nccl'])} segments nccl-* are left in {SHM} of {host}",
                "they take the memory that the next job needs", f"`rm /dev/shm/nccl-*` on {host}", "warning",
            )  # fmt: skip


def slots(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether hosts have as many GPUs or cores as they are given processes."""
    facts = facts_of(reports)
    for node in cluster.nodes:
        fact = facts.get(node["name"])
        wanted = node.get("nproc_per_node")
        if fact is None or not isinstance(wanted, int):
            continue
        if fact["gpus"] and wanted > len(fact["gpus"]):
            yield Finding(
                "slots", (node["name"],), "GPUs",
                f"{node['name']} has {len(fact['gpus'])} GPUs for {wanted} processes",
                "two ranks on one GPU fail in NCCL", f"lower nproc_per_node of {node['name']}, or leave it out: auto",
            )  # fmt: skip
        elif not fact["gpus"] and wanted > fact["cpus"]:
            yield Finding(
                "slots", (node["name"],), "cores", f"{node['name']} has {fact['cpus']} cores for {wanted} processes",
                "they share cores, and all ranks wait for them", f"lower nproc_per_node of {node['name']}", "warning",
            )  # fmt: skip
