"""The environment of one job on one host: everything that torchrun, the agent and the workers are told.

Pure functions. Why each setting is there: docs/architecture.md, "Launching".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LIBEXEC = "/opt/torchrun/libexec"
PACKAGED_TRAINER = "torchrun_trainer"
TRAINERS = "/opt/torchrun/trainer/"


class EnvironmentValueError(ValueError):
    """A value that a systemd environment file cannot carry; the message is one sentence."""


@dataclass(frozen=True)
class Job:
    """What is the same on every host of a launch.

    `nnodes` and `world_size` are torchrun's strings: `N`, or `MIN:MAX` for an elastic job. `addresses` of the
    rendezvous are those of node_rank 0. `code` is the script's file name in the run folder, or None for a module.
    """

    name: str
    launch: str
    nnodes: str
    world_size: str
    rdzv_backend: str
    master_addr: str
    master_port: int
    max_restarts: int
    hang_timeout: int
    run_dir: str
    data_dir: str
    user: str
    script: str | None = None
    module: str | None = None
    script_args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """What differs between the hosts of a launch. `gpus` is a list of device indices, or None for all (or no) GPUs."""

    host: str
    alias: str
    node_rank: int
    nproc_per_node: int
    interface: str
    cpus: int
    python: str
    trainer_path: str | None = None
    gpus: list[int] | None = None


def program(job: Job) -> list[str]:
    """Return what the guard becomes: `script.py args` or `-m module args`."""
    if job.script:
        return [f"{job.run_dir}/code/{job.script}", *job.script_args]
    return ["-m", job.module or PACKAGED_TRAINER, *job.script_args]


def rendezvous(job: Job, member: Member) -> dict[str, str]:
    """Return torchrun's rendezvous settings, as the PET_* variables it reads."""
    if job.rdzv_backend == "static":
        return {
            "PET_RDZV_BACKEND": "static",
            "PET_NODE_RANK": str(member.node_rank),
            "PET_MASTER_ADDR": job.master_addr,
            "PET_MASTER_PORT": str(job.master_port),
        }
    # No node_rank: c10d ignores it and orders nodes by the string of the local address, hence the zero-padded alias.
    # is_host is said, because torchrun's guess fails where /etc/hosts has 127.0.1.1, and then nobody hosts.
    return {
        "PET_RDZV_BACKEND": job.rdzv_backend,
        "PET_RDZV_ENDPOINT": f"{job.master_addr}:{job.master_port}",
        "PET_RDZV_CONF": f"is_host={1 if member.node_rank == 0 else 0}",
    }


def environment(job: Job, member: Member) -> dict[str, str]:
    """Return the variables of this job on this host. The user's own come last, except where ours decide the ranks."""
    logs = f"{job.run_dir}/logs/{member.host}"
    cache = "/var/cache/torchrun"
    defaults = {
        "PYTHONUNBUFFERED": "1",
        # torchrun would set 1 for several processes a node; share the cores instead.
        "OMP_NUM_THREADS": str(max(1, member.cpus // member.nproc_per_node)),
        # Exactly this interface: gloo and NCCL would otherwise pick loopback or a bridge.
        "GLOO_SOCKET_IFNAME": member.interface,
        "NCCL_SOCKET_IFNAME": f"={member.interface}",
        # 3 aborts a hung collective and lets the flight recorder write first; torchrun alone would set 1.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": f"{logs}/flight_recorder_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # Beside the heartbeats: the hang watch asks through these pipes.
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"/run/torchrun/{job.name}/flight_recorder_",
        # Compiled kernels on the node's own disk: file locks on shared storage are slow or broken.
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
    }
    if member.gpus is not None:
        defaults["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in member.gpus)
    decided = {
        "TORCHRUN_JOB": job.name,
        "TORCHRUN_LAUNCH": job.launch,
        "TORCHRUN_RUN_DIR": job.run_dir,
        "TORCHRUN_DATA_DIR": job.data_dir,
        "TORCHRUN_USER": job.user,
        "TORCHRUN_HOST": member.host,
        "TORCHRUN_NODE_RANK": str(member.node_rank),
        "TORCHRUN_WORLD_SIZE": job.world_size,
        "TORCHRUN_PYTHON": member.python,
        "TORCHRUN_HANG_TIMEOUT": str(job.hang_timeout),
        "TORCHRUN_ARGV": json.dumps([f"{LIBEXEC}/guard.py", *program(job)]),
        # Without it a restart reads the previous attempt's addresses, and a replaced agent can never rejoin.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_NNODES": job.nnodes,
        "PET_NPROC_PER_NODE": str(member.nproc_per_node),
        # A closed rendezvous is closed for ever, so each launch has its own.
        "PET_RDZV_ID": f"{job.name}-{job.launch}",
        "PET_LOCAL_ADDR": member.alias,
        "PET_MAX_RESTARTS": str(job.max_restarts),
        "PET_LOG_DIR": logs,
        # Every rank's output to its own file and, with host and rank in front, to the journal.
        "PET_TEE": "3",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": f"{member.host}:${{rank}}: ",
        "TORCHELASTIC_ERROR_FILE": f"{logs}/error.json",
        **rendezvous(job, member),
    }
    path = [entry for entry in (f"{job.run_dir}/code", job.env.get("PYTHONPATH"), member.trainer_path) if entry]
    return {**defaults, **job.env, **decided, "PYTHONPATH": ":".join(path)}


def given(variables: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return those of a job's variables that the user gave by `names`, as they were given.

    The opposite of `environment`: PYTHONPATH is the user's between the code's folder and the trainer's.
    """
    found = {name: variables[name] for name in names if name in variables}
    if "PYTHONPATH" in found:
        _, *path = found["PYTHONPATH"].split(":")
        found["PYTHONPATH"] = ":".join(path[:-1] if path and path[-1].startswith(TRAINERS) else path)
    return found


def environment_file(variables: dict[str, str]) -> str:
    """Return the text of a systemd EnvironmentFile.

    Raises EnvironmentValueError for a value with a line break or NUL, which systemd would cut or refuse.
    """
    lines = ["# Written by train.yml for one launch of this job."]
    for name, value in sorted(variables.items()):
        if any(character in value for character in "\n\r\0"):
            raise EnvironmentValueError(
                f"The value of the variable {name} in env has a line break: give it in one line."
            )
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{name}="{quoted}"')
    return "\n".join(lines) + "\n"
