"""The rank plan: what holds for every cluster, and what is refused."""

from __future__ import annotations

import pytest
from ansible_collections.torchrun.cluster.plugins.filter.rank_plan import FilterModule
from ansible_collections.torchrun.cluster.plugins.module_utils import rank_plan
from ansible_collections.torchrun.cluster.plugins.module_utils.rank_plan import Host, PlanError
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def clusters(draw: st.DrawFn) -> list[Host]:
    """Valid clusters of up to 200 hosts: any names, any subset with a node_rank of its own, any process counts."""
    size = draw(st.integers(1, 200))
    names = draw(st.lists(st.text("abcABC019-_.", min_size=1, max_size=12), min_size=size, max_size=size, unique=True))
    order = draw(st.permutations(range(size)))
    explicit = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    counts = draw(st.lists(st.one_of(st.integers(1, 16), st.just("auto")), min_size=size, max_size=size))
    return [
        Host(name, f"10.0.{index // 250}.{index % 250}", order[index] if explicit[index] else None, counts[index], 0)
        for index, name in enumerate(names)
    ]


@given(clusters())
def test_node_ranks_are_0_to_n_minus_1_once_each(hosts: list[Host]):
    assert [node.node_rank for node in rank_plan.place(hosts)] == list(range(len(hosts)))


@given(clusters())
def test_a_node_rank_of_the_inventory_is_kept(hosts: list[Host]):
    ranks = {node.name: node.node_rank for node in rank_plan.place(hosts)}
    assert all(ranks[host.name] == host.node_rank for host in hosts if host.node_rank is not None)


@given(clusters())
def test_hosts_without_node_rank_keep_inventory_order(hosts: list[Host]):
    ranks = {node.name: node.node_rank for node in rank_plan.place(hosts)}
    free = [ranks[host.name] for host in hosts if host.node_rank is None]
    assert free == sorted(free)


@given(clusters())
def test_the_order_of_aliases_as_strings_is_the_order_of_node_rank(hosts: list[Host]):
    aliases = [node.alias for node in rank_plan.place(hosts)]
    assert aliases == sorted(aliases)
    assert len(set(aliases)) == len(aliases)
    assert all(len(alias) <= 63 for alias in aliases)


@given(clusters(), st.data())
def test_ranks_are_contiguous_and_add_up_to_the_world_size(hosts: list[Host], data: st.DataObject):
    nnodes = data.draw(st.integers(1, len(hosts)))
    plan = rank_plan.plan(hosts, nnodes)
    ranks = [rank for first, count in zip(plan.first_ranks, plan.processes) for rank in range(first, first + count)]
    assert ranks == list(range(int(plan.world_size)))


@given(clusters(), st.data())
def test_a_smaller_job_runs_on_the_first_nodes_with_the_same_aliases(hosts: list[Host], data: st.DataObject):
    nnodes = data.draw(st.integers(1, len(hosts)))
    assert rank_plan.plan(hosts, nnodes).members == rank_plan.plan(hosts).members[:nnodes]


@given(clusters(), st.data())
def test_an_elastic_world_lies_between_its_bounds(hosts: list[Host], data: st.DataObject):
    largest = data.draw(st.integers(1, len(hosts)))
    smallest = data.draw(st.integers(1, largest))
    plan = rank_plan.plan(hosts, f"{smallest}:{largest}")
    present = data.draw(st.permutations(plan.processes))[: data.draw(st.integers(smallest, largest))]
    low, _, high = plan.world_size.partition(":")
    assert int(low) <= sum(present) <= int(high or low)


@given(clusters())
def test_the_plan_does_not_depend_on_how_many_gpus_are_known_yet(hosts: list[Host]):
    uncounted = [Host(host.name, host.address, host.node_rank, host.nproc_per_node) for host in hosts]
    places = [(node.name, node.alias, node.node_rank) for node in rank_plan.place(uncounted)]
    assert places == [(node.name, node.alias, node.node_rank) for node in rank_plan.place(hosts)]


def two(**second: object) -> list[Host]:
    return [Host("a", "10.0.0.1"), Host("b", **{"address": "10.0.0.2", **second})]


@pytest.mark.parametrize(
    ("hosts", "nnodes", "nproc", "named"),
    [
        ([], None, None, ["nodes"]),
        (two(), 3, None, ["nnodes", "`3`", "2 hosts"]),
        (two(), "0", None, ["nnodes", "`0`"]),
        (two(), "-1", None, ["nnodes", "`-1`"]),
        (two(), "two", None, ["nnodes", "`two`"]),
        (two(), True, None, ["nnodes"]),
        (two(), "2:1", None, ["nnodes", "2:1"]),
        (two(), "1:3", None, ["nnodes", "1:3"]),
        (two(node_rank=5), None, None, ["node_rank", "b", "5", "0 to 1"]),
        (two(node_rank="first"), None, None, ["node_rank", "b", "first"]),
        ([Host("a", "10.0.0.1", 0), Host("b", "10.0.0.2", 0)], None, None, ["node_rank", "a", "b"]),
        (two(nproc_per_node=0), None, None, ["nproc_per_node", "b", "0"]),
        (two(nproc_per_node=-2), None, None, ["nproc_per_node", "b"]),
        (two(nproc_per_node="many"), None, None, ["nproc_per_node", "b", "many"]),
        (two(nproc_per_node=3, gpus=2), None, None, ["nproc_per_node", "b", "2 GPUs"]),
        (two(), None, 0, ["nproc_per_node", "a"]),
        (two(address="127.0.1.1"), None, None, ["cluster_addr", "b", "127.0.1.1"]),
        (two(address="localhost"), None, None, ["cluster_addr", "b", "localhost"]),
        (two(address="::1"), None, None, ["cluster_addr", "b"]),
        (two(address="10.0.0.1"), None, None, ["cluster_addr", "b", "a"]),
    ],
)
def test_a_contradiction_is_refused_by_name(hosts: list[Host], nnodes: object, nproc: object, named: list[str]):
    with pytest.raises(PlanError) as caught:
        rank_plan.plan(hosts, nnodes, nproc)
    sentence = str(caught.value)
    assert all(word in sentence for word in named), sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_one_host_may_be_this_machine():
    assert rank_plan.plan([Host("a", "127.0.0.1", gpus=0)]).world_size == "1"


def test_auto_is_the_number_of_gpus_and_else_one():
    assert rank_plan.plan([Host("a", "10.0.0.1", gpus=4), Host("b", "10.0.0.2", gpus=2)]).processes == [4, 2]
    assert rank_plan.plan([Host("a", "10.0.0.1", gpus=0)]).processes == [1]


def test_4_and_2_gpus_make_a_world_of_6():
    plan = FilterModule().filters()["rank_plan"](
        [
            {"name": "big", "ansible_host": "10.0.0.1", "gpus": 4},
            {"name": "small", "ansible_host": "10.0.0.2", "gpus": 2},
        ]
    )
    assert plan["world_size"] == "6"
    assert [member["ranks"] for member in plan["members"]] == [[0, 3], [4, 5]]
    assert plan["master"] == "big"


@pytest.mark.parametrize("address", ["not an address!", "10.1.2.300", "gpu1.example.org"])
def test_what_is_no_address_is_refused_by_host_and_variable(address: str):
    with pytest.raises(rank_plan.PlanError) as caught:
        rank_plan.from_inventory("gpu1", {"cluster_addr": address, "ansible_host": "10.0.0.1"})
    assert "gpu1 has the cluster_addr" in str(caught.value)
