"""Action plugin: follow a job until it ends, or until its first step, and say what happens meanwhile."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.torchrun.cluster.plugins.module_utils import follow_view, job_views

DOCUMENTATION = r"""
module: follow
short_description: Follow a job until it ends, or until its first step
description:
  - Delegated to the host of node_rank 0, it asks for news over one connection and prints phases and progress.
  - Ends with the result; where the job failed, with C(failure), its sentence, and C(failed_with), lines to display.
  - Ending the playbook leaves the job running.
options:
  plan: {description: The plan of the launch., type: dict, required: true}
  wait_for: {description: When to return., type: str, choices: [end, first_step], default: end}
author: [The ansible-torchrun authors]
"""

display = Display()

# A host that reboots or a network that blinks is given this long before following ends (the job goes on).
PATIENCE_SECONDS = 120.0
# So long the hosts' own reports are awaited after the outcome: the failure that came first is the cause.
REPORTS_SECONDS = 10.0


class ActionModule(ActionBase):
    """Loop over job_progress, print, decide when it is over."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the job; `failed` with one sentence when nobody can tell it."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "plan": {"type": "dict", "required": True},
                "wait_for": {"type": "str", "choices": ["end", "first_step"], "default": "end"},
            }
        )
        plan = arguments["plan"]
        self.variables = task_vars or {}
        self.question = {
            **{name: plan[name] for name in ("job", "launch", "run_dir", "user")},
            "offset": plan["metrics_offset"],
            "seen": "",
            # A program that reports no steps shows its progress in what rank 0 prints.
            "output_of": "" if plan["reports_steps"] else plan["members"][0],
            "output_file": "",
            "output_offset": 0,
        }
        view = follow_view.FollowView(plan["job"], plan["run_dir"], plan["members"], plan["began"])
        display.display(
            f"  following job {plan['job']}: Ctrl-C leaves it running, "
            f"and playbooks/follow.yml -e job={plan['job']} comes back to it"
        )
        while True:
            look = self._look()
            if "msg" in look:
                return {"failed": True, **look}
            for line in view.update(look) + [
                f"{plan['members'][0]}:0: {job_views.printable(line)}" for line in look["output"]
            ]:
                display.display(f"  {line}")
            ended = self._ended(look, view, plan)
            if ended:
                return ended
            if arguments["wait_for"] == "first_step" and self._has_begun(view, plan):
                return {
                    "changed": False,
                    "display": [
                        f"job {plan['job']} runs; follow it with: "
                        f"ansible-playbook playbooks/follow.yml -e job={plan['job']}"
                    ],
                }

    def _look(self) -> dict[str, Any]:
        """Return news of the job, or `msg` when its host has not answered for long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = self._execute_module(
                    module_name="torchrun.cluster.job_progress", module_args=self.question, task_vars=self.variables
                )
            except AnsibleConnectionFailure as error:
                if time.monotonic() >= deadline:
                    return {
                        "msg": f"The host of node_rank 0 has not answered for {PATIENCE_SECONDS:.0f} s ({error}). "
                        "The job may go on: `ansible-playbook playbooks/status.yml` tells."
                    }
                display.display("  the host of node_rank 0 does not answer; trying again")
                self._connection.reset()
                continue
            if answer.get("failed"):
                return {"msg": answer.get("msg", "The progress of the job cannot be read.")}
            self.question["seen"] = answer["digest"]
            self.question.update({name: answer[name] for name in ("offset", "output_file", "output_offset")})
            return answer

    @staticmethod
    def _has_begun(view: follow_view.FollowView, plan: dict[str, Any]) -> bool:
        # Only the packaged trainer is known to report its steps.
        return view.first_step_at is not None or (view.everyone_runs and not plan["reports_steps"])

    def _ended(self, look: dict[str, Any], view: follow_view.FollowView, plan: dict[str, Any]) -> dict[str, Any] | None:
        """Return the task's result when the job is over, else None."""
        job, outcome, unit = plan["job"], look["outcome"], look["unit"]
        if outcome:
            look = self._settled(look, view, plan)
            if outcome["status"] == "failed":
                # Told by the task that finds out why.
                return {
                    "changed": False,
                    "failure": follow_view.failure_sentence(job, look["nodes"], outcome),
                    "failed_with": [
                        *follow_view.failure_lines(look["nodes"], outcome, plan["members"]),
                        f"run folder   {plan['run_dir']}",
                    ],
                }
            result = view.result(look["nodes"])
            ends = follow_view.exit_lines(look["nodes"], plan["members"])
            return {
                "changed": False,
                "result": result,
                "display": [*view.result_lines(result, outcome["status"]), *ends],
            }
        if unit.get("ActiveState") == "failed":
            return {
                "failed": True,
                "msg": f"The agent of {job} on {plan['members'][0]} failed ({unit.get('Result')}) and is not started "
                f"again: read `ansible-playbook playbooks/logs.yml -e job={job}`.",
            }
        if unit.get("ActiveState") == "inactive":
            return {
                "failed": True,
                "msg": f"The agent of {job} on {plan['members'][0]} does not run any more, and the job has not ended: "
                f"it was stopped there by hand. `ansible-playbook playbooks/resume.yml -e job={job}` starts it again.",
            }
        return None

    def _settled(self, look: dict[str, Any], view: follow_view.FollowView, plan: dict[str, Any]) -> dict[str, Any]:
        """Return the look in which every host has reported how it ended, or the last one after a short wait."""
        deadline = time.monotonic() + REPORTS_SECONDS
        while time.monotonic() < deadline:
            # The last report of a host, which comes when its unit has ended, has the exit status.
            if all("exit_status" in look["nodes"].get(host, {}) for host in plan["members"]):
                break
            self.question["wait"] = REPORTS_SECONDS
            fresh = self._look()
            if "msg" in fresh:
                break
            look = fresh
            view.update(look)
        return look
