"""The controller dies in the middle of its work, or works while a job trains."""

from __future__ import annotations

import cluster
import tough_job
from tough_job import OPTIONS, WORDS, events, last_step, sound, wait_for

from playbooks import KillInTheMiddle, Play

ACTIVE = "systemctl is-active torchrun@tough"


def test_a_controller_that_dies_in_the_middle_leaves_nothing_that_running_again_does_not_mend(
    play: Play, kill_in_the_middle: KillInTheMiddle, nodes: list[cluster.Node]
):
    tough_job.stop(play)
    kill_in_the_middle(
        "train.yml", *WORDS.split(), "-e", OPTIONS,
        when=lambda: any(node.run(ACTIVE, check=False).returncode == 0 for node in nodes),
    )  # fmt: skip
    tough_job.launch(play, nodes)
    assert {event["world_size"] for event in events(nodes[0], "start")} == {3}

    kill_in_the_middle(
        "playbooks/stop.yml", "-e", "job=tough",
        when=lambda: any(node.run(ACTIVE, check=False).stdout.strip() != "active" for node in nodes),
    )  # fmt: skip
    tough_job.stop(play)
    for node in nodes:
        assert node.run(ACTIVE, check=False).returncode != 0
        assert node.run("systemctl is-enabled torchrun@tough", check=False).stdout.strip() == "disabled"
        assert not node.run("pgrep -f torchrun_[t]rainer", check=False).stdout
    sound(nodes[0])


def test_site_yml_does_not_disturb_a_job_that_trains(play: Play, tough: list[cluster.Node]):
    starts = len(events(tough[0], "start"))
    reached = last_step(tough[0])
    done = play("site.yml")
    assert done.status == 0, done.output
    wait_for("more steps", lambda: last_step(tough[0]) > reached + 5)
    assert len(events(tough[0], "start")) == starts
