"""Action plugin, on the controller: show what all hosts answered about a job, as one text."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import job_views

DOCUMENTATION = r"""
module: job_view
short_description: Show what all hosts answered about a job, as one text
description:
  - Runs on the controller, once, after a task on every host has registered its answer.
options:
  view: {description: What to show., type: str, choices: [status, logs, stop], required: true}
  job: {description: Name of the job., type: str, default: ""}
  answers: {description: Name of the variable that holds each host's answer., type: str, required: true}
  lines: {description: Length of the view of the logs., type: int, default: 50}
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
                "view": {"type": "str", "choices": ["status", "logs", "stop"], "required": True},
                "job": {"type": "str", "default": ""},
                "answers": {"type": "str", "required": True},
                "lines": {"type": "int", "default": 50},
            }
        )
        variables = task_vars or {}
        job, name = arguments["job"], arguments["answers"]
        answers = {host: variables["hostvars"][host].get(name, {}) for host in variables["ansible_play_hosts_all"]}
        silent = [host for host, answer in answers.items() if not answer or answer.get("unreachable")]
        told = {host: answer for host, answer in answers.items() if host not in silent}
        view = arguments["view"]
        if view == "status":
            jobs = {host: told[host]["jobs"] if host in told else None for host in answers}
            problem = job_views.known_elsewhere(jobs, job) if not silent else None
            lines = job_views.status(jobs, job, time.time())
        else:
            jobs = {host: {job: True} if answer.get("known") else {} for host, answer in told.items()}
            problem = job_views.known_elsewhere(jobs, job)
            if view == "logs":
                entries = {host: [tuple(pair) for pair in answer["entries"]] for host, answer in told.items()}
                lines = job_views.merged_logs(entries, arguments["lines"])
            else:
                lines = [] if problem else job_views.stopped(job, told)
                if silent and not problem:
                    problem = (
                        f"{', '.join(silent)} could not be reached, so its agent may still run: "
                        "run stop.yml again when it answers."
                    )
        if problem:
            return {"failed": True, "msg": problem, "display": [] if view == "logs" else lines}
        return {"changed": False, "display": lines}
