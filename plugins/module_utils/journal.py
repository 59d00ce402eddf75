"""Reading this host's journal. Standard library only; runs on the node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

WORDS = ("journalctl", "--output=json", "--quiet", "--no-pager")


class JournalError(Exception):
    """The journal cannot be read; the message is journalctl's."""


def read(options: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return (unix microseconds, who wrote it, text) of each entry, oldest first. Raises JournalError."""
    done = subprocess.run([*WORDS, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JournalError(done.stderr.strip())
    entries = []
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        text: Any = entry.get("MESSAGE") or ""
        if isinstance(text, list):  # bytes that are no UTF-8
            text = bytes(text).decode(errors="replace")
        entries.append((int(entry["__REALTIME_TIMESTAMP"]), entry.get("SYSLOG_IDENTIFIER", ""), str(text)))
    return entries
