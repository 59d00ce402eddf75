"""Action plugin: plan a launch from what every member answered, and put plan and code on the shared storage."""

from __future__ import annotations

import hashlib
import io
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import (
    code_archive,
    given_env,
    job_env,
    launch_plan,
    rank_plan,
)
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import checks, findings

DOCUMENTATION = r"""
module: plan_launch
short_description: Plan a launch from what every member answered, and put plan and code on the shared storage
description:
  - Runs once, delegated to the host of node_rank 0, after C(job_preflight) has registered C(__preflight) everywhere.
  - A job that runs already with the same options is not planned anew; with other options it is refused.
options:
  requirements: {description: Text of the job's own requirements; empty for none., type: str, required: true}
author: [The ansible-torchrun authors]
"""


class ActionModule(ActionBase):
    """Decide on the controller, then run job_prepare on the host of node_rank 0."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `plan`, which start_agent and follow take; `failed` with one sentence when the launch is refused."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            return self._plan(variables)
        except (launch_plan.LaunchError, rank_plan.PlanError, code_archive.CodeError) as error:
            return {"failed": True, "msg": str(error)}

    def _plan(self, variables: dict[str, Any]) -> dict[str, Any]:
        begun = time.time()
        cluster, launch, options = (variables[name] for name in ("cluster", "launch", "run_options"))
        hostvars = variables["hostvars"]
        reports = {host: hostvars[host]["__preflight"]["report"] for host in launch["members"]}
        launch_plan.check_equal(reports)
        placed = place(cluster, options, reports)
        nproc = {node.name: int(node.nproc_per_node or 1) for node in placed.members}
        gpus = {
            node.name: launch_plan.gpus_for(
                node.name, reports[node.name], nproc[node.name], slots(cluster, node.name, reports[node.name])
            )
            for node in placed.members
        }
        env, job = given_env.environment_of(self, given_env.earlier_of(variables)), options["job"]
        # A job that is resumed runs the code that is in its run folder.
        archive = None if launch.get("resumes") else self._archive(options)
        texts = {
            "code": options["code"] if launch.get("resumes") else archive and hashlib.sha256(archive).hexdigest(),
            "env": env,
            "requirements": self._task.args["requirements"] or None,
        }
        master_port = reports[placed.master.name]["master_port"]
        running = launch_plan.running_launch(reports)
        # Of a job that runs nothing stands in the way any more, and what it uses is not missing.
        warnings = [] if running else examined(cluster, placed, nproc, reports, options["preflight"])
        identity = running or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:4]}"
        specification = launch_plan.specification(identity, {**options, "master_port": master_port}, texts, nproc)
        run_dir = f"{cluster['shared_path']}/runs/{job}"
        plan = {
            "job": job,
            "launch": identity,
            "run_dir": run_dir,
            "data_dir": f"{cluster['shared_path']}/data",
            "user": cluster["user"],
            "nnodes": placed.nnodes,
            "world_size": placed.world_size,
            "master_addr": placed.master.address,
            "master_port": master_port,
            "members": [node.name for node in placed.members],
            "hosts": {
                node.name: {
                    "host": node.name,
                    "alias": node.alias,
                    "node_rank": node.node_rank,
                    "nproc_per_node": nproc[node.name],
                    "gpus": gpus[node.name],
                    "slots": slots(cluster, node.name, reports[node.name]),
                    **{name: reports[node.name][name] for name in ("interface", "cpus", "trainer_path")},
                    # With packages of its own the job has an interpreter of its own.
                    "python": hostvars[node.name].get("__layer", {}).get("python") or reports[node.name]["python"],
                }
                for node in placed.members
            },
            "listeners": {
                node.name: {"address": node.address, "ports": reports[node.name]["examination"]["ports"]}
                for node in placed.members
                if reports[node.name]["examination"] and reports[node.name]["examination"]["ports"]
            },
            "program": specification["program"],
            "reports_steps": specification["program"].get("module") == job_env.PACKAGED_TRAINER,
            "began": None if running else time.time(),
            "runs_already": bool(running),
        }
        if running:
            description = reports[placed.master.name]["description"]
            launch_plan.check_same(job, description.get("specification", {}), specification)
            return {
                "changed": False,
                "plan": {**plan, "metrics_offset": description.get("metrics_offset", 0)},
                "display": [f"  job {job} already runs (launch {identity}): nothing to change"],
            }
        nodes = [
            {**rank_plan.as_dict(node), "ranks": [first, first + count - 1]}
            for node, first, count in zip(placed.members, placed.first_ranks, placed.processes)
        ]
        master = plan["hosts"][placed.master.name]
        (kind, program), *_ = specification["program"].items()
        prepared = self._execute_module(
            module_name="torchrun.cluster.job_prepare",
            module_args={
                "run_dir": run_dir,
                "user": cluster["user"],
                "expected_launch": reports[placed.master.name]["description"].get("launch", ""),
                "description": launch_plan.describe(
                    identity,
                    job,
                    specification,
                    options,
                    code=texts["code"],
                    env=env,
                    world_size=placed.world_size,
                    nodes=nodes,
                ),
                "requirements": texts["requirements"],
                "archive": self._sent(archive),
                "python": master["python"],
                "python_path": ":".join(filter(None, (env.get("PYTHONPATH"), master["trainer_path"]))),
                "kind": kind,
                "program": program,
            },
            task_vars=variables,
        )
        if prepared.get("failed"):
            return prepared
        took = f"checked in {begun - launch['validated']:.1f} s, planned and copied in {time.time() - begun:.1f} s"
        display = [*warnings, f"  launch {identity}: {placed.nnodes} nodes, world size {placed.world_size} ({took})"]
        if prepared["moved_to"]:
            display.append(f"  the finished run of before is now in {prepared['moved_to']}")
        if prepared["continues"]:
            display.append(f"  the run in {run_dir} goes on from its last checkpoint, if it has one")
        return {
            "changed": True,
            "plan": {**plan, "metrics_offset": prepared["metrics_offset"]},
            "display": display,
        }

    @staticmethod
    def _archive(options: Mapping[str, Any]) -> bytes | None:
        """Return the user's code, or None where the job runs what is on the nodes."""
        if options["workdir"]:
            found = code_archive.files_of(Path(options["workdir"]))
        elif options["script"]:
            found = code_archive.of_script(Path(options["script"]))
        else:
            return None
        file = io.BytesIO()
        code_archive.write(found, file)
        return file.getvalue()

    def _sent(self, archive: bytes | None) -> str | None:
        """Return the path of the archive on the host of node_rank 0; it goes with Ansible's temporary folder there."""
        if archive is None or self._task.check_mode:
            return None
        remote = self._connection._shell.join_path(self._make_tmp_path(), "code.tar.gz")
        with tempfile.NamedTemporaryFile(prefix="torchrun-code-") as file:
            file.write(archive)
            file.flush()
            self._transfer_file(file.name, remote)
        return str(remote)


