"""What a node says of itself before a job: versions, addresses, storage, limits, leftovers. Standard library only.

None imports torch: that takes seconds, and what a venv holds is written in its folders. Where files tell, a test can
give a root of its own.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path("/")
VENV = "opt/torchrun/venv"
TRAINER = "opt/torchrun/trainer/current"
# Packages whose version has to be the same everywhere, by what they are called here.
PACKAGES = {
    "torch": r"torch",
    "nccl": r"nvidia[-_]nccl[-_]cu\d+",
    "cudnn": r"nvidia[-_]cudnn[-_]cu\d+",
    "cuda": r"nvidia[-_]cuda[-_]runtime([-_]cu\d+)?",
}
# What nvidia-smi is asked of each GPU, by what it is called here.
GPU_FIELDS = {"name": "name", "capability": "compute_cap", "driver": "driver_version"}


def output_of(*words: str) -> str:
    """Return what a command prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def text_of(path: Path) -> str:
    """Return the text of a small file; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def installed(site_packages: Path) -> list[tuple[str, str, Path]]:
    """Return (name, version, folder of metadata) of each distribution in a folder of packages, sorted."""
    found = []
    for folder in sorted(site_packages.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        found.append((name, version, folder))
    return found


def content_hash(distributions: Sequence[tuple[str, str, Path]]) -> str:
    """Return a digest of all files that the distributions brought, as their RECORDs tell; but for compiled ones."""
    digest = hashlib.sha256()
    for name, version, folder in distributions:
        digest.update(f"{name} {version}\n".encode())
        lines = (line for line in text_of(folder / "RECORD").splitlines() if ",sha256=" in line and ".pyc" not in line)
        digest.update("\n".join(sorted(lines)).encode())
    return digest.hexdigest()[:12]


def venv(root: Path = ROOT) -> dict[str, Any]:
    """Return the Python and the packages of the nodes' venv; an empty dict where there is none."""
    link = root / VENV
    site_packages = next(link.glob("lib/python3*/site-packages"), None)
    if site_packages is None:
        return {}
    distributions = installed(site_packages)
    settings = dict(line.split(" = ", 1) for line in text_of(link / "pyvenv.cfg").splitlines() if " = " in line)
    packages = {
        what: sorted(
            f"{name} {version}".replace("_", "-") for name, version, _ in distributions if re.fullmatch(pattern, name)
        )
        for what, pattern in PACKAGES.items()
    }
    return {
        "python": settings.get("version_info") or settings.get("version", ""),
        "hash": content_hash(distributions),
        "packages": packages,
    }


def gpus() -> list[dict[str, str]]:
    """Return name, compute capability and driver of each GPU, as nvidia-smi tells them."""
    text = output_of("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS.values())}", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(GPU_FIELDS, row)) for row in rows]


