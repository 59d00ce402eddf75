"""Wrong input: one sentence that names it, and nothing on a node changes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster
import pytest
import yaml

from playbooks import Play

INVENTORY = Path(__file__).parent / "inventory"
WRONG = {
    "an unknown variable": ("train.yml", "-e nnode=2", ["nnode", "nnodes"]),
    "more nodes than there are": ("train.yml", "-e nnodes=3", ["nnodes", "3", "2"]),
    "no nodes": ("train.yml", "-e nnodes=0", ["nnodes", "0"]),
    "a word for a number": ("train.yml", "-e nnodes=two", ["nnodes", "two"]),
    "a script that does not exist": ("train.yml", "-e script=/nowhere/train.py", ["/nowhere/train.py"]),
    "an empty script": ("train.yml", "-e script=", ["script is empty"]),
    "a module that the nodes do not have": ("train.yml", "-e module=nomod", ["nomod", "workdir"]),
    "an option of another verb": ("site.yml", "-e nnodes=2", ["nnodes", "train.yml"]),
    "the root folder as shared storage": ("site.yml", "-e shared_storage_path=/", ["shared_storage_path"]),
    "a script and a module": ("train.yml", f"-e script={__file__} -e module=m", ["script", "module"]),
    "a wrong backend": ("train.yml", "-e rdzv_backend=etcd", ["rdzv_backend", "etcd"]),
    "a wrong type of a role's variable": ("site.yml", "-e firewall_enabled=perhaps", ["firewall_enabled"]),
    "a host that is not there": ("site.yml", "--limit nod1", ["nod1"]),
    "a typo in one of two host names": ("site.yml", "--limit node2,nod1", ["nod1", "node1"]),
    "a limit that leaves out a member": ("train.yml", "--limit node1", ["--limit", "node2"]),
    "no processes": ("train.yml", "-e nproc_per_node=0", ["nproc_per_node"]),
    "a job that no host knows": ("playbooks/stop.yml", "-e job=trian", ["trian"]),
    "a job to resume that no host knows": ("playbooks/resume.yml", "-e job=trian", ["trian", "train.yml"]),
    "a new program for a job that is resumed": ("playbooks/resume.yml", "-e script=x.py", ["script", "train.yml"]),
    "cleaning without a number": ("playbooks/clean.yml", "", ["keep"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_options_are_refused_before_anything_changes(
    play: Play, state_of_nodes: Callable[[], list[str]], what: str
):
    playbook, words, named = WRONG[what]
    before = state_of_nodes()
    done = play(playbook, words)
    assert done.status != 0, done.output
    said = " ".join(done.errors) or done.output
    assert all(name in said for name in named), said
    assert "Traceback" not in done.output
    assert done.changed == {}
    assert state_of_nodes() == before


@pytest.fixture
def inventory_with(tmp_path: Path, nodes: list[cluster.Node]) -> Callable[[dict[str, dict[str, object]]], Path]:
    """Return a function that writes an inventory of the same nodes with other variables for some of them."""

    def write(changes: dict[str, dict[str, object]]) -> Path:
        kept = ("ansible_", "cluster_addr", "nproc_per_node", "shared_storage_")
        hosts = {
            node.name: {name: value for name, value in node.variables.items() if name.startswith(kept)}
            | changes.get(node.name, {})
            for node in nodes
        }
        path = tmp_path / "hosts.yml"
        path.write_text(yaml.safe_dump({"nodes": {"hosts": json.loads(json.dumps(hosts))}}))
        return path

    return write


WRONG_HOSTS = {
    "two hosts with one node_rank": ({"node1": {"node_rank": 0}, "node2": {"node_rank": 0}}, ["node_rank", "node2"]),
    "nproc_per_node: 0": ({"node2": {"nproc_per_node": 0}}, ["nproc_per_node", "node2"]),
    "a loopback address": ({"node2": {"cluster_addr": "127.0.0.1"}}, ["cluster_addr", "node2"]),
    "no address at all": ({"node2": {"cluster_addr": "not an address!"}}, ["cluster_addr", "node2"]),
    "an address that the host does not have": ({"node2": {"cluster_addr": "10.99.99.99"}}, ["10.99.99.99"]),
    "a typo in a variable": ({"node2": {"nproc_per_nod": 1}}, ["nproc_per_nod", "nproc_per_node", "node2"]),
}


@pytest.mark.parametrize("what", WRONG_HOSTS)
def test_a_wrong_inventory_is_refused_before_anything_changes(
    play: Play,
    state_of_nodes: Callable[[], list[str]],
    inventory_with: Callable[[dict[str, dict[str, object]]], Path],
    what: str,
):
    changes, named = WRONG_HOSTS[what]
    before = state_of_nodes()
    for playbook in ("train.yml", "site.yml"):
        done = play(playbook, inventory=inventory_with(changes))
        assert done.status != 0, done.output
        assert all(name in " ".join(done.errors) for name in named), done.errors
        assert "Traceback" not in done.output
    assert state_of_nodes() == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["site.yml", "-i", "EMPTY"], "list your hosts under"),
        (["train.yml", "-i", "EMPTY"], "list your hosts under"),
        (["playbooks/status.yml", "-i", "EMPTY"], "list your hosts under"),
        (["train.yml", "-i", str(INVENTORY), "--tags", "none"], "drop them"),
    ],
)
@pytest.mark.usefixtures("nodes")
def test_a_playbook_without_hosts_is_no_success(tmp_path: Path, words: list[str], named: str):
    (tmp_path / "hosts.yml").write_text("nodes: {hosts: {}}\nothers: {hosts: {a: {}}}\n")
    # Not through ansible_runner, which has a callback of its own: ours makes an error of it.
    words = [str(tmp_path / "hosts.yml") if word == "EMPTY" else word for word in words]
    command = [str(cluster.TOOLS / "ansible-playbook"), *words]
    done = subprocess.run(command, cwd=cluster.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert named in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def dead_node(nodes: list[cluster.Node]) -> Iterator[cluster.Node]:
    """The last node, frozen: it answers nothing, as one that lost its power, until the test is over."""
    node = nodes[-1]
    podman, container = cluster.ROOT / "local/podman", node.variables["local_nodes_container"]
    subprocess.run([podman, "pause", container], check=True, capture_output=True)
    yield node
    subprocess.run([podman, "unpause", container], check=True, capture_output=True)


def test_a_dead_host_is_named_and_nothing_is_started(play: Play, nodes: list[cluster.Node], dead_node: cluster.Node):
    for playbook, words in (("train.yml", "-e nnodes=2 -e job=nobody"), ("site.yml", "")):
        done = play(playbook, words)
        assert done.status != 0
        assert dead_node.name in {result["host"] for result in done.results() if result.get("unreachable")}
        assert done.changed == {}
    assert nodes[0].run("ls /etc/torchrun/jobs/nobody.env", check=False).returncode != 0
