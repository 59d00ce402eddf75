"""The environment of a job: every rule of launching is in it, and the user's variables cannot break the ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import job_env, run_folder
from hypothesis import given, settings
from hypothesis import strategies as st


def job(**changes: object) -> job_env.Job:
    values = {
        "name": "train",
        "launch": "20261201T120000-1a2b",
        "nnodes": "2",
        "world_size": "3",
        "rdzv_backend": "c10d",
        "master_addr": "10.0.0.1",
        "master_port": 29400,
        "max_restarts": 3,
        "hang_timeout": 120,
        "run_dir": "/srv/torchrun/runs/train",
        "data_dir": "/srv/torchrun/data",
        "user": "trainer",
    }
    return job_env.Job(**{**values, **changes})


def member(node_rank: int = 0, **changes: object) -> job_env.Member:
    values = {
        "host": f"node{node_rank + 1}",
        "alias": f"trn-000{node_rank}-node{node_rank + 1}",
        "node_rank": node_rank,
        "nproc_per_node": 2,
        "interface": "eth0",
        "cpus": 8,
        "python": "/opt/torchrun/venvs/x/bin/python",
        "trainer_path": "/opt/torchrun/trainer/y",
    }
    return job_env.Member(**{**values, **changes})


def test_only_the_host_of_node_rank_0_hosts_the_rendezvous():
    assert job_env.environment(job(), member(0))["PET_RDZV_CONF"] == "is_host=1"
    assert job_env.environment(job(), member(1))["PET_RDZV_CONF"] == "is_host=0"


def test_c10d_gets_the_alias_as_local_address_and_no_node_rank():
    variables = job_env.environment(job(), member(1))
    assert variables["PET_LOCAL_ADDR"] == "trn-0001-node2"
    assert variables["PET_RDZV_ENDPOINT"] == "10.0.0.1:29400"
    assert "PET_NODE_RANK" not in variables


def test_static_gets_node_rank_and_one_master_port():
    variables = job_env.environment(job(rdzv_backend="static", max_restarts=0), member(1))
    assert (variables["PET_NODE_RANK"], variables["PET_MASTER_ADDR"], variables["PET_MASTER_PORT"]) == (
        "1",
        "10.0.0.1",
        "29400",
    )
    assert "PET_RDZV_ENDPOINT" not in variables


def test_a_restarted_agent_can_rejoin_and_each_launch_has_its_own_rendezvous():
    variables = job_env.environment(job(), member())
    assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert variables["PET_RDZV_ID"] == "train-20261201T120000-1a2b"


def test_interfaces_are_exact():
    variables = job_env.environment(job(), member(interface="ens5"))
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("ens5", "=ens5")


def test_cores_are_shared_between_the_processes_of_a_node():
    assert job_env.environment(job(), member(cpus=8, nproc_per_node=3))["OMP_NUM_THREADS"] == "2"
    assert job_env.environment(job(), member(cpus=1, nproc_per_node=4))["OMP_NUM_THREADS"] == "1"


def test_the_user_may_change_defaults_but_not_what_decides_the_ranks():
    variables = job_env.environment(
        job(env={"OMP_NUM_THREADS": "7", "PET_NNODES": "9", "PYTHONPATH": "/mine"}), member()
    )
    assert variables["OMP_NUM_THREADS"] == "7"
    assert variables["PET_NNODES"] == "2"
    assert variables["PYTHONPATH"] == "/srv/torchrun/runs/train/code:/mine:/opt/torchrun/trainer/y"


def test_workers_run_the_guard_first_and_then_the_program():
    packaged = json.loads(job_env.environment(job(script_args=["--steps", "5"]), member())["TORCHRUN_ARGV"])
    assert packaged == ["/opt/torchrun/libexec/guard.py", "-m", "torchrun_trainer", "--steps", "5"]
    own = json.loads(job_env.environment(job(script="a b.py"), member())["TORCHRUN_ARGV"])
    assert own == ["/opt/torchrun/libexec/guard.py", "/srv/torchrun/runs/train/code/a b.py"]


def test_a_part_of_the_gpus_is_named_and_all_of_them_are_not():
    assert job_env.environment(job(), member(gpus=[2, 3]))["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in job_env.environment(job(), member(gpus=None))


def test_a_line_break_in_a_value_is_refused_by_name():
    with pytest.raises(job_env.EnvironmentValueError, match="TOKEN"):
        job_env.environment_file({"TOKEN": "a\nb"})


@settings(max_examples=50)
@given(st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=("Cs", "Cc", "Zl", "Zp"))))
def test_a_value_survives_the_file(tmp_path_factory: pytest.TempPathFactory, value: str):
    jobs = tmp_path_factory.mktemp("jobs")
    (jobs / "j.env").write_text(job_env.environment_file({"A": value}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "JOBS_DIR", jobs)
        assert run_folder.read_environment_file("j") == {"A": value}


def test_the_file_means_the_same_to_a_shell_as_to_systemd(tmp_path: Path):
    # systemd's quoting rules within double quotes are the shell's, so a shell is a second opinion.
    value = 'a "b" $HOME `id` \\ c\\'
    (tmp_path / "j.env").write_text(job_env.environment_file({"A": value}))
    done = subprocess.run(
        ["sh", "-c", '. ./j.env; printf %s "$A"'], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == value
