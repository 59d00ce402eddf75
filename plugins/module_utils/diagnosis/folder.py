"""Reading a folder of logs of any launcher: hosts and kinds are told by the names of folders and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.events import Source, message_of

# Of a larger file its beginning and its end are read.
MOST_BYTES = 8_000_000
KERNEL = re.compile(r"(?i)(dmesg|kern|messages|syslog)")
NCCL = re.compile(r"(?i)nccl")
UNIT = re.compile(r"(?i)(journal|systemd|unit)")
RANK_IN_NAME = re.compile(r"(?i)(?:^|[._-])rank[._-]?(\d+)")
OTHER_SUFFIXES = {".pt", ".pth", ".bin", ".npy", ".png", ".gz", ".zst", ".zip", ".safetensors", ".html", ".so"}


class FolderError(Exception):
    """The folder cannot be read; the message is one sentence."""


def read(folder: Path) -> tuple[list[Source], dict[int, str]]:
    """Return (the logs of a folder, the host of each rank where a job.yml of ours tells it). Raises FolderError."""
    if not folder.is_dir():
        raise FolderError(f"logs names {folder}, which is no folder: give one with the logs of each host.")
    try:
        sources = [*_reports(folder), *_files(folder)]
    except OSError as error:
        raise FolderError(f"{error.filename or folder} cannot be read: {error.strerror or error}.") from error
    if not any(source.text.strip() for source in sources):
        raise FolderError(f"{folder} has no logs: give a folder with the logs of each host, as in <host>/<file>.")
    return sources, ranks_of(_description(folder))


def _description(folder: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load((folder / "job.yml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def ranks_of(description: dict[str, Any]) -> dict[int, str]:
    """Return the host of each rank, as job.yml plans them."""
    return {
        rank: node["name"]
        for node in description.get("nodes", [])
        for rank in range(node["ranks"][0], node["ranks"][1] + 1)
    }


def _reports(folder: Path) -> Iterator[Source]:
    """Yield what the agents of a run folder of ours reported."""
    for path in sorted(folder.glob("nodes/*.json")):
        try:
            yield from of_report(path.stem, json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            continue


def of_report(host: str, report: dict[str, Any]) -> Iterator[Source]:
    """Yield what an agent kept of failures and hangs, each of its own time."""
    for failure in report.get("failures", []) or ([report["failure"]] if report.get("failure") else []):
        how, message = failure.get("how", ""), failure.get("message", "")
        text = "\n".join([*failure.get("traceback", [])[:-1], message or how])
        yield Source(host, "state", f"{text}\n{how}", "report", failure.get("rank"), failure.get("time"))
    for hang in report.get("hangs", []):
        yield Source(host, "state", str(hang.get("silent", "")), "report", None, hang.get("time"))


def _files(folder: Path) -> Iterator[Source]:
    base = folder / "logs" if (folder / "job.yml").exists() and (folder / "logs").is_dir() else folder
    for path in sorted(base.rglob("*")):
        if not path.is_file() or path.name.startswith(".") or path.suffix in OTHER_SUFFIXES or path.name == "job.yml":
            continue
        text = text_of(path)
        if text is None:
            continue
        inside = path.relative_to(base)
        host = inside.parts[0] if len(inside.parts) > 1 else inside.name.split(".")[0]
        name = str(inside)
        if path.name.endswith("error.json"):
            yield Source(host, "state", message_of(text), name, None, path.stat().st_mtime)
        else:
            yield Source(host, _kind(inside), text, name, _rank_by_name(inside), path.stat().st_mtime)


def text_of(path: Path) -> str | None:
    """Return a log's text, the beginning and end of a large one; None for what is no text."""
    size = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(MOST_BYTES // 2)
        if b"\0" in content[:4096]:
            return None
        if size > len(content):
            file.seek(max(len(content), size - MOST_BYTES // 2))
            content += b"\n" + file.read()
    return content.decode("utf-8", errors="replace")


def _kind(inside: Path) -> str:
    for kind, pattern in (("kernel", KERNEL), ("nccl", NCCL), ("unit", UNIT)):
        if pattern.search(inside.name):
            return kind
    return "agent" if re.search(r"(?i)(agent|torchrun)", inside.name) else "worker"


def _rank_by_name(inside: Path) -> int | None:
    """Return the rank that a file's name tells. torchrun's folders are named by local rank, which is no rank."""
    found = RANK_IN_NAME.search(inside.name)
    return int(found[1]) if found else None
