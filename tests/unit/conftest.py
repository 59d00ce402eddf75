"""Make ansible_collections.torchrun.cluster importable, as Ansible itself does."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis
import pytest
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

# Time is no property of ours on a machine that others use.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

_AnsibleCollectionFinder(paths=[str(Path(__file__).parents[2] / "collections")])._install()


@pytest.fixture
def unit_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What systemd gives the unit of a job on node2, with a run folder."""
    values = {
        "TORCHRUN_RUN_DIR": str(tmp_path),
        "TORCHRUN_LAUNCH": "l1",
        "TORCHRUN_HOST": "node2",
        "TORCHRUN_NODE_RANK": "1",
        "PET_LOG_DIR": str(tmp_path / "logs"),
        "TORCHRUN_WORLD_SIZE": "3",
    }
    (tmp_path / "job.yml").write_text(json.dumps({"launch": "l1", "nodes": [{"name": "node1"}, {"name": "node2"}]}))
    (tmp_path / "nodes").mkdir()
    (tmp_path / "code").mkdir()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values
