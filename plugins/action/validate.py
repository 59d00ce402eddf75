"""Action plugin, on the controller: refuse wrong input before any host is contacted, and say what the cluster is."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.torchrun.cluster.plugins.module_utils import (
    code_archive,
    given_env,
    launch_plan,
    rank_plan,
    role_specs,
    run_options,
)

DOCUMENTATION = r"""
module: validate
short_description: Refuse wrong input before any host is contacted
description:
  - Checks the names and types of all variables given with C(-e), of the inventory's, and the rank plan.
  - Returns the facts C(cluster), C(run_options) and, for C(train), C(launch); see docs/architecture.md. For C(resume)
    C(recall) does the rest, when the job is known.
options:
  verb:
    description: The playbook that asks.
    type: str
    required: true
    choices: [site, train, resume, restart, follow, status, logs, stop, clean, diagnose, preflight]
author: [The ansible-torchrun authors]
"""

ROLES = Path(__file__).resolve().parents[2] / "roles"


class RefusedError(Exception):
    """The input is refused; each of `args` is a sentence."""


class ActionModule(ActionBase):
    """Run every check; fail with the sentences of the first kind of check that finds something."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the facts, or `failed` with one sentence a problem."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {"verb": {"type": "str", "required": True, "choices": list(run_options.VERBS)}}
        )
        try:
            facts = self._facts(arguments["verb"], task_vars or {})
        except RefusedError as error:
            return {"failed": True, "msg": "\n".join(str(sentence) for sentence in error.args)}
        except (
            rank_plan.PlanError,
            run_options.OptionError,
            code_archive.CodeError,
            launch_plan.LaunchError,
        ) as error:
            return {"failed": True, "msg": str(error)}
        return {"changed": False, "ansible_facts": facts}

    def _facts(self, verb: str, variables: dict[str, Any]) -> dict[str, Any]:
        hostvars = variables["hostvars"]
        names = list(variables["groups"].get("nodes", []))
        extra = load_extra_vars(self._loader)
        known = role_specs.variables(ROLES)
        self._check_limit(variables["groups"])
        self._check_names(verb, extra, known, names, hostvars)
        self._check_values(known, names, hostvars)
        options = self._options(verb)
        hosts = [rank_plan.from_inventory(name, self._host_variables(hostvars, name)) for name in names]
        nodes = rank_plan.place(hosts)
        cluster = {
            "user": self._cluster_wide("base_user", names, hostvars),
            "shared_path": run_options.checked_shared_path(self._cluster_wide("shared_storage_path", names, hostvars)),
            "nodes": [rank_plan.as_dict(node) for node in nodes],
        }
        facts: dict[str, Any] = {"cluster": cluster, "run_options": options}
        if verb == "train":
            plan = rank_plan.plan(hosts, options["nnodes"])
            launch_plan.check_all_take_part(plan, variables["ansible_play_hosts_all"])
            options["nnodes"] = plan.nnodes
            facts["launch"] = launch_plan.facts_of(plan)
            if options["workdir"]:
                code_archive.files_of(Path(options["workdir"]))
        elif options.get("nnodes") is not None:
            rank_plan.plan(hosts, options["nnodes"])
        if verb == "preflight":
            facts["preflight_token"] = uuid.uuid4().hex[:12]  # one for all hosts, another each time
        if "env" in options:
            # Tokens do not belong in facts, which -v prints: the tasks that need env read it themselves.
            options["env"] = sorted(given_env.environment_of(self))
        return facts

    @staticmethod
    def _check_limit(groups: Mapping[str, Any]) -> None:
        """Refuse a host of --limit that does not exist; Ansible itself would only warn while others match."""
        hosts = groups.get("all", [])
        for term in re.split(r"[,:]", context.CLIARGS.get("subset") or ""):
            name = term.strip().lstrip("!&")
            if not name or re.search(r"[*?\[\]~@]", name) or name in groups or name in hosts or name == "localhost":
                continue
            candidate = run_options.nearest(name, [*hosts, *groups])
            hint = f"did you mean {candidate}?" if candidate else "it is not in the inventory."
            raise RefusedError(f"--limit names `{name}`, which is no host or group: {hint}")

    @staticmethod
    def _check_names(
        verb: str, extra: Mapping[str, Any], known: Mapping[str, Any], names: list[str], hostvars: Any
    ) -> None:
        found = [run_options.unknown_option(name, verb, known) for name in extra]
        if any(found):
            raise RefusedError(*filter(None, found))
        # Roles whose prefix is a word of daily life would claim the user's own variables.
        prefixes = [f"{role}_" for role in role_specs.load(ROLES) if role not in ("base", "trainer")]
        seen: dict[str, str] = {}
        for host in names:
            for name in hostvars.raw_get(host):
                if name not in extra:
                    seen.setdefault(name, host)
        found = [
            run_options.unknown_inventory_variable(name, host, known, prefixes) for name, host in sorted(seen.items())
        ]
        if any(found):
            raise RefusedError(*filter(None, found))

    @staticmethod
    def _check_values(known: Mapping[str, Any], names: list[str], hostvars: Any) -> None:
        for host in names:
            given = [name for name in hostvars.raw_get(host) if name in known]
            if not given:
                continue
            try:
                values = {name: hostvars[host][name] for name in given}
            except AnsibleError as error:
                raise RefusedError(f"A variable of {host} cannot be evaluated: {error.message}") from error
            _, problems = role_specs.converted({name: known[name] for name in given}, values)
            if problems:
                raise RefusedError(*(f"For {host}, {problem}" for problem in problems))

    def _options(self, verb: str) -> dict[str, Any]:
        """Return the verb's options: given with -e, or by the playbook that imports this one."""
        given = given_env.options_given(self)
        wanted = {name: self._templar.template(given[name]) for name in run_options.VERBS[verb] if name in given}
        options, problems = role_specs.converted(run_options.VERBS[verb], wanted)
        if problems:
            raise RefusedError(*problems)
        return run_options.checked(verb, options, Path.cwd())

    @staticmethod
    def _host_variables(hostvars: Any, host: str) -> dict[str, Any]:
        """Return what the inventory says of a host. A job's own nproc_per_node, given with -e, does not change it."""
        manager = hostvars._variable_manager
        extra = manager._extra_vars
        manager._extra_vars = {name: value for name, value in extra.items() if name != "nproc_per_node"}
        try:
            raw = hostvars.raw_get(host)
            return {name: hostvars[host][name] for name in run_options.HOST_VARIABLES if name in raw}
        finally:
            manager._extra_vars = extra

    @staticmethod
    def _cluster_wide(name: str, hosts: list[str], hostvars: Any) -> Any:
        """Return a variable that must be the same on all hosts; the role's default where none sets it."""
        values = {host: hostvars[host][name] for host in hosts if name in hostvars.raw_get(host)}
        if not values:
            return role_specs.default(ROLES, name)
        first = next(iter(values))
        for host, value in values.items():
            if value != values[first]:
                raise RefusedError(
                    f"{name} is `{values[first]}` on {first} and `{value}` on {host}: it must be the same on all hosts."
                )
        return values[first]
