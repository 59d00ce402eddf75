"""Local nodes: what the inventory plugin computes, and which descriptions it refuses."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible_collections.torchrun.cluster.plugins.inventory.local_nodes import InventoryModule
from ansible_collections.torchrun.cluster.plugins.module_utils import local_nodes

TWO = {"nodes": [{"name": "node1", "nproc_per_node": 2}, {"name": "node2"}]}


def test_nodes_come_in_the_order_of_the_file_with_addresses_in_the_subnet() -> None:
    plan = local_nodes.plan({**TWO, "outsiders": ["outsider"]}, "/home/me/checkout")
    assert plan["nodes"] == ["node1", "node2"]
    assert plan["outsiders"] == ["outsider"]
    subnet = IPv4Network(plan["all"]["local_nodes_subnet"])
    addresses = [IPv4Address(plan["hosts"][name]["ansible_host"]) for name in ("node1", "node2", "outsider")]
    assert addresses == sorted(set(addresses))
    assert all(address in subnet for address in addresses)
    assert IPv4Address(plan["all"]["local_nodes_gateway"]) in subnet


def test_nproc_per_node_is_one_unless_given_and_outsiders_have_none() -> None:
    hosts = local_nodes.plan({**TWO, "outsiders": ["outsider"]}, "/c")["hosts"]
    assert [hosts[name].get("nproc_per_node") for name in ("node1", "node2", "outsider")] == [2, 1, None]


def test_count_makes_numbered_nodes() -> None:
    assert local_nodes.plan({"count": 3}, "/c")["nodes"] == ["node1", "node2", "node3"]


def test_two_hundred_nodes_have_different_addresses_and_macs_and_stay_below_the_broadcast_address() -> None:
    plan = local_nodes.plan({"count": 200}, "/c")
    hosts = plan["hosts"].values()
    assert len({host["ansible_host"] for host in hosts}) == 200
    assert len({host["local_nodes_mac"] for host in hosts}) == 200
    subnet = IPv4Network(plan["all"]["local_nodes_subnet"])
    assert max(IPv4Address(host["ansible_host"]) for host in hosts) < subnet.broadcast_address


def test_a_mac_is_locally_administered_unicast() -> None:
    mac = local_nodes.plan(TWO, "/c")["hosts"]["node1"]["local_nodes_mac"]
    first = int(mac.split(":")[0], 16)
    assert len(mac.split(":")) == 6
    assert first & 0b11 == 0b10


@pytest.mark.parametrize(
    "other", [("/other", "default"), ("/c", "molecule")], ids=["another checkout", "another scenario"]
)
def test_two_sets_of_nodes_share_no_name_and_no_path(other: tuple[str, str]) -> None:
    mine = local_nodes.plan(TWO, "/c")
    theirs = local_nodes.plan({**TWO, "scenario": other[1]}, other[0])
    for variable in ("local_nodes_network", "local_nodes_bridge", "local_nodes_state", "local_nodes_subnet"):
        assert mine["all"][variable] != theirs["all"][variable]
    for variable in ("local_nodes_container", "local_nodes_mac", "ansible_host"):
        assert mine["hosts"]["node1"][variable] != theirs["hosts"]["node1"][variable]


def test_the_plan_is_the_same_every_time() -> None:
    assert local_nodes.plan(TWO, "/c") == local_nodes.plan(TWO, "/c")


def test_interface_names_fit_the_kernel() -> None:
    assert len(local_nodes.plan(TWO, "/c")["all"]["local_nodes_bridge"]) <= 15


def test_host_keys_are_checked_against_the_pinned_ones() -> None:
    variables = local_nodes.plan(TWO, "/c")["all"]
    assert "StrictHostKeyChecking=yes" in variables["ansible_ssh_common_args"]
    assert f"UserKnownHostsFile={variables['local_nodes_state']}/known_hosts" in variables["ansible_ssh_common_args"]


@pytest.mark.parametrize(("owner", "uid"), [(0, None), (999, None), (1000, 1000), (65534, None)])
def test_jobs_run_with_the_uid_of_the_person_who_owns_the_checkout(owner: int, uid: int | None) -> None:
    assert local_nodes.plan(TWO, "/c", owner)["all"].get("base_user_id") == uid


def test_a_network_can_be_given() -> None:
    plan = local_nodes.plan({**TWO, "network": "192.168.77.0/24"}, "/c")
    assert plan["hosts"]["node1"]["ansible_host"] == "192.168.77.11"


def test_images_of_different_bases_have_different_names() -> None:
    names = {
        local_nodes.plan({**TWO, "base_image": base}, "/c")["all"]["local_nodes_image"] for base in ("", "debian:13")
    }
    assert len(names) == 2


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({}, "there are no nodes"),
        ({"nodes": []}, "there are no nodes"),
        ({"nodes": "node1"}, "there are no nodes"),
        ({"nodes": ["node1"]}, "has no name"),
        ({"nodes": [{"name": "Node_1"}]}, "`Node_1`"),
        ({"nodes": [{"name": 1}]}, "`1`"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "a is given twice"),
        ({"nodes": [{"name": "a"}], "outsiders": ["a"]}, "a is given twice"),
        ({"nodes": [{"name": "a"}], "outsiders": "b"}, "outsiders"),
        ({"nodes": [{"name": "a", "nproc_per_node": 0}]}, "nproc_per_node of a is `0`"),
        ({"nodes": [{"name": "a", "nproc_per_node": True}]}, "nproc_per_node of a is `True`"),
        ({"nodes": [{"name": "a", "nproc_per_node": "2"}]}, "nproc_per_node of a is `2`"),
        ({"nodes": [{"name": "a", "nproc": 2}]}, "unknown key nproc"),
        ({"nodes": [{"name": "a"}], "count": 2}, "exclude one another"),
        ({"count": 0}, "count is `0`"),
        ({"count": 201}, "count is `201`"),
        ({"count": "two"}, "count is `two`"),
        ({"count": 199, "outsiders": ["x", "y"]}, "201 nodes"),
        ({"count": 1, "netwrok": "auto"}, "netwrok is unknown"),
        ({"count": 1, "network": "10.1.2.0/28"}, "`10.1.2.0/28`"),
        ({"count": 1, "network": "10.1.2.3/24"}, "`10.1.2.3/24`"),
        ({"count": 1, "network": 7}, "`7`"),
        ({"count": 1, "base_image": ["debian"]}, "base_image"),
        ({"count": 1, "scenario": "../.."}, "`../..`"),
        (["node1"], "keys"),
    ],
)
def test_wrong_descriptions_are_refused_with_one_sentence(description: Any, said: str) -> None:
    with pytest.raises(local_nodes.LocalNodesError, match=r"^[^\n]+$") as caught:
        local_nodes.plan(description, "/c")
    assert said in str(caught.value)


ROUTES = [
    {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"},
    {"dst": "10.64.0.0/16", "dev": "vpn0"},
    {"dst": "10.99.1.0/24", "dev": "trn-mine"},
    {"dst": "10.98.1.7", "dev": "tun1"},
]


@pytest.mark.parametrize(
    ("subnet", "user"),
    [
        ("10.65.0.0/24", ""),
        ("10.64.5.0/24", "vpn0"),
        ("10.99.1.0/24", ""),
        ("10.99.0.0/16", ""),
        ("10.98.1.0/24", "tun1"),
    ],
)
def test_a_subnet_is_in_use_when_a_route_of_another_interface_overlaps_it(subnet: str, user: str) -> None:
    assert local_nodes.user_of(subnet, ROUTES, "trn-mine") == user


CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT_INVENTORY = CHECKOUT / "inventory" / "local" / "local_nodes.yml"


def test_the_plugin_makes_hosts_of_the_default_inventory() -> None:
    inventory, loader = InventoryData(), DataLoader()
    InventoryModule().parse(inventory, loader, str(DEFAULT_INVENTORY))
    assert [host.name for host in inventory.groups["nodes"].get_hosts()] == ["node1", "node2"]
    assert [inventory.hosts[name].vars["nproc_per_node"] for name in ("node1", "node2")] == [2, 1]


def test_a_wrong_description_ends_ansible_with_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    wrong = tmp_path / "local_nodes.yml"
    wrong.write_text("plugin: torchrun.cluster.local_nodes\ncount: 0\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(wrong), "--list"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert " ".join(done.stderr.split()) == f"[ERROR]: In {wrong}, count is `0`: give a whole number from 1 to 200."


def test_the_shell_wrapper_and_the_inventory_agree_on_the_checkouts_digest() -> None:
    checkout = DEFAULT_INVENTORY.parents[2]
    done = subprocess.run(
        [str(checkout / "local" / "podman"), "--identity"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == local_nodes.digest(str(checkout))
