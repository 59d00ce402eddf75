"""What pip is set up with on the machine, and what of it a local node is handed."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from ansible_collections.torchrun.cluster.plugins.module_utils import host_pip


def test_the_environment_wins_over_files_and_a_commands_section_over_global() -> None:
    listing = "\n".join(
        [
            ":env:.find-links='/env'",
            "global.find-links='/global'",
            "global.index-url='https://a.example/simple'",
            "install.index-url='https://b.example/simple'",
        ]
    )
    assert host_pip.parse(listing) == {"find-links": "/env", "index-url": "https://b.example/simple"}


@pytest.mark.parametrize("listing", ["", "\n", "wheel.find-links='/w'", "WARNING: something"])
def test_what_concerns_no_installation_is_left_out(listing: str) -> None:
    assert host_pip.parse(listing) == {}


def test_every_local_path_is_mounted_and_a_file_index_with_what_it_links_to(tmp_path: Path) -> None:
    for folder in ("wheels", "index/simple"):
        (tmp_path / folder).mkdir(parents=True)
    constraints = tmp_path / "constraints.txt"
    constraints.touch()
    options = {
        "find-links": f"{tmp_path}/wheels https://download.example/whl {tmp_path}/absent",
        "extra-index-url": f"file://{tmp_path}/index/simple https://c.example/simple",
        "constraint": str(constraints),
    }
    assert host_pip.local_paths(options) == [str(constraints), f"{tmp_path}/index", f"{tmp_path}/wheels"]


def test_a_path_within_another_is_mounted_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert host_pip.local_paths({"find-links": f"{tmp_path}/a {tmp_path}/a/b"}) == [f"{tmp_path}/a"]


def test_a_file_index_in_the_root_directory_does_not_mount_the_root() -> None:
    assert host_pip.local_paths({"index-url": "file:///tmp"}) == []


def test_pip_can_read_the_configuration_it_is_handed() -> None:
    text = host_pip.configuration({"extra-index-url": "https://a.example https://b.example", "timeout": "9"}, True)
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert parser["global"]["extra-index-url"].split() == ["https://a.example", "https://b.example"]
    assert parser["global"]["timeout"] == "9"
    assert parser["global"]["cert"] == host_pip.CERTIFICATES


def test_options_that_are_the_machines_own_business_are_not_handed_on() -> None:
    text = host_pip.configuration({"user": "true", "target": "/t", "cert": "/host/bundle.pem"}, False)
    assert not any(word in text for word in ("user =", "target", "cert"))


def test_the_bundle_pip_is_told_comes_before_that_of_others(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.pem", tmp_path / "other.pem"
    mine.touch()
    other.touch()
    assert host_pip.certificates({"cert": str(mine)}, {"SSL_CERT_FILE": str(other)}) == str(mine)
    assert host_pip.certificates({}, {"SSL_CERT_FILE": str(other)}) == str(other)
    assert host_pip.certificates({"cert": str(tmp_path / "absent")}, {}) == ""
