"""Run variables: what is refused, by name, and what the rest becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import role_specs, run_options
from ansible_collections.torchrun.cluster.plugins.module_utils.run_options import OptionError

ROLES = Path(__file__).parents[2] / "roles"
KNOWN = role_specs.variables(ROLES)


def train(directory: Path = Path("/"), **given: Any) -> dict[str, Any]:
    options, problems = role_specs.converted(run_options.VERBS["train"], given)
    assert problems == []
    return run_options.checked("train", options, directory)


def test_defaults_follow_the_backend():
    assert train()["max_restarts"] == 3
    assert train(rdzv_backend="static")["max_restarts"] == 0
    assert (train()["job"], train()["master_port"], train()["wait"]) == ("train", None, True)


def test_hangs_are_watched_for_unless_that_is_switched_off():
    assert train()["hang_timeout"] == 120
    assert train(hang_timeout=0)["hang_timeout"] == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"job": "Train"}, "job"),
        ({"job": "../x"}, "job"),
        ({"job": "x" * 41}, "job"),
        ({"script": "/nowhere.py"}, "/nowhere.py"),
        ({"script": "/etc"}, "no file"),
        ({"script": ""}, "script is empty"),
        ({"workdir": "/no/where"}, "/no/where"),
        ({"workdir": "/etc"}, "no project"),
        ({"workdir": "/etc/ssh", "script": "/etc/hostname"}, "not within workdir"),
        ({"requirements": "/nowhere.txt"}, "/nowhere.txt"),
        ({"env_file": "/nowhere.env"}, "/nowhere.env"),
        ({"module": ""}, "module is empty"),
        ({"job": ""}, "job is empty"),
        ({"script": "/etc/hostname", "module": "m"}, "module"),
        ({"module": "a-b"}, "a-b"),
        ({"master_port": 80}, "master_port"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"hang_timeout": 5}, "hang_timeout"),
        ({"max_restarts": 1, "rdzv_backend": "static"}, "max_restarts"),
        ({"nnodes": "1:2", "rdzv_backend": "static"}, "nnodes"),
        ({"nproc_per_node": 0}, "nproc_per_node"),
        ({"nproc_per_node": "some"}, "nproc_per_node"),
        ({"env": {"RANK": "0"}}, "RANK"),
        ({"env": {"PET_NNODES": "0"}}, "PET_NNODES"),
        ({"env": {"A-B": "0"}}, "A-B"),
        ({"env": {"A": "x\ny"}}, "line break"),
        ({"env": {"A": [1]}}, "A"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], named: str):
    with pytest.raises(OptionError) as caught:
        train(**given)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value).replace("x\ny", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wait": "perhaps"}, "wait is `perhaps`, but must be true or false."),
        ({"rdzv_backend": "etcd"}, "one of c10d, static"),
        ({"max_restarts": "many"}, "a whole number"),
        ({"script_args": {"a": 1}}, "a list"),
        ({"env": "A"}, "a dictionary"),
    ],
)
def test_a_wrong_type_says_what_is_expected(given: dict[str, Any], words: str):
    _, problems = role_specs.converted(run_options.VERBS["train"], given)
    assert len(problems) == 1
    assert words in problems[0]


def test_a_script_is_found_from_where_the_user_is(tmp_path: Path):
    (tmp_path / "mine.py").write_text("print()")
    assert train(tmp_path, script="mine.py")["script"] == str(tmp_path / "mine.py")


def test_values_of_env_become_strings():
    assert train(env={"A": 1, "B": True, "C": "x y"})["env"] == {"A": "1", "B": "True", "C": "x y"}


@pytest.mark.parametrize("name", ["nnodes", "base_user", "cluster_addr", "ansible_user", "firewall_allow"])
def test_known_names_are_accepted(name: str):
    assert run_options.unknown_option(name, "train", KNOWN) is None


@pytest.mark.parametrize(
    ("name", "verb", "hint"),
    [
        ("nnode", "train", "nnodes"),
        ("scrip", "train", "script"),
        ("line", "logs", "lines"),
        ("base_usr", "site", "base_user"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest(name: str, verb: str, hint: str):
    sentence = run_options.unknown_option(name, verb, KNOWN) or ""
    assert f"`{name}`" in sentence
    assert f"did you mean `{hint}`?" in sentence


@pytest.mark.parametrize("name", ["env", "my_app_port", "base_url", "_private", "trainer_team"])
def test_the_users_own_inventory_variables_are_left_alone(name: str):
    assert run_options.unknown_inventory_variable(name, "a", KNOWN, ["firewall_"]) is None


@pytest.mark.parametrize("name", ["nproc_per_nod", "clusteraddr", "base_packges", "firewall_zone"])
def test_an_inventory_variable_that_looks_like_ours_is_refused(name: str):
    assert f"`{name}` of a" in (run_options.unknown_inventory_variable(name, "a", KNOWN, ["firewall_"]) or "")


@pytest.mark.parametrize("verb", ["logs", "stop"])
def test_a_verb_for_one_job_needs_its_name(verb: str):
    options, _ = role_specs.converted(run_options.VERBS[verb], {"job": ""})
    with pytest.raises(OptionError, match="job is empty"):
        run_options.checked(verb, options, Path("/"))


def test_clean_needs_the_number_of_runs_that_stay():
    for given, words in (({}, "keep is missing"), ({"keep": -1}, "keep is -1")):
        options, _ = role_specs.converted(run_options.VERBS["clean"], given)
        with pytest.raises(OptionError, match=words):
            run_options.checked("clean", options, Path("/"))
    options, _ = role_specs.converted(run_options.VERBS["clean"], {"keep": 0})
    assert run_options.checked("clean", options, Path("/"))["job"] == ""


@pytest.mark.parametrize("verb", ["resume", "restart"])
def test_what_resume_is_not_given_stays_open(verb: str):
    options, _ = role_specs.converted(run_options.VERBS[verb], {"nnodes": 1})
    assert run_options.checked(verb, options, Path("/")) == {
        "job": "train", "nnodes": 1, "nproc_per_node": None, "master_port": None, "max_restarts": None,
        "hang_timeout": None, "env": {}, "env_file": None, "wait": True, "preflight": "strict",
    }  # fmt: skip
    assert "but of train.yml" in (run_options.unknown_option("script", verb, KNOWN) or "")


def test_an_option_of_another_verb_is_named_as_that():
    assert "but of train.yml" in (run_options.unknown_option("nnodes", "site", KNOWN) or "")


@pytest.mark.parametrize(
    ("name", "known"), [("ansible_hots", False), ("ansible_host", True), ("ansible_winrm_x", True)]
)
def test_a_typo_of_a_variable_of_ansible_is_refused(name: str, known: bool):
    assert (run_options.unknown_option(name, "train", KNOWN) is None) is known


@pytest.mark.parametrize("path", ["relative", "/", "/usr", "/etc/", "/srv/..", "/proc/x"])
def test_a_folder_of_the_system_is_no_shared_storage(path: str):
    with pytest.raises(OptionError, match="shared_storage_path"):
        run_options.checked_shared_path(path)


def test_the_path_of_the_shared_storage_is_made_plain():
    assert run_options.checked_shared_path("/srv//torchrun/") == "/srv/torchrun"


def test_a_script_is_looked_for_within_the_project(tmp_path: Path):
    (tmp_path / "project/tools").mkdir(parents=True)
    (tmp_path / "project/tools/train.py").write_text("")
    options = train(tmp_path, workdir="project", script="tools/train.py")
    assert options["script"] == str(tmp_path / "project/tools/train.py")


@pytest.mark.parametrize("line", ["-r other.txt", "-e .", "./local", "--constraint c.txt", "file:///x.whl"])
def test_requirements_that_only_this_machine_has_are_refused(tmp_path: Path, line: str):
    (tmp_path / "r.txt").write_text(f"numpy\n{line}\n")
    with pytest.raises(OptionError, match="line 2"):
        train(tmp_path, requirements="r.txt")
    (tmp_path / "r.txt").write_text("numpy\n--index-url https://me:token@example.org/simple\n")
    with pytest.raises(OptionError, match="line 2 has a password") as caught:
        train(tmp_path, requirements="r.txt")
    assert "me:token" not in str(caught.value)
    (tmp_path / "r.txt").write_text(
        "--extra-index-url https://example.org/simple\nnumpy>=1 # why\n\n-i https://e.org\n"
    )
    assert train(tmp_path, requirements="r.txt")["requirements"] == str(tmp_path / "r.txt")


def test_an_env_file_is_read_as_people_write_them():
    text = "# tokens\n\nexport A=1\nB='x y'\nC = \"a=b\" \nD=\n"
    assert run_options.parse_env_file(text, "f") == {"A": "1", "B": "x y", "C": "a=b", "D": ""}


@pytest.mark.parametrize("text", ["A=1\nsecret-token\n", "A=1\n1B=secret-token\n"])
def test_a_wrong_line_of_an_env_file_is_named_by_number_alone(text: str):
    with pytest.raises(OptionError, match="line 2") as caught:
        run_options.parse_env_file(text, "f")
    assert "secret" not in str(caught.value)
    with pytest.raises(OptionError, match="RANK"):
        run_options.parse_env_file("RANK=1", "f")
