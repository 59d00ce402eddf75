"""Action plugin, on the controller: choose the runs that go, from what all hosts answered."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import clean_plan, run_history
from ansible_collections.torchrun.cluster.plugins.module_utils.answers import of_hosts

DOCUMENTATION = r"""
module: clean_plan
short_description: Choose the runs that go, from what all hosts answered
description:
  - Runs once, after C(job_status) with C(history) has been registered everywhere.
  - Returns the fact C(cleaning), with what C(job_clean) takes, and C(host), which works on the shared storage.
options:
  answers: {description: Name of the variable that holds each host's answer., type: str, required: true}
author: [The ansible-torchrun authors]
"""


class ActionModule(ActionBase):
    """Gather the answers from hostvars and return the fact."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the fact, or `failed` with one sentence where no host has read the shared storage."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec({"answers": {"type": "str", "required": True}})
        variables = task_vars or {}
        options = variables["run_options"]
        names = variables["ansible_play_hosts_all"]
        answers = of_hosts(arguments["answers"], variables)
        jobs = {host: answer.get("jobs") for host, answer in answers.items()}
        runs = run_history.of_answers(answers)
        if runs is None:
            return {
                "failed": True,
                "msg": f"None of {', '.join(names[:3])} could read the runs on the shared storage: see that one of "
                "them is up and has it mounted.",
            }
        gone, resumable = clean_plan.choose(runs, jobs, options["keep"], options["job"], options["unfinished"])
        losing = {run["job"] for run in gone if not run_history.is_aside(run)}
        cleaning = {
            "host": next(host for host, answer in answers.items() if answer.get("runs") is not None),
            "runs": [{name: run[name] for name in ("folder", "launch")} for run in gone],
            "jobs": sorted({run["job"] for run in runs if not run_history.is_aside(run)} - losing),
            "gone": sorted(losing),
            "resumable": [run["folder"] for run in resumable],
        }
        return {"changed": False, "ansible_facts": {"cleaning": cleaning}}
