"""A job that was launched before: which launch it is, and what it had."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import given_env, job_env, recall, run_options
from ansible_collections.torchrun.cluster.plugins.module_utils.recall import RecallError

CLUSTER = {"shared_path": "/s", "user": "trainer", "nodes": [{"name": "a"}, {"name": "b"}]}
HAD = {
    "nnodes": "2", "nproc_per_node": None, "rdzv_backend": "c10d", "master_port": None, "max_restarts": 3,
    "hang_timeout": 120, "script_args": ["--lr", "1"],
}  # fmt: skip
GIVEN = {"job": "train", "nnodes": None, "max_restarts": None, "master_port": None, "env": [], "wait": True}


def answer(launch: str = "20261201T120000-aa", outcome: str = "", **changes: Any) -> dict[str, Any]:
    description = {
        "launch": launch, "nodes": [{"name": "a"}, {"name": "b"}], "program": {"script": "tools/t.py"}, "options": HAD,
        "code": "digest", "env_names": ["TOKEN"], "has_requirements": False, "metrics_offset": 7, **changes,
    }  # fmt: skip
    return {"description": description, "outcome": {"status": outcome} if outcome else {}, "running_launch": ""}


def test_of_what_hosts_know_the_newest_launch_counts():
    answers = {"a": answer(), "b": answer("20261202T120000-aa"), "c": {"description": {}}}
    assert recall.newest("train", answers, [])["description"]["launch"] == "20261202T120000-aa"


def test_a_job_that_nobody_knows_is_one_sentence():
    with pytest.raises(RecallError, match="No host knows a job named trian"):
        recall.newest("trian", {"a": {"description": {}, "outcome": {}}}, [])
    with pytest.raises(RecallError, match="No answer from a, b"):
        recall.newest("train", {}, ["a", "b"])


def test_a_job_is_followed_from_the_host_of_node_rank_0():
    plan = recall.follow_plan("train", CLUSTER, answer()["description"])
    assert (plan["run_dir"], plan["members"], plan["metrics_offset"]) == ("/s/runs/train", ["a", "b"], 7)
    assert plan["reports_steps"] is False
    trainer = answer(program={"module": job_env.PACKAGED_TRAINER})["description"]
    assert recall.follow_plan("train", CLUSTER, trainer)["reports_steps"] is True
    with pytest.raises(RecallError, match="node_rank 0 on a, which is not in this inventory"):
        recall.follow_plan("train", {**CLUSTER, "nodes": [{"name": "b"}]}, answer()["description"])


def test_what_is_not_given_is_as_it_was():
    options = recall.resumed_options(GIVEN, "/s", answer(outcome="stopped"))
    assert {name: options[name] for name in HAD} == HAD
    assert (options["program"], options["code"], options["requirements"]) == ({"script": "tools/t.py"}, "digest", None)
    assert recall.resumed_options(GIVEN, "/s", answer(has_requirements=True))["requirements"] == (
        "/s/runs/train/requirements.txt"
    )


def test_what_is_given_counts_and_is_checked_with_the_rest():
    options = recall.resumed_options({**GIVEN, "nnodes": "1", "max_restarts": 0, "wait": False}, "/s", answer())
    assert (options["nnodes"], options["max_restarts"], options["wait"]) == ("1", 0, False)
    static = answer(options={**HAD, "rdzv_backend": "static", "max_restarts": 0})
    with pytest.raises(run_options.OptionError, match="max_restarts is 1"):
        recall.resumed_options({**GIVEN, "max_restarts": 1}, "/s", static)


@pytest.mark.parametrize(
    ("known", "words"),
    [(answer(outcome="finished"), "has finished"), ({**answer(), "description": {"launch": "l"}}, "earlier version")],
)
def test_what_cannot_be_resumed_is_one_sentence(known: dict[str, Any], words: str):
    with pytest.raises(RecallError, match=words):
        recall.resumed_options(GIVEN, "/s", known)


def test_secrets_that_no_host_has_must_be_given_again():
    recall.check_secrets("train", ["TOKEN"], {"a": {"requirements": ""}, "b": {"env": {"TOKEN": "x"}}})
    recall.check_secrets("train", [], {})
    with pytest.raises(RecallError, match="TOKEN") as caught:
        recall.check_secrets("train", ["TOKEN"], {"a": {"requirements": ""}})
    assert "env_file" in str(caught.value)


def test_variables_of_a_job_are_found_again_as_they_were_given():
    given = {"TOKEN": 'a "b" $c', "PYTHONPATH": "/mine:/other", "OMP_NUM_THREADS": "3"}
    job = job_env.Job(
        name="train", launch="l", nnodes="1", world_size="2", rdzv_backend="c10d", master_addr="10.0.0.1",
        master_port=29400, max_restarts=3, hang_timeout=120, run_dir="/s/runs/train", data_dir="/s/data",
        user="trainer", env=given,
    )  # fmt: skip
    for trainer in ("/opt/torchrun/trainer/0123", None):
        member = job_env.Member("a", "trn-0000-a", 0, 2, "eth0", 4, "/python", trainer)
        variables = job_env.environment(job, member)
        assert job_env.given(variables, list(given)) == given


def test_secrets_are_brought_to_a_job_that_is_resumed_only():
    hosts = {"a": {}, "b": {"__secrets": {"requirements": ""}}, "c": {"__secrets": {"env": {"TOKEN": "x"}}}}
    variables = {"hostvars": hosts, "groups": {"nodes": list(hosts)}, "launch": {"resumes": "l"}}
    assert given_env.earlier_of(variables) == {"TOKEN": "x"}
    assert given_env.earlier_of({**variables, "launch": {}}) == {}
