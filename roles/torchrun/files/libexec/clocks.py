"""Lets nodes whose clocks differ, or are set, meet and stay together: the rendezvous judges by each node's own clock.

torch's c10d rendezvous keeps a time stamp for each member in its shared state, and compares it with the clock of
whoever looks: a member whose clock is 15 s behind is taken for dead. Here a member is alive for so long since *this*
node last saw its stamp change. Likewise an elastic rendezvous is open for so long since this node saw it open.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any


def by_own_clock(stamp: Any, seen: dict[Any, tuple[Any, float]], key: Any) -> datetime:
    """Return when this node first saw this value of a stamp, in this node's time of now; `seen` keeps it."""
    now = time.monotonic()
    if key not in seen or seen[key][0] != stamp:
        seen[key] = (stamp, now)
    return datetime.now(timezone.utc) - timedelta(seconds=now - seen[key][1])


def judging_members(sanitize: Any) -> Any:
    """Return torch's removal of members without a sign of life, changed so that it judges by this node's own clock."""

    def sanitized(holder: Any) -> None:
        stamps = holder._state.last_heartbeats
        known = holder.__dict__.get("_seen", {})
        seen = holder._seen = {node: known[node] for node in stamps if node in known}
        holder._state.last_heartbeats = {node: by_own_clock(stamp, seen, node) for node, stamp in stamps.items()}
        sanitize(holder)
        # What is shared stays each member's own stamp.
        holder._state.last_heartbeats = {node: stamps[node] for node in holder._state.last_heartbeats}

    return sanitized


def giving_signs(should_keep_alive: Any) -> Any:
    """Return torch's question whether a sign of life is due, changed so that it is too when the clock was set back."""

    def due(context: Any) -> bool:
        last = context.state.last_heartbeats.get(context.node)
        return bool(should_keep_alive(context) or (last and last > datetime.now(timezone.utc)))

    return due


def closing_in_time(join: Any) -> Any:
    """Return torch's way to join, changed so that latecomers are waited for by this node's own clock."""

    def joined(operation: Any, context: Any, deadline: float) -> Any:
        state, shared = context.state, context.state.deadline
        if shared is None:
            return join(operation, context, deadline)
        seen = operation.__dict__.setdefault("_seen", {})
        state.deadline = by_own_clock(shared, seen, "deadline") + context.settings.timeout.last_call
        try:
            return join(operation, context, deadline)
        finally:
            state.deadline = shared

    return joined


def install(rendezvous: Any) -> None:
    """Change torch's module of the c10d rendezvous."""
    holder, join = rendezvous._BackendRendezvousStateHolder, rendezvous._RendezvousJoinOp
    holder._sanitize = judging_members(holder._sanitize)
    rendezvous._should_keep_alive = giving_signs(rendezvous._should_keep_alive)
    join.__call__ = closing_in_time(join.__call__)