def examined(
    cluster: Mapping[str, Any],
    placed: rank_plan.Plan,
    nproc: Mapping[str, int],
    reports: Mapping[str, Mapping[str, Any]],
    mode: str,
) -> list[str]:
    """Judge what the members said of themselves; return lines for warnings. Raises LaunchError for an error."""
    if mode == "skip":
        return []
    nodes = [{**rank_plan.as_dict(node), "nproc_per_node": nproc[node.name]} for node in placed.members]
    found = checks.examine(
        findings.Cluster(nodes, cluster["shared_path"], cluster["user"]),
        {host: report["examination"] for host, report in reports.items()},
    )
    for finding in found:
        if finding.severity == "error" and mode == "strict":
            raise launch_plan.LaunchError(
                f"{finding.what}: {finding.why}. To mend it: {finding.do}. -e preflight=warn launches all the same."
            )
    return [f"  warning: {finding.what}; {finding.do}" for finding in found]


def place(
    cluster: Mapping[str, Any], options: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]]
) -> rank_plan.Plan:
    """Return the rank plan with the GPUs that the members counted."""
    hosts = [
        rank_plan.Host(
            node["name"],
            node["address"],
            node["node_rank"],
            node["nproc_per_node"],
            reports[node["name"]]["gpus"] if node["name"] in reports else None,
        )
        for node in cluster["nodes"]
    ]
    return rank_plan.plan(hosts, options["nnodes"], options["nproc_per_node"])


def slots(cluster: Mapping[str, Any], host: str, report: Mapping[str, Any]) -> int:
    """Return how many processes of all jobs together a host takes: its GPUs, else what the inventory gives it."""
    if report["gpus"]:
        return int(report["gpus"])
    nproc = next(node["nproc_per_node"] for node in cluster["nodes"] if node["name"] == host)
    return 1 if nproc == "auto" else int(nproc)
