"""The run variables of each verb: what may be given with -e, its type and default. The one place that says so."""

from __future__ import annotations

from typing import Any

JOB = {"type": "str", "default": "train", "description": "Name of the job: of its unit and its run folder."}
VERBS: dict[str, dict[str, dict[str, Any]]] = {
    "site": {},
    "status": {"job": {**JOB, "default": "", "description": "Only this job; all of them by default."}},
    "logs": {
        "job": JOB,
        "lines": {"type": "int", "default": 50, "description": "Lines to show, of all hosts together."},
    },
    "stop": {"job": JOB},
    "follow": {"job": JOB},
    "diagnose": {
        "job": JOB,
        "logs": {"type": "str", "description": "Folder of logs on this machine to read instead of the hosts."},
    },
    "clean": {
        "job": {**JOB, "default": "", "description": "Only runs of this job; those of all by default."},
        "keep": {"type": "int", "description": "So many runs of each job stay, the newest ones."},
        "unfinished": {
            "type": "bool",
            "default": False,
            "description": "Also remove runs that stopped or failed, and could be resumed.",
        },
    },
    "preflight": {
        "preflight": {
            "type": "str",
            "default": "strict",
            "choices": ["warn", "strict"],
            "description": "Whether a problem makes the playbook fail.",
        },
        "master_port": {"type": "int", "default": 29400, "description": "Port of the rendezvous to try too."},
        "deep": {
            "type": "bool",
            "default": False,
            "description": "Also test collective operations over all ranks: are sums right, and how fast.",
        },
        "pairs": {"type": "bool", "default": False, "description": "deep, and between each pair of hosts."},
        "report": {"type": "str", "description": "File on this machine to write the findings to, as JSON."},
    },
    "train": {
        "job": JOB,
        "nnodes": {"type": "raw", "description": "Number of nodes, or MIN:MAX (elastic); all hosts by default."},
        "nproc_per_node": {"type": "raw", "description": "Processes on every node; by default each host's own."},
        "rdzv_backend": {
            "type": "str",
            "default": "c10d",
            "choices": ["c10d", "static"],
            "description": "How the nodes meet; static needs one port only, and cannot restart.",
        },
        "master_port": {
            "type": "int",
            "description": "Port of the rendezvous on node_rank 0; by default the first free one from 29400 on.",
        },
        "max_restarts": {
            "type": "int",
            "description": "Restarts of the workers before the job has failed; 3 by default, 0 with static.",
        },
        "workdir": {
            "type": "str",
            "description": "Project folder on this machine, copied whole but for what its .gitignore names.",
        },
        "hang_timeout": {
            "type": "int",
            "default": 120,
            "description": "Seconds without a step after which workers are started anew; 0 never (packaged trainer).",
        },
        "script": {
            "type": "str",
            "description": "Your script, on this machine (within workdir, if given); by default the packaged trainer.",
        },
        "module": {"type": "str", "description": "Instead of script: a module to run with python -m on the nodes."},
        "script_args": {"type": "list", "elements": "str", "default": [], "description": "Arguments of the program."},
        "env": {"type": "dict", "default": {}, "description": "Environment variables of the workers."},
        "env_file": {
            "type": "str",
            "description": "File of NAME=VALUE lines on this machine, also encrypted with Vault; env wins over it.",
        },
        "requirements": {
            "type": "str",
            "description": "Requirements file on this machine: packages for this job, on top of the nodes' venv.",
        },
        "preflight": {
            "type": "str",
            "default": "strict",
            "choices": ["skip", "warn", "strict"],
            "description": "Examine the hosts first, and refuse where something is wrong; warn: say it; skip: do not.",
        },
        "wait": {
            "type": "bool",
            "default": True,
            "description": "Follow to the end; false returns after the first step.",
        },
    },
}

# What a job that is launched again may have otherwise; without them it has what it had.
OPTIONS_OF_RESUME = (
    "job", "nnodes", "nproc_per_node", "master_port", "max_restarts", "hang_timeout", "env", "env_file", "wait",
    "preflight",
)  # fmt: skip
VERBS["resume"] = {
    name: {**VERBS["train"][name], **({} if name in ("job", "env", "wait", "preflight") else {"default": None})}
    for name in OPTIONS_OF_RESUME
}
VERBS["restart"] = VERBS["resume"]
