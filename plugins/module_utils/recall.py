"""A job that was launched before, as its hosts and the shared storage know it: to follow it, or to resume it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils import job_env, run_options


class RecallError(Exception):
    """The job cannot be followed or resumed; the message is one sentence."""


def newest(job: str, answers: Mapping[str, Mapping[str, Any]], silent: Sequence[str]) -> Mapping[str, Any]:
    """Return the answer of the newest launch (ids begin with the time). `silent` are the hosts without an answer.

    Raises RecallError where no host knows the job.
    """
    known = [answer for answer in answers.values() if answer.get("description", {}).get("launch")]
    if known:
        return max(known, key=lambda answer: answer["description"]["launch"])
    if answers:
        raise RecallError(
            f"No host knows a job named {job}: playbooks/status.yml lists those there are, train.yml launches it."
        )
    raise RecallError(f"No answer from {', '.join(silent)}: the job {job} can be found when one of them is up.")


def follow_plan(job: str, cluster: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan that `follow` takes. Raises RecallError where the inventory lacks the host of node_rank 0."""
    members = [node["name"] for node in description["nodes"]]
    if members[0] not in [node["name"] for node in cluster["nodes"]]:
        raise RecallError(
            f"The job {job} has its node_rank 0 on {members[0]}, which is not in this inventory: use the one that it "
            "was launched with."
        )
    return {
        "job": job,
        "launch": description["launch"],
        "run_dir": f"{cluster['shared_path']}/runs/{job}",
        "user": cluster["user"],
        "members": members,
        "metrics_offset": description.get("metrics_offset", 0),
        "reports_steps": description["program"].get("module") == job_env.PACKAGED_TRAINER,
        "began": None,
    }


def resumed_options(given: Mapping[str, Any], shared_path: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the launch: what is given now, and for all else what the job had.

    `answer` is that of the newest launch. Raises RecallError for a job that has finished, OptionError for options that
    exclude one another.
    """
    job, description = given["job"], answer["description"]
    if answer["outcome"].get("status") == "finished":
        raise RecallError(
            f"The job {job} has finished (launch {description['launch']}), so there is nothing to resume: "
            "train.yml launches it anew."
        )
    if "options" not in description:
        raise RecallError(
            f"The job {job} was launched by an earlier version, which did not keep its options: launch it with "
            "train.yml and the options it had."
        )
    requirements = f"{shared_path}/runs/{job}/requirements.txt" if description["has_requirements"] else None
    return run_options.launchable(
        {
            **description["options"],
            **{name: value for name, value in given.items() if value is not None},
            **{name: description[name] for name in ("program", "code")},
            "requirements": requirements,
        }
    )


def check_secrets(job: str, names: Iterable[str], answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise RecallError where no host has brought the values of env that the job had.

    `names` are those that are not given now; `answers` are the results of job_secrets.
    """
    missing = sorted(names)
    if missing and not any(answer.get("env") is not None for answer in answers.values()):
        raise RecallError(
            f"The values of env that {job} had ({', '.join(missing)}) are only on the hosts of its last launch, and "
            "none of them has answered or keeps them: give them again with -e env_file=FILE."
        )
