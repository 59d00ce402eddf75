"""Lines of logs, with the time, host and rank that they are of. Pure functions; standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

# What a line is of: a worker's output, its agent, the unit (systemd), the kernel, NCCL's own file, or a state of ours.
KINDS = ("worker", "agent", "unit", "kernel", "nccl", "state")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>[.,]\d{1,9})?"
DATES = tuple(
    re.compile(pattern)
    for pattern in (
        # 2026-12-01T10:00:00.123+00:00, as journalctl, dmesg and Python's logging write it
        rf"^\W{{0,2}}(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[T ]{CLOCK}\s?(?P<zone>Z|[+-]\d\d:?\d\d)?",
        # E1201 10:00:00.123456, as torch's C++ and agents write it
        rf"^(?:\[?rank\d+\]?:)?\s*\[?[EWIF](?P<month>\d\d)(?P<day>\d\d) {CLOCK}",
        # Dec  1 10:00:00, as syslog writes it
        rf"^(?P<name>{'|'.join(MONTHS)})\s+(?P<day>\d{{1,2}}) {CLOCK}",
        # [Tue Dec  1 10:00:00 2026], as dmesg -T writes it
        rf"^\[\w{{3}} (?P<name>{'|'.join(MONTHS)})\s+(?P<day>\d{{1,2}}) {CLOCK} (?P<year>\d{{4}})\]",
    )
)
RANK = re.compile(r"^\s*\[(?:rank|default)(?P<one>\d+)\]:|\[Rank (?P<two>\d+)\]|\[PG \S+ .*?Rank (?P<three>\d+)\]")
PREFIX = re.compile(r"^\s*\[(?:rank|default)\d+\]:\s?")
FROM_KERNEL = re.compile(r"^.{0,60}\bkernel: ")
FROM_SYSTEMD = re.compile(r"^.{0,60}\bsystemd\[\d+\]: ")
# Words of the log of which a failure that no rule knows may begin.
ERROR = re.compile(r"(?i)\b(error|fatal|failed|failure|exception|abort(ed)?|panic|cannot|critical)\b")


@dataclass(frozen=True)
class Source:
    """The text of one log. `until` is the unix time of its last line, where its lines have no times of their own."""

    host: str
    kind: str
    text: str
    name: str = ""
    rank: int | None = None
    until: float | None = None
    utc_offset: float = 0.0


@dataclass(frozen=True)
class Line:
    """One line; `time` is unix seconds, or None where nothing tells it; `order` is its place among all."""

    host: str
    kind: str
    text: str
    order: int
    name: str = ""
    rank: int | None = None
    time: float | None = None


def time_of(text: str, year: int, utc_offset: float) -> float | None:
    """Return the unix time that a line begins with, or None. A time without a zone is `utc_offset` seconds from UTC."""
    for pattern in DATES:
        found = pattern.match(text)
        if not found:
            continue
        parts = found.groupdict()
        month = MONTHS.index(parts["name"]) + 1 if parts.get("name") else int(parts["month"])
        fraction = float("0." + parts["fraction"][1:]) if parts["fraction"] else 0.0
        day, hour, minute, second = (int(parts[name]) for name in ("day", "hour", "minute", "second"))
        zone = _zone(parts.get("zone"), utc_offset)
        try:
            when = datetime(int(parts.get("year") or year), month, day, hour, minute, second, tzinfo=zone)
        except ValueError:  # a number that only looks like a date
            return None
        return when.timestamp() + fraction
    return None


def _zone(written: str | None, utc_offset: float) -> timezone:
    if written is None:
        return timezone(timedelta(seconds=utc_offset))
    if written == "Z":
        return timezone.utc
    sign = -1 if written[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(written[1:3]), minutes=int(written[-2:])))


def rank_of(text: str) -> int | None:
    """Return the rank that a line names as its own, or None."""
    found = RANK.search(text)
    return None if found is None else int(next(filter(None, found.groups())))


def lines_of(sources: Iterable[Source], now: float) -> list[Line]:
    """Return the lines of all sources in order of time.

    A line without a time is of the time of the one before; before the first such line, and where none has one, it is of
    the time of the source's end, which is as late as it can be. Lines of no time at all come last.
    """
    found: list[Line] = []
    for source in sources:
        year = datetime.fromtimestamp(source.until or now, timezone.utc).year
        # What an agent of ours passes on of its workers.
        passed_on = re.compile(rf"^{re.escape(source.host)}:(?P<rank>\d+): ")
        time = None
        for written in source.text.splitlines():
            time = time_of(written, year, source.utc_offset) or time
            text = DATES[0].sub("", written).strip()
            if not text:
                continue
            kind, rank = _kind_of(text, source.kind), source.rank
            worker = passed_on.match(text)
            if worker:
                kind, rank, text = "worker", int(worker["rank"]), text[worker.end() :]
            rank = rank if rank is not None else rank_of(text)
            text = PREFIX.sub("", text)
            found.append(Line(source.host, kind, text, len(found), source.name, rank, time or source.until))
    return sorted(found, key=lambda line: (line.time if line.time is not None else float("inf"), line.order))


def message_of(text: str) -> str:
    """Return the message in the text of one of torch's error files; the text where it is none."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return text
    return str(message["message"] if isinstance(message, dict) and "message" in message else message)


def _kind_of(text: str, kind: str) -> str:
    if FROM_KERNEL.match(text):
        return "kernel"
    return "unit" if FROM_SYSTEMD.match(text) else kind


def errors_in(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines that speak of an error."""
    yield from (line for line in lines if ERROR.search(line.text))
