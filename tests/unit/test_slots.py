"""A slot, a GPU and a port belong to one job."""

from __future__ import annotations

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import slots

WANTED = {"PET_NPROC_PER_NODE": "2", "PET_RDZV_ENDPOINT": "10.0.0.1:29400"}
OTHER = {"PET_NPROC_PER_NODE": "1", "PET_RDZV_ENDPOINT": "10.0.0.1:29500"}


def test_a_job_alone_takes_as_many_slots_as_it_was_told():
    assert slots.conflict(WANTED, {}, slots=1, is_master=True) is None


def test_jobs_share_a_host_while_their_slots_suffice():
    assert slots.conflict(WANTED, {"other": OTHER}, slots=3, is_master=True) is None
    sentence = slots.conflict(WANTED, {"other": OTHER}, slots=2, is_master=True)
    assert "other has just taken 1 of the 2 slots" in (sentence or "")


@pytest.mark.parametrize(("is_master", "refused"), [(True, True), (False, False)])
def test_two_rendezvous_on_one_port_are_refused_where_they_would_meet(is_master: bool, refused: bool):
    other = {**OTHER, "PET_RDZV_ENDPOINT": "10.0.0.1:29400"}
    sentence = slots.conflict(WANTED, {"other": other}, slots=8, is_master=is_master)
    assert ("port 29400" in (sentence or "")) is refused


def test_a_static_rendezvous_has_a_port_too():
    static = {"PET_NPROC_PER_NODE": "1", "PET_MASTER_PORT": "29400"}
    assert "port 29400" in (slots.conflict(WANTED, {"other": static}, slots=8, is_master=True) or "")


def test_one_gpu_is_not_given_twice():
    wanted, other = {**WANTED, "CUDA_VISIBLE_DEVICES": "0,1"}, {**OTHER, "CUDA_VISIBLE_DEVICES": "1"}
    assert "GPU 1" in (slots.conflict(wanted, {"other": other}, slots=8, is_master=False) or "")
    assert slots.conflict(wanted, {"other": {**OTHER, "CUDA_VISIBLE_DEVICES": "2"}}, slots=8, is_master=False) is None
