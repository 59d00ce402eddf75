"""What a person sees while following a job."""

from __future__ import annotations

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import follow_view
from ansible_collections.torchrun.cluster.plugins.module_utils.follow_view import (
    FollowView,
    exit_lines,
    failure_lines,
    failure_sentence,
)

RENDEZVOUS = {"node1": {"state": "rendezvous"}, "node2": {"state": "rendezvous"}}
HALF = {"node1": {"state": "running", "ranks": [0, 1], "world_size": 3}, "node2": {"state": "rendezvous"}}
ALL = {**HALF, "node2": {"state": "running", "ranks": [2, 2], "world_size": 3}}


def view() -> FollowView:
    return FollowView("train", "/srv/torchrun/runs/train", ["node1", "node2"], began=100.0)


@pytest.fixture(autouse=True)
def six_seconds_after_the_launch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(follow_view.time, "time", lambda: 106.0)


def look(nodes: dict, *events: dict) -> dict:
    return {"nodes": nodes, "events": list(events)}


def test_phases_are_said_once_each():
    following = view()
    assert following.update(look(RENDEZVOUS)) == ["rendezvous 0/2: waiting for node1, node2"]
    assert following.update(look(RENDEZVOUS)) == []
    assert following.update(look(HALF)) == ["rendezvous 1/2: waiting for node2"]
    assert following.update(look(ALL)) == [
        "rendezvous 2/2 6.0 s after the launch: world size 3, node1 ranks 0-1, node2 rank 2"
    ]
    assert following.update(look(ALL)) == []


def test_the_first_step_is_said_at_once_and_later_ones_every_few_seconds():
    following = view()
    following.update(look(ALL, {"event": "start", "steps": 100, "time": 104.0}))
    step = {"event": "step", "loss": 5.0, "samples_per_s": 10.0}
    assert following.update(look(ALL, {**step, "step": 1, "time": 105.0})) == ["first step 5.0 s after the launch"]
    assert following.update(look(ALL, {**step, "step": 2, "time": 106.0})) == []
    (line,) = following.update(look(ALL, {**step, "step": 10, "time": 114.0}))
    assert line.startswith("step 10/100  loss 5.000  10 samples/s  ETA 0:01:30")


def test_who_comes_back_sees_where_the_job_is():
    following = FollowView("train", "/r", ["node1", "node2"], began=None)
    (*_, line) = following.update(look(ALL, {"event": "step", "step": 70, "loss": 2.0, "time": 5.0}))
    assert line.startswith("step 70  loss 2.000")


def test_a_restart_of_workers_is_said():
    following = view()
    following.update(look(ALL))
    again = {**ALL, "node2": {**ALL["node2"], "attempt": 1}}
    assert "node2: its workers were started again (restart 1)" in following.update(look(again))


def test_the_result_has_world_size_loss_and_paths():
    following = view()
    end = {"event": "end", "step": 100, "loss": 2.0, "samples_per_s": 9.0, "report": "/r.html", "time": 1.0}
    following.update(look(ALL, {"event": "start", "steps": 100}, end))
    result = following.result(ALL)
    assert (result["world_size"], result["loss"], result["step"]) == (3, 2.0, 100)
    text = "\n".join(following.result_lines(result, "finished"))
    assert "world size 3" in text
    assert "final loss 2.000" in text
    assert "/r.html" in text
    assert "run folder   /srv/torchrun/runs/train" in text


def test_of_two_failures_the_first_is_the_cause():
    nodes = {
        "node1": {"failure": {"rank": 0, "how": "exited with 1", "message": "MemoryError", "time": 8.0}},
        "node2": {"failure": {"rank": 2, "how": "was killed by SIGKILL", "message": "", "time": 7.0}},
    }
    assert "node2: rank 2 was killed by SIGKILL." in failure_sentence("train", nodes, {"host": "node1"})


def test_a_worker_that_lost_its_peer_is_not_the_cause():
    nodes = {
        "node1": {"failure": {"rank": 0, "how": "exited with 1", "message": "Connection closed by peer", "time": 7.0}},
        "node2": {
            "failure": {"rank": 2, "how": "exited with 3", "message": "ValueError: boom", "time": 8.0, "log": "/l"}
        },
    }
    sentence = failure_sentence("train", nodes, {"host": "node1", "failure": nodes["node1"]["failure"]})
    assert sentence.startswith("The job train failed on node2: rank 2 exited with 3: ValueError: boom. Its log: /l.")


BOOM = {
    "rank": 2, "how": "exited with 3", "message": "ValueError: boom", "time": 8.0,
    "traceback": ["Traceback (most recent call last):", "    step()", "ValueError: boom"],
}  # fmt: skip


def test_a_failure_that_is_survived_is_said_with_the_state_of_its_agent():
    following = view()
    following.update(look(ALL))
    failed = {**ALL, "node2": {**ALL["node2"], "failures": [BOOM]}}
    assert following.update(look(failed)) == ["node2: rank 2 exited with 3: ValueError: boom"]
    assert following.update(look(failed)) == []
    left = {**failed, "node1": {"state": "restarting"}}
    assert "node1: its agent lost the others, and is started again" in following.update(look(left))


def test_a_failure_after_a_hang_is_said_and_the_hang_not_again():
    following = view()
    following.update(look(ALL))
    hung = {**ALL["node2"], "failures": [BOOM], "hangs": [{"time": 9.0, "silent": "rank 2 after step 4"}]}
    assert len(following.update(look({**ALL, "node2": hung}))) == 2
    again = {**hung, "failures": [BOOM, {**BOOM, "message": "KeyError: 1", "time": 12.0}]}
    assert following.update(look({**ALL, "node2": again})) == ["node2: rank 2 exited with 3: KeyError: 1"]


def test_the_first_output_of_a_foreign_program_is_said_once():
    following = view()
    following.update(look(ALL))
    assert following.update({**look(ALL), "output": ["hello"]}) == ["first output 6.0 s after the launch"]
    assert following.update({**look(ALL), "output": ["again"]}) == []


def test_after_a_failure_the_traceback_and_the_end_of_every_rank_are_shown():
    nodes = {
        "node1": {**ALL["node1"], "state": "failed", "exits": {"0": "exited with 1"}},
        "node2": {**ALL["node2"], "state": "failed", "failure": BOOM, "exits": {"2": "exited with 3"}},
    }
    assert failure_lines(nodes, {}, ["node1", "node2"]) == [
        "node2, rank 2:",
        *(f"  {line}" for line in BOOM["traceback"]),
        "exit state",
        "  node1: rank 0 exited with 1, rank 1 ended with the others",
        "  node2: rank 2 exited with 3",
    ]
    done = {host: {**node, "state": "finished"} for host, node in ALL.items()}
    assert exit_lines(done, ["node1", "node2"])[1] == "  node1: rank 0 exited with 0, rank 1 exited with 0"


def test_another_failure_of_an_earlier_attempt_is_told_too():
    last = {**BOOM, "message": "ConnectionError: no", "time": 20.0}
    nodes = {"node2": {"failure": last, "failures": [BOOM, last]}}
    sentence = failure_sentence("train", nodes, {"host": "node2"})
    assert "ConnectionError: no. Before that, on node2, rank 2 exited with 3: ValueError" in sentence
    assert "Before" not in failure_sentence("train", {"node2": {"failure": BOOM, "failures": [BOOM, BOOM]}}, {})
