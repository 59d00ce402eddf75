"""Agents of torchrun as they stand on the nodes of a cluster, all on this machine, each with ranks of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from ranks import PATIENCE, Outcome, be_rank
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def be_worker(arguments: Sequence[str], environment: Mapping[str, str], logs: Path) -> None:
    """Be a rank of an agent, which has described it in the environment."""
    be_rank(int(os.environ["RANK"]), arguments, {**os.environ, **environment}, logs, None)


def be_agent(  # noqa: PLR0917
    nodes: int, ranks: int, port: int, arguments: Sequence[str], environment: Mapping[str, str], logs: Path
) -> None:
    """Be the agent of a node: meet the others, and start ranks. They are forked, and so start at once."""
    launch = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=ranks,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"is_host": False},
        start_method="fork",
        max_restarts=0,
        local_addr="127.0.0.1",
        monitor_interval=0.05,
    )
    elastic_launch(launch, be_worker)(arguments, environment, logs)


def run_agents(
    layout: Sequence[int], arguments: Sequence[str], folder: Path, logs: Path, environment: Mapping[str, str]
) -> Outcome:
    """Train with an agent for each number in `layout`, and return what came of it; statuses are the agents'."""
    logs.mkdir(parents=True)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = {"TORCHRUN_RUN_DIR": str(folder), "GLOO_SOCKET_IFNAME": "lo", **environment}
    context = multiprocessing.get_context("forkserver")
    agents = [
        context.Process(target=be_agent, args=(len(layout), ranks, store.port, arguments, own, logs))
        for ranks in layout
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(PATIENCE)
        if agent.is_alive():
            agent.terminate()
            agent.join()
    return Outcome(tuple(agent.exitcode or 0 for agent in agents), folder, logs)
