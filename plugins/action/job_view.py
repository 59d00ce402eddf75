"""Action plugin, on the controller: show what all hosts answered about a job, as one text."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import clean_plan, job_views, run_history
from ansible_collections.torchrun.cluster.plugins.module_utils.answers import of_hosts

DOCUMENTATION = r"""
module: job_view
short_description: Show what all hosts answered about a job, as one text
description:
  - Runs on the controller, once, after a task on every host has registered its answer.
options:
  view: {description: What to show., type: str, choices: [status, logs, stop, clean], required: true}
  job: {description: Name of the job., type: str, default: ""}
  answers: {description: Name of the variable that holds each host's answer., type: str, required: true}
  verb: {description: What a stop is a part of., type: str, choices: [stop, restart], default: stop}
  lines: {description: Length of the view of the logs., type: int, default: 50}
  resumable: {description: Runs that C(clean) leaves because they can be resumed., type: list, default: []}
author: [The ansible-torchrun authors]
"""


class ActionModule(ActionBase):
    """Gather the answers from hostvars and return the lines to display."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `display`: the lines that the callback prints."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "view": {"type": "str", "choices": ["status", "logs", "stop", "clean"], "required": True},
                "job": {"type": "str", "default": ""},
                "answers": {"type": "str", "required": True},
                "verb": {"type": "str", "choices": ["stop", "restart"], "default": "stop"},
                "lines": {"type": "int", "default": 50},
                "resumable": {"type": "list", "elements": "str", "default": []},
            }
        )
        variables = task_vars or {}
        job, name = arguments["job"], arguments["answers"]
        answered = of_hosts(name, variables)
        silent = [
            host
            for host, answer in answered.items()
            if not answer or answer.get("unreachable") or answer.get("skipped")
        ]
        told = {host: answer for host, answer in answered.items() if host not in silent}
        view = arguments["view"]
        if view == "status":
            jobs = {host: told[host]["jobs"] if host in told else None for host in answered}
            runs = run_history.of_answers(told)
            known: dict[str, Any] = {**jobs, "the shared storage": {run["job"]: {} for run in runs or []}}
            problem = job_views.known_elsewhere(known, job) if not silent else None
            over = set() if runs is None else run_history.over(runs, jobs)
            lines = job_views.status(jobs, job, time.time(), over)
            lines += run_history.lines(runs or [], jobs, time.time())
        elif view == "clean":
            problem = None
            removed = {host: told[host].get("removed", []) for host in told}
            lines = clean_plan.lines(removed, arguments["resumable"], self._task.check_mode)
            lines += [f"No answer from {', '.join(silent)}: what is left over there stays."] if silent else []
        else:
            jobs = {host: {job: True} if answer.get("known") else {} for host, answer in told.items()}
            problem = job_views.known_elsewhere(jobs, job)
            if view == "logs":
                entries = {host: [tuple(pair) for pair in answer["entries"]] for host, answer in told.items()}
                lines = job_views.merged_logs(entries, arguments["lines"])
            else:
                lines = [] if problem else job_views.stopped(job, told)
                if silent and not problem:
                    ranked = [node["name"] for node in variables["cluster"]["nodes"]]
                    problem = job_views.unreached(job, silent, ranked, arguments["verb"])
        if problem:
            return {"failed": True, "msg": problem, "display": [] if view == "logs" else lines}
        return {"changed": False, "display": lines}
