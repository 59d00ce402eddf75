"""The views of status, logs and stop."""

from __future__ import annotations

from ansible_collections.torchrun.cluster.plugins.module_utils import job_views


def entry(node_rank: int, **changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "state": "running",
        "launch": "20261201T120000-aa",
        "node_rank": node_rank,
        "ranks": [0, 1] if node_rank == 0 else [2, 2],
        "since": 1000.0,
        "restarts": 0,
        "step": 120,
        "steps": 300,
    }
    return {**values, **changes}


def test_status_is_one_table_a_job_in_node_rank_order():
    hosts = {"b": {"train": entry(1)}, "a": {"train": entry(0), "other": entry(0, step=None)}}
    lines = job_views.status(hosts, "", now=1061.0)
    table = lines[lines.index("job train (launch 20261201T120000-aa)") :]
    assert table[1].split() == ["host", "state", "node_rank", "ranks", "step", "since"]
    assert table[2].split() == ["a", "running", "0", "0-1", "120/300", "0:01:01", "ago"]
    assert table[3].split() == ["b", "running", "1", "2", "120/300", "0:01:01", "ago"]
    assert any(line.startswith("job other") for line in lines)


def test_status_says_which_host_did_not_answer():
    lines = job_views.status({"a": {"train": entry(0)}, "b": None}, "train", now=1000.0)
    assert any("b" in line and "no answer" in line for line in lines)


def test_a_host_left_over_from_an_earlier_launch_is_not_shown():
    hosts = {"a": {"train": entry(0)}, "b": {"train": entry(1, launch="20251201T120000-aa")}}
    assert not any(line.split()[:1] == ["b"] for line in job_views.status(hosts, "", now=0.0))


def test_a_job_that_no_host_knows_is_one_sentence():
    assert "trian" in (job_views.known_elsewhere({"a": {"train": {}}}, "trian") or "")
    assert job_views.known_elsewhere({"a": {"train": {}}}, "train") is None


def test_logs_are_merged_by_time_and_carry_host_and_rank():
    entries = {"node1": [(1, "node1:0: one"), (3, "Started")], "node10": [(2, "node10:2: two")]}
    assert job_views.merged_logs(entries, 50) == ["node1:0: one", "node10:2: two", "node1: Started"]
    assert job_views.merged_logs(entries, 1) == ["node1: Started"]


def test_lines_of_one_moment_keep_their_order():
    entries = {"node2": [(1, "b"), (1, "a")], "node1": [(1, "d"), (1, "c")]}
    assert job_views.merged_logs(entries, 50) == ["node2: b", "node2: a", "node1: d", "node1: c"]


def test_a_program_does_not_steer_the_terminal():
    entries = {"node1": [(1, "node1:0: a\x1b[31m\x07b\x0cc\td")]}
    assert job_views.merged_logs(entries, 50) == [r"node1:0: a\x1b[31m\x07b\x0cc" + "\td"]


def test_a_stop_says_at_which_step_and_how_to_go_on():
    lines = job_views.stopped("train", {"a": {"changed": True, "step": 40}, "b": {"changed": True}})
    assert "at step 40 on a, b" in lines[0]
    assert "-e job=train" in lines[1]
    assert "nothing to stop" in job_views.stopped("train", {"a": {"changed": False}})[0]


def test_a_restart_that_misses_a_host_says_how_to_go_on_without_it():
    said = job_views.unreached("train", ["node3"], ["node1", "node2", "node3"], "restart")
    assert "The job train is stopped elsewhere, but was not launched again: node3 could not be reached" in said
    assert "Run restart.yml again when it answers" in said
    assert said.endswith("playbooks/resume.yml -e job=train -e nnodes=2.")


def test_a_restart_that_misses_the_first_host_knows_no_way_without_it():
    said = job_views.unreached("train", ["node1", "node2"], ["node1", "node2"], "restart")
    assert "nnodes" not in said
    assert "their agents may still run" in said
    assert "when they answer" in said


def test_a_stop_that_misses_a_host_is_to_be_repeated():
    said = job_views.unreached("train", ["node2"], ["node1", "node2"], "stop")
    assert said == "node2 could not be reached, so its agent may still run: run stop.yml again when it answers."
