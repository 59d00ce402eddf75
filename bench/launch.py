"""Time from the command to the first optimizer step: train.yml against torchrun typed by hand over parallel SSH.

Both run the packaged trainer with the same options on the same provisioned nodes, in turn, in one run:

    .venv/bin/python bench/launch.py [-i INVENTORY] [--rounds 5]

The hand-typed side is given what someone who knows the traps would type (local address, interface, threads) and SSH
connections that are open already. The first step's time is the one that the trainer writes to metrics.jsonl; nodes and
controller must share a clock, as local nodes do. Writes bench/results/launch.json and launch.png.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from cluster import ROOT, TOOLS, Node, read_inventory

RESULTS = ROOT / "bench/results"
TRAINER_OPTIONS = ["--steps", "3"]
PORT = 29511


def first_step(node: Node, run_dir: str) -> float:
    """Return the unix time of the first optimizer step in a run folder."""
    for line in node.run(f"cat {run_dir}/metrics.jsonl").stdout.splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            return float(event["time"])
    raise RuntimeError(f"no step in {run_dir}/metrics.jsonl")


def by_playbook(nodes: list[Node], shared: str, options: list[str]) -> float:
    """Launch with train.yml; return the seconds to the first step."""
    began = time.time()
    extra = json.dumps({"nnodes": len(nodes), "job": "bench-launch", "script_args": TRAINER_OPTIONS})
    done = subprocess.run(
        [str(TOOLS / "ansible-playbook"), *options, "train.yml", "-e", extra],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"train.yml failed:\n{done.stdout}{done.stderr}")
    seconds = first_step(nodes[0], f"{shared}/runs/bench-launch") - began
    nodes[0].run(f"rm -rf {shared}/runs/bench-launch*")
    return seconds


def by_hand(nodes: list[Node], shared: str) -> float:
    """Launch with one torchrun a node over SSH, all at once; return the seconds to the first step."""
    run_dir = f"{shared}/runs/bench-by-hand"
    nodes[0].run(f"install -d -o trainer -g trainer {run_dir}")
    commands = []
    for rank, node in enumerate(nodes):
        environment = {
            "TORCHRUN_RUN_DIR": run_dir,
            "TORCHRUN_DATA_DIR": f"{shared}/data",
            "PYTHONPATH": "/opt/torchrun/trainer/current",
            "GLOO_SOCKET_IFNAME": interface_of(node),
            "OMP_NUM_THREADS": "1",
        }
        words = [
            "sudo", "-u", "trainer", "env", *(f"{name}={value}" for name, value in environment.items()),
            "/opt/torchrun/venv/bin/torchrun", f"--nnodes={len(nodes)}", f"--nproc-per-node={node.nproc_per_node}",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={nodes[0].address}:{PORT}", "--rdzv-id=bench",
            f"--rdzv-conf=is_host={int(rank == 0)}", f"--local-addr={node.address}", "-m", "torchrun_trainer",
            *TRAINER_OPTIONS,
        ]  # fmt: skip
        commands.append([*node.ssh, shlex.join(words)])
    began = time.time()
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **streams) for command in commands]
    for process in processes:
        _, stderr = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"torchrun by hand failed:\n{stderr}")
    seconds = first_step(nodes[0], run_dir) - began
    nodes[0].run(f"rm -rf {run_dir}")
    return seconds


def interface_of(node: Node) -> str:
    """Return the interface that owns the node's address."""
    for link in json.loads(node.run("ip -json address show").stdout):
        if any(entry.get("local") == node.address for entry in link["addr_info"]):
            return str(link["ifname"])
    raise RuntimeError(f"{node.name} does not own {node.address}")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw every round's two times beside each other."""
    import matplotlib as mpl  # noqa: PLC0415 (half a second that only the picture needs)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    rounds = range(1, len(result["seconds"]["by_hand"]) + 1)
    axes.plot(rounds, result["seconds"]["by_hand"], "o-", label="torchrun by hand, parallel SSH")
    axes.plot(rounds, result["seconds"]["train_yml"], "s-", label="ansible-playbook train.yml")
    axes.set(xlabel="round", ylabel="seconds to the first step", ylim=(0, None), xticks=list(rounds))
    axes.set_title(f"{result['nodes']} nodes, ratio of medians {result['ratio']:.2f}")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the rounds and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-i", "--inventory", help="inventory of provisioned nodes (default: the one of ansible.cfg)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both, in turn (default 5)")
    arguments = parser.parse_args()
    options = ["-i", arguments.inventory] if arguments.inventory else []
    # Both sides find their connections open: neither pays for the handshake.
    sockets = tempfile.mkdtemp(prefix="bench-")
    shared_connection = ["-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C", "-o", "ControlPersist=60s"]
    nodes = [replace(node, ssh_options=[*shared_connection, *node.ssh_options]) for node in read_inventory(options)]
    shared = nodes[0].variables.get("shared_storage_path", "/srv/torchrun")
    # The first launch prepares the corpus and opens every connection: neither side's to pay.
    by_playbook(nodes, shared, options)
    seconds: dict[str, list[float]] = {"by_hand": [], "train_yml": []}
    for number in range(1, arguments.rounds + 1):
        seconds["by_hand"].append(by_hand(nodes, shared))
        seconds["train_yml"].append(by_playbook(nodes, shared, options))
        print(f"round {number}: by hand {seconds['by_hand'][-1]:.2f} s, train.yml {seconds['train_yml'][-1]:.2f} s")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "what": "seconds from the command to the first optimizer step",
        "nodes": len(nodes),
        "processes": [node.nproc_per_node for node in nodes],
        "medians": medians,
        "ratio": medians["train_yml"] / medians["by_hand"],
        "seconds": seconds,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "launch.json").write_text(json.dumps(result, indent=2) + "\n")
    draw(result, RESULTS / "launch.png")
    print(f"ratio of medians {result['ratio']:.2f}: {RESULTS.relative_to(ROOT)}/launch.json, launch.png")


if __name__ == "__main__":
    main()
