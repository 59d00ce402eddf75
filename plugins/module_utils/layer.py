"""A job's own packages, as a venv on top of that of the nodes. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LAYERS = Path("/opt/torchrun/layers")


def key_of(requirements: str, base: Path) -> str:
    """Return what names the wheels, and the layer, of requirements on top of a venv."""
    digest = hashlib.sha256(f"{base.name}\n{requirements}".encode()).hexdigest()[:12]
    return f"layer-{digest}"


def site_packages(venv: Path) -> Path:
    """Return the folder of packages of a venv. Raises OSError where there is none."""
    found = next(venv.glob("lib/python3*/site-packages"), None)
    if found is None:
        raise OSError(f"{venv} has no folder of packages")
    return found


def stand_on(layer: Path, base: Path) -> None:
    """Let the interpreter of a venv also find the packages of another, after its own."""
    line = f"import site; site.addsitedir({str(site_packages(base))!r})\n"
    (site_packages(layer) / "_torchrun_base.pth").write_text(line)


def to_fetch(report: Mapping[str, Any]) -> list[str]:
    """Return what pip's installation report would install, each as a requirement that names one version."""
    wanted = []
    for item in report["install"]:
        about, info = item["metadata"], item["download_info"]
        pinned = f"{about['name']}=={about['version']}"
        # From an index the version says which; anything else is fetched from where it was found.
        wanted.append(
            pinned if "archive_info" in info and not item.get("is_direct") else f"{about['name']} @ {_url(info)}"
        )
    return wanted


def _url(info: Mapping[str, Any]) -> str:
    vcs = info.get("vcs_info")
    return f"{vcs['vcs']}+{info['url']}@{vcs['commit_id']}" if vcs else str(info["url"])


def constraints(base: Path, names: Iterable[str] = ("torch", "torchvision", "torchaudio", "triton")) -> str:
    """Return lines that keep a layer from bringing another torch than that of the nodes."""
    lines = []
    for name in names:
        for about in site_packages(base).glob(f"{name}-*.dist-info/METADATA"):
            fields = dict(
                line.split(": ", 1) for line in about.read_text().split("\n\n")[0].splitlines() if ": " in line
            )
            lines.append(f"{fields['Name']}=={fields['Version']}")
    return "".join(f"{line}\n" for line in lines)


def is_complete(layer: Path) -> bool:
    """Tell whether a layer was installed to its end."""
    return (layer / "layer.json").exists()


def complete(layer: Path, base: Path) -> None:
    """Mark a layer as whole; it says what it stands on."""
    (layer / "layer.json").write_text(json.dumps({"base": str(base)}) + "\n")
