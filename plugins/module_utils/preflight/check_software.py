"""Checks of versions, drivers and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import (
    Cluster,
    Finding,
    Report,
    differing,
    facts_of,
)


def versions(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether all hosts have one and the same software."""
    del cluster
    facts = facts_of(reports)
    same = "ranks with different software hang or crash in the first collective operation"
    site = "run `ansible-playbook site.yml`, which gives all hosts the same"
    bare = tuple(host for host, fact in facts.items() if not fact["venv"])
    if bare:
        yield Finding("versions", bare, "none", f"{', '.join(bare)}: there is no PyTorch venv", "nothing can run", site)
    venvs = {host: fact["venv"] for host, fact in facts.items() if fact["venv"]}
    for name, label in (("torch", "torch"), ("nccl", "NCCL"), ("cudnn", "cuDNN"), ("cuda", "the CUDA runtime")):
        found = {host: venv["packages"][name] for host, venv in venvs.items()}
        yield from differing("versions", "differ", found, label=label, why=same, do=site)
        for host, packages in found.items():
            if len(packages) > 1:
                yield Finding(
                    "versions", (host,), "two",
                    f"{host} has {len(packages)} packages of {label}: {', '.join(packages)}",
                    "which of them is loaded depends on the order of files", f"remove the venv on {host}, then {site}",
                )  # fmt: skip
    others = {
        "Python": {host: venv["python"] for host, venv in venvs.items()},
        "the content of the venv": {host: venv["hash"] for host, venv in venvs.items()},
        "the trainer": {host: fact["trainer"] for host, fact in facts.items()},
        "the machine": {host: fact["machine"] for host, fact in facts.items()},
    }
    for label, values in others.items():
        yield from differing("versions", "differ", values, label=label, why=same, do=site)
    for host, fact in facts.items():
        if fact["preloads"]:
            yield Finding(
                "versions", (host,), "preload", f"{host} loads {', '.join(fact['preloads'])} before every program",
                "another CUDA or NCCL may be loaded than PyTorch's own",
                f"remove it from /etc/environment or /etc/ld.so.preload of {host}", "warning",
            )  # fmt: skip


def gpus(cluster: Cluster, reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Whether driver, GPUs, fabric manager and PyTorch fit each other."""
    del cluster
    facts = facts_of(reports)
    drivers = {host: fact["gpus"][0]["driver"] for host, fact in facts.items() if fact["gpus"]}
    yield from differing(
        "gpus",
        "differ",
        drivers,
        label="the driver",
        why="NCCL between different drivers is not supported and may fail",
        do="run `ansible-playbook site.yml`",
        severity="warning",
    )
    for host, fact in facts.items():
        # Judged once nodes tell them: no file of a wheel does, and importing torch takes too long here.
        arches = fact["venv"].get("arches", [])
        for gpu in fact["gpus"]:
            wanted = f"sm_{gpu['capability'].replace('.', '')}"
            if arches and not any(arch == wanted or _runs_on(arch, wanted) for arch in arches):
                yield Finding(
                    "gpus", (host,), "too new" if wanted > max(arches) else "too old",
                    f"{host} has the GPU {gpu['name']} ({wanted}), and this PyTorch is built for {', '.join(arches)}",
                    "it has no kernels for that GPU", f"choose another build (pytorch_backend), or leave {host} out",
                )  # fmt: skip
                break
        fabric = fact["fabric"]
        driver = fact["gpus"][0]["driver"] if fact["gpus"] else ""
        if fabric and (fabric["state"] != "active" or (driver and fabric["version"] != driver)):
            yield Finding(
                "gpus", (host,), "fabric",
                f"the fabric manager of {host} is {fabric['state'] or 'not installed'}, version "
                f"{fabric['version'] or 'unknown'}, and the driver {driver or 'unknown'}",
                "GPUs on NVSwitch cannot be used without it, at exactly the driver's version",
                f"install nvidia-fabricmanager of that version on {host} and start it",
            )  # fmt: skip


def _runs_on(arch: str, wanted: str) -> bool:
    """Code for an older minor version of the same generation runs too."""
    return arch[:-1] == wanted[:-1] and arch <= wanted
