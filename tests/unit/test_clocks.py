"""The rendezvous does without equal clocks. Torch's own classes run here, on nodes whose clocks the tests set."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torchs

sys.path.insert(0, str(Path(__file__).parents[2] / "roles/torchrun/files/libexec"))

import clocks

# As in torch by default: a sign of life every 5 s, dead after three without one.
SETTINGS = torchs.RendezvousSettings(
    run_id="job",
    min_nodes=2,
    max_nodes=3,
    timeout=torchs.RendezvousTimeout(last_call=timedelta(seconds=30)),
    keep_alive_interval=timedelta(seconds=5),
    keep_alive_max_attempt=3,
)


class Time:
    """The one time that passes, and the clock of the node that is looking."""

    def __init__(self) -> None:
        self.passed, self.ahead = 1000.0, 0.0

    def monotonic(self) -> float:
        return self.passed

    def now(self, zone: timezone) -> datetime:
        return datetime(2026, 1, 1, tzinfo=zone) + timedelta(seconds=self.passed + self.ahead)


class Backend(torchs.RendezvousBackend):
    """What all nodes share."""

    name = "memory"

    def __init__(self) -> None:
        self.bits, self.token = None, 0

    def get_state(self) -> Any:
        return (self.bits, self.token) if self.bits else None

    def set_state(self, state: bytes, token: Any = None) -> Any:
        taken = token == self.token or self.bits is None
        if taken:
            self.bits, self.token = state, self.token + 1
        return self.bits, self.token, taken


class Node:
    """A member of the rendezvous, with a clock that is so many seconds ahead."""

    def __init__(self, backend: Backend, name: str, time: Time, ahead: float = 0.0) -> None:
        self.time, self.ahead = time, ahead
        self.description = torchs._NodeDesc(name, 1, 0)
        self.holder = torchs._BackendRendezvousStateHolder(backend, SETTINGS, cache_duration=0)
        self.executor = torchs._DistributedRendezvousOpExecutor(self.description, self.holder, SETTINGS)
        self.join = torchs._RendezvousJoinOp()

    def look(self) -> Any:
        self.time.ahead = self.ahead
        self.holder.sync()
        return torchs._RendezvousContext(self.description, self.holder.state, SETTINGS)

    def wants(self) -> Any:
        """Return what it would do next to join."""
        return self.join(self.look(), self.time.passed + 600)

    def joins(self) -> None:
        self.look()
        self.executor._state = self.holder.state
        self.executor._add_to_participants()
        self.holder.mark_dirty()
        self.holder.sync()

    def keeps_alive(self) -> None:
        """Do what torch's timer does every 5 s."""
        self.time.ahead = self.ahead
        self.executor.run(torchs._RendezvousKeepAliveOp(), self.time.passed + 600)

    def members(self) -> set[str]:
        return {node.addr for node in self.look().state.participants}


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Time that the test lets pass, in torch with the changes of the agent."""
    passing = Time()
    monkeypatch.setattr(torchs, "datetime", passing)
    monkeypatch.setattr(torchs, "time", passing)
    monkeypatch.setattr(clocks, "time", passing)
    monkeypatch.setattr(clocks, "datetime", passing)
    for owner, name in (
        (torchs._BackendRendezvousStateHolder, "_sanitize"),
        (torchs._RendezvousJoinOp, "__call__"),
        (torchs, "_should_keep_alive"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is undone
    clocks.install(torchs)
    return passing


def let_pass(seconds: int, time: Time, *alive: Node) -> None:
    """Let time pass, in which some nodes give signs of life as torch's timer lets them."""
    for _ in range(0, seconds, 5):
        time.passed += 5
        for node in alive:
            node.keeps_alive()


@pytest.mark.parametrize("ahead", [0.0, 60.0, -60.0, 86400.0, -86400.0])
def test_nodes_with_other_clocks_stay_together(time: Time, ahead: float):
    backend = Backend()
    here, there = Node(backend, "here", time), Node(backend, "there", time, ahead)
    here.joins()
    there.joins()
    let_pass(60, time, here, there)
    assert here.members() == there.members() == {"here", "there"}


@pytest.mark.parametrize("step", [60.0, -60.0])
def test_a_clock_that_is_set_ends_no_membership(time: Time, step: float):
    backend = Backend()
    here, there = Node(backend, "here", time), Node(backend, "there", time)
    here.joins()
    there.joins()
    let_pass(20, time, here, there)
    there.ahead = step
    let_pass(60, time, here, there)
    assert here.members() == there.members() == {"here", "there"}


@pytest.mark.parametrize("ahead", [0.0, 60.0, -60.0])
def test_a_member_that_gives_no_sign_of_life_is_dead_after_15_seconds(time: Time, ahead: float):
    backend = Backend()
    here, there = Node(backend, "here", time), Node(backend, "there", time, ahead)
    here.joins()
    there.joins()
    assert here.members() == {"here", "there"}
    let_pass(15, time, here)
    assert here.members() == {"here", "there"}
    let_pass(5, time, here)
    assert here.members() == {"here"}


@pytest.mark.parametrize("ahead", [0.0, 60.0, -60.0])
def test_what_is_shared_is_each_members_own_stamp(time: Time, ahead: float):
    backend = Backend()
    here, there = Node(backend, "here", time), Node(backend, "there", time, ahead)
    here.joins()
    there.joins()
    stamp = there.look().state.last_heartbeats[there.description]
    let_pass(5, time, here)
    assert there.look().state.last_heartbeats[there.description] == stamp


@pytest.mark.parametrize("ahead", [0.0, 60.0, -60.0])
def test_an_elastic_rendezvous_waits_for_latecomers_as_long_on_every_clock(time: Time, ahead: float):
    backend = Backend()
    here, there = Node(backend, "here", time), Node(backend, "there", time, ahead)
    here.joins()
    there.joins()  # the second, which makes a quorum: it sets the deadline, by its clock
    assert here.wants() is not torchs._Action.MARK_RENDEZVOUS_COMPLETE
    let_pass(30, time, here, there)
    assert here.wants() is not torchs._Action.MARK_RENDEZVOUS_COMPLETE
    let_pass(5, time, here, there)
    assert here.wants() is torchs._Action.MARK_RENDEZVOUS_COMPLETE
