"""What is told of a worker that failed: the rank, how it ended, its last words, and the end of its traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import run_state

# Of a traceback: its last frames, which are where the error is.
LAST_LINES = 14
# Of a job that fails again and again, so many failures are kept: the first ones.
MOST = 20
# By convention wrong arguments, of argparse, of Python itself and of the packaged trainer: they stay wrong.
EXIT_USAGE = 2
# torch puts the rank in front of a traceback's lines; the rank is said already.
RANK = re.compile(r"^\[rank\d+\]:\s?")


def stderr_of(local_rank: int) -> Path | None:
    """Return the file of what a worker wrote to stderr in its last attempt; None where there is none."""
    files = Path(os.environ["PET_LOG_DIR"]).glob(f"*/attempt_*/{local_rank}/stderr.log")
    return max(files, key=lambda path: path.stat().st_mtime, default=None)


def last_traceback(lines: list[str]) -> list[str]:
    """Return the end of the last traceback: its heading, the last frames, and the exception."""
    plain = [RANK.sub("", line).rstrip() for line in lines]
    begins = [number for number, line in enumerate(plain) if line.startswith("Traceback (most recent call last)")]
    if not begins:
        return []
    found = plain[begins[-1] :]
    # Frames are indented; what follows the first line that is not belongs to the exception or to nobody.
    ends = next((number for number, line in enumerate(found[1:], start=1) if line and not line.startswith(" ")), None)
    found = found if ends is None else found[: ends + 1]
    return found if len(found) <= LAST_LINES else [found[0], "  ...", *found[-(LAST_LINES - 2) :]]


def how_it_ended(failure: Any) -> str:
    """Return how a worker ended, in words."""
    if failure.exitcode >= 0:
        return f"exited with {failure.exitcode}"
    return f"was killed by {failure.signal_name()}"


def describe(rank: int, failure: Any) -> dict[str, Any]:
    """Describe one of torch's ProcessFailures: rank, how it ended, its last words and traceback, when, and its log."""
    log = stderr_of(failure.local_rank)
    lines = log.read_text(errors="replace").splitlines() if log else []
    traceback = last_traceback(lines)
    said = traceback[-1] if traceback else next((line.strip() for line in reversed(lines) if line.strip()), "")
    recorded = failure.message if failure.error_file != "<N/A>" else ""
    if isinstance(recorded, dict):  # as torch's own `record` writes it
        recorded = str(recorded.get("message", ""))
    # The exception's own line; what torch adds below it, such as C++ frames, is in the log.
    words = (said if traceback else recorded or said).strip().splitlines() or [""]
    return {
        "rank": rank,
        "how": how_it_ended(failure),
        "exit_code": failure.exitcode,
        "message": RANK.sub("", words[0]),
        "traceback": traceback,
        # torch's time has whole seconds, and is when the agent noticed; the worker's last word came before.
        "time": log.stat().st_mtime if log and said else float(failure.timestamp),
        "log": str(log or ""),
    }


def in_order(failures: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """Yield ranks and their failures, the one that came first in time first."""
    yield from sorted(failures.items(), key=lambda pair: (pair[1].timestamp, pair[0]))


def exits(failures: Mapping[int, Any]) -> dict[str, str]:
    """Return how each rank of this node that failed has ended."""
    return {str(rank): how_it_ended(failure) for rank, failure in sorted(failures.items())}


def note(failures: Mapping[int, Any]) -> None:
    """Keep the first failure of an attempt: the next one may remove its log."""
    known = run_state.last_report().get("failures", [])
    if len(known) < MOST:
        run_state.amend(failures=[*known, describe(*next(in_order(failures)))])


def noting(monitor: Any) -> Any:
    """Return what looks after the workers, changed so that failures are noted, and wrong usage is not started again."""

    def monitored(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if result.is_failed():
            note(result.failures)
            if any(failure.exitcode == EXIT_USAGE for failure in result.failures.values()):
                agent._remaining_restarts = 0
        return result

    return monitored
