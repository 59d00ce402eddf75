"""Action plugin: give this host its environment of the job, and start its agent."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import given_env, job_env

DOCUMENTATION = r"""
module: start_agent
short_description: Give this host its environment of the job, and start its agent
description:
  - Makes the environment file on the controller and hands it to C(job_start), which never shows it.
options:
  plan: {description: The plan of the launch., type: dict, required: true}
author: [The ansible-torchrun authors]
"""


class ActionModule(ActionBase):
    """Compute the environment file of one host."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of job_start."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec({"plan": {"type": "dict", "required": True}})
        plan, options = arguments["plan"], variables["run_options"]
        job = job_env.Job(
            name=plan["job"],
            **{
                name: plan[name]
                for name in (
                    "launch",
                    "nnodes",
                    "world_size",
                    "master_addr",
                    "master_port",
                    "run_dir",
                    "data_dir",
                    "user",
                )
            },
            **{name: options[name] for name in ("rdzv_backend", "max_restarts", "hang_timeout", "script_args")},
            script=plan["program"].get("script"),
            module=plan["program"].get("module"),
            env=given_env.environment_of(self, given_env.earlier_of(variables)),
        )
        host = dict(plan["hosts"][variables["inventory_hostname"]])
        host_slots = host.pop("slots")
        member = job_env.Member(**host)
        return self._execute_module(
            module_name="torchrun.cluster.job_start",
            module_args={
                "job": job.name,
                "launch": job.launch,
                "slots": host_slots,
                "peers": {
                    name: peer for name, peer in plan["listeners"].items() if name != variables["inventory_hostname"]
                },
                "environment_file": job_env.environment_file(job_env.environment(job, member)),
            },
            task_vars=variables,
        )
