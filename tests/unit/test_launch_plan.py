"""What a launch does with what the members answered."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import launch_plan
from ansible_collections.torchrun.cluster.plugins.module_utils.launch_plan import LaunchError

OPTIONS = {
    "nnodes": "2", "rdzv_backend": "c10d", "master_port": 29400, "max_restarts": 3, "hang_timeout": 120,
    "script": None, "module": None,
    "script_args": [],
}  # fmt: skip


def report(**changes: Any) -> dict[str, Any]:
    values = {"python": "p", "trainer_path": "t", "running_launch": "", "description": {}, "others": {}, "gpus": 0}
    return {**values, **changes}


def specification(launch: str = "l", code: str | None = None, env: dict[str, str] | None = None, **options: Any) -> Any:
    texts = {"code": code, "env": env or {}, "requirements": options.pop("requirements", None)}
    return launch_plan.specification(launch, {**OPTIONS, **options}, texts, {"a": 2})


def test_the_same_options_are_the_same_job():
    launch_plan.check_same("train", specification(), specification())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (specification(nnodes="1"), "nnodes was 1, now 2"),
        (specification(code="changed"), "the code"),
        (specification(env={"A": "secret"}), "env"),
        (specification(requirements="numpy"), "the requirements"),
        (specification(script_args=["--lr", "1"]), "script_args"),
    ],
)
def test_other_options_for_a_running_job_are_refused_by_name(other: Any, named: str):
    with pytest.raises(LaunchError) as caught:
        launch_plan.check_same("train", other, specification())
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_token_cannot_be_read_from_the_specification():
    assert "secret" not in str(specification(env={"TOKEN": "secret"}))
    assert specification("l1", env={"T": "s"})["env"] != specification("l2", env={"T": "s"})["env"]


def test_job_yml_keeps_the_options_and_of_env_the_names_alone():
    options = {**OPTIONS, "nproc_per_node": None, "master_port": None, "requirements": "/r.txt"}
    about = launch_plan.describe(
        "l", "train", specification(env={"TOKEN": "secret"}), options,
        code="digest", env={"TOKEN": "secret"}, world_size="2", nodes=[],
    )  # fmt: skip
    assert "secret" not in str(about)
    assert (about["env_names"], about["has_requirements"], about["options"]["master_port"]) == (["TOKEN"], True, None)
    assert about["began"] > 0


def test_a_job_that_is_resumed_keeps_its_program_and_so_its_checkpoints():
    assert launch_plan.program_of({"program": {"script": "tools/train.py"}}) == {"script": "tools/train.py"}


def test_members_of_different_launches_are_refused():
    assert launch_plan.running_launch({"a": report(), "b": report(running_launch="l1")}) == "l1"
    assert launch_plan.running_launch({"a": report()}) is None
    with pytest.raises(LaunchError, match="l1, l2"):
        launch_plan.running_launch({"a": report(running_launch="l1"), "b": report(running_launch="l2")})


def test_different_venvs_are_refused_and_the_odd_host_named():
    with pytest.raises(LaunchError, match=r"^c has another PyTorch venv"):
        launch_plan.check_equal({"a": report(), "b": report(), "c": report(python="q")})


def test_busy_slots_are_refused_with_the_name_of_the_job():
    busy = report(others={"first": {"slots": 2, "gpus": None}})
    with pytest.raises(LaunchError, match="The job first uses 2 of the 2 slots of a"):
        launch_plan.gpus_for("a", busy, 1, slots=2)


def test_a_job_gets_the_gpus_that_others_left():
    shared = report(gpus=4, others={"first": {"slots": 2, "gpus": "0,2"}})
    assert launch_plan.gpus_for("a", shared, 2, slots=4) == [1, 3]
    assert launch_plan.gpus_for("a", report(gpus=4), 3, slots=4) == [0, 1, 2]
    assert launch_plan.gpus_for("a", report(gpus=4), 4, slots=4) is None
    assert launch_plan.gpus_for("a", report(), 3, slots=1) is None


def test_a_script_is_named_by_its_path_within_the_project():
    options = {"script": "/home/me/project/tools/train.py", "workdir": "/home/me/project"}
    assert launch_plan.program_of(options) == {"script": "tools/train.py"}
    assert launch_plan.program_of({**options, "workdir": None}) == {"script": "train.py"}