def gpu_processes() -> list[int]:
    """Return the processes that compute on GPUs."""
    text = output_of("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    return [int(line) for line in text.split() if line.isdigit()]


def fabric() -> dict[str, str]:
    """Return state and version of the fabric manager, where there are NVSwitches."""
    if not list(Path("/proc/driver/nvidia-nvswitch/devices").glob("*")):
        return {}
    version = re.search(r"\d+\.\d+[.\d]*", output_of("nv-fabricmanager", "--version"))
    return {
        "state": output_of("systemctl", "show", "nvidia-fabricmanager", "-P", "ActiveState").strip(),
        "version": version[0] if version else "",
    }


def interfaces(text: str | None = None) -> list[dict[str, Any]]:
    """Return name, MTU, state and addresses (with prefix length) of each interface but loopback."""
    text = output_of("ip", "-json", "address", "show") if text is None else text
    return [
        {
            "name": link["ifname"],
            "mtu": link["mtu"],
            "up": "UP" in link.get("flags", []),
            "addresses": [
                f"{entry['local']}/{entry['prefixlen']}"
                for entry in link.get("addr_info", [])
                if entry.get("scope") == "global"
            ],
        }
        for link in json.loads(text or "[]")
        if "LOOPBACK" not in link.get("flags", [])
    ]


def twins(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the pairs of interfaces that are up in one subnet: answers may leave by the other one."""
    networks: dict[str, list[str]] = {}
    for link in found:
        for address in link["addresses"] if link["up"] else []:
            interface = ipaddress.ip_interface(address)
            if interface.network.prefixlen < interface.max_prefixlen:
                networks.setdefault(str(interface.network), []).append(link["name"])
    return [sorted(set(names)) for names in networks.values() if len(set(names)) > 1]


def resolved(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses that each name resolves to here."""
    found: dict[str, list[str]] = {}
    for name in names:
        try:
            found[name] = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
        except OSError:
            found[name] = []
    return found


def mount_of(path: Path, mountinfo: str) -> dict[str, Any]:
    """Return mount point, source, type and whether it is read-only of the file system that a path is on."""
    best: dict[str, Any] = {"point": "", "source": "", "type": "", "read_only": False}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, source, *_) = before.split(), after.split()
        point = fields[4].encode().decode("unicode_escape")
        inside = point == "/" or path == Path(point) or Path(point) in path.parents
        if inside and len(point) >= len(best["point"]):
            only = "ro" in fields[5].split(",") or "ro" in after.split()[-1].split(",")
            best = {
                "point": point,
                "source": f"{source}{fields[3] if kind != 'nfs4' else ''}",
                "type": kind,
                "read_only": only,
            }
    return best


def storage(path: Path) -> dict[str, Any]:
    """Return where the shared storage is mounted from, and its space in bytes; call it as the job's account."""
    found: dict[str, Any] = {**mount_of(path, text_of(Path("/proc/self/mountinfo"))), "free": 0, "total": 0}
    try:
        space = os.statvfs(path)
        found |= {"free": space.f_bavail * space.f_frsize, "total": space.f_blocks * space.f_frsize}
    except OSError as error:
        found["problem"] = error.strerror
    found["writable"] = os.access(path / "runs", os.W_OK | os.X_OK, effective_ids=True)
    return found


def shared_memory(path: Path = Path("/dev/shm")) -> dict[str, Any]:  # noqa: S108 (it is looked at, not used)
    """Return size and free bytes of /dev/shm, and what NCCL left there."""
    space = os.statvfs(path)
    return {
        "total": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "nccl": sorted(entry.name for entry in path.glob("nccl-*")),
    }


def limits(job: str) -> dict[str, str]:
    """Return the limits that the unit gives to a job."""
    text = output_of("systemctl", "show", f"torchrun@{job}.service", "--property=LimitNOFILE,LimitMEMLOCK,LoadState,Id")
    return {name: value for name, _, value in (line.partition("=") for line in text.splitlines())}


def leftovers(running: Sequence[str], root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the processes of jobs of ours whose unit does not run: workers that outlived it."""
    found = []
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        job = re.search(rb"(?:^|\0)TORCHRUN_JOB=([^\0]*)", environment)
        if job and job[1].decode(errors="replace") not in running:
            command = text_of(folder / "cmdline").replace("\0", " ").strip()
            found.append({"pid": int(folder.name), "job": job[1].decode(errors="replace"), "command": command[:120]})
    return found


def preloads(root: Path = ROOT) -> list[str]:
    """Return the libraries that every program is made to load first."""
    found = text_of(root / "etc/ld.so.preload").split()
    for line in text_of(root / "etc/environment").splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
            found.append(f"{name.strip()}={value.strip()}")
    return found


def mesh(home: Path, root: Path = ROOT) -> dict[str, Any]:
    """Return the keys of an account and of this host, and those that each is ready to accept: type and key alone."""

    def keys(text: str) -> list[str]:
        return re.findall(r"(?:^|\s)(ssh-ed25519 \S+)", text, re.MULTILINE)

    known: dict[str, list[str]] = {}
    for line in text_of(root / "etc/ssh/ssh_known_hosts").splitlines():
        names, _, key = line.partition(" ")
        for name in names.split(",") if not line.startswith("#") else []:
            known.setdefault(name, []).extend(keys(key))
    return {
        "own": keys(text_of(home / ".ssh/id_ed25519.pub")),
        "accepts": keys(text_of(home / ".ssh/authorized_keys")),
        "host": keys(text_of(root / "etc/ssh/ssh_host_ed25519_key.pub")),
        "knows": known,
    }


def of_node(job: str, names: Sequence[str], running: Sequence[str]) -> dict[str, Any]:
    """Return all of it but the storage. `names` are resolved; `running` are the jobs whose unit runs here."""
    links = interfaces()
    own = socket.gethostname()
    return {
        "hostname": own,
        "machine": os.uname().machine,
        "venv": venv(),
        "trainer": os.path.realpath(ROOT / TRAINER),
        "gpus": gpus(),
        "gpu_processes": gpu_processes(),
        "fabric": fabric(),
        "interfaces": links,
        "twins": twins(links),
        "resolved": resolved(names),
        "own_name": resolved([own])[own],
        "shm": shared_memory(),
        "limits": limits(job),
        "leftovers": leftovers(running),
        "preloads": preloads(),
        "cpus": len(os.sched_getaffinity(0)),
    }
