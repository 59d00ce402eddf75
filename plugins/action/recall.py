"""Action plugin, on the controller: find the newest launch of a job in what all hosts answered."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import (
    given_env,
    launch_plan,
    rank_plan,
    recall,
    run_options,
)
from ansible_collections.torchrun.cluster.plugins.module_utils.answers import of_hosts

DOCUMENTATION = r"""
module: recall
short_description: Find the newest launch of a job in what all hosts answered
description:
  - Runs once, after C(job_recall) and, for C(resume), C(job_secrets) as C(__secrets), have been registered everywhere.
  - For C(follow) it returns the fact C(recalled), a plan for C(follow). For C(resume) it returns C(launch), and
    C(run_options) with what the job had where nothing else is given now.
options:
  purpose: {description: What is done with the job., type: str, required: true, choices: [follow, resume]}
  answers: {description: Name of the variable that holds each host's answer., type: str, required: true}
author: [The ansible-torchrun authors]
"""


class ActionModule(ActionBase):
    """Gather the answers from hostvars and return facts."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the facts, or `failed` with one sentence."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "purpose": {"type": "str", "required": True, "choices": ["follow", "resume"]},
                "answers": {"type": "str", "required": True},
            }
        )
        variables = task_vars or {}
        job, cluster = variables["run_options"]["job"], variables["cluster"]
        answers = self._answers(arguments["answers"], variables)
        silent = [host for host in variables["ansible_play_hosts_all"] if host not in answers]
        try:
            newest = recall.newest(job, answers, silent)
            if arguments["purpose"] == "follow":
                facts = {"recalled": recall.follow_plan(job, cluster, newest["description"])}
            else:
                facts = self._resumed(newest, variables)
        except (recall.RecallError, run_options.OptionError, rank_plan.PlanError, launch_plan.LaunchError) as error:
            return {"failed": True, "msg": str(error)}
        return {"changed": False, "ansible_facts": facts}

    @staticmethod
    def _answers(name: str, variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {
            host: answer
            for host, answer in of_hosts(name, variables).items()
            if answer and not answer.get("unreachable") and not answer.get("skipped")
        }

    def _resumed(self, newest: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        cluster, given = variables["cluster"], variables["run_options"]
        options = recall.resumed_options(given, cluster["shared_path"], newest)
        hosts = [
            rank_plan.Host(node["name"], node["address"], node["node_rank"], node["nproc_per_node"])
            for node in cluster["nodes"]
        ]
        plan = rank_plan.plan(hosts, options["nnodes"])
        launch_plan.check_all_take_part(plan, variables["ansible_play_hosts_all"])
        # A host that has failed takes part in no later play: the launch would go on without it.
        failed = [node.name for node in plan.members if node.name not in variables["ansible_play_hosts"]]
        if failed:
            raise recall.RecallError(f"{', '.join(failed)} failed above: correct that, or give fewer nnodes.")
        names = set(newest["description"]["env_names"])
        recall.check_secrets(
            given["job"], names - set(given_env.environment_of(self)), self._answers("__secrets", variables)
        )
        launch = {**launch_plan.facts_of(plan), "resumes": newest["description"]["launch"]}
        return {"run_options": {**options, "nnodes": plan.nnodes}, "launch": launch}
