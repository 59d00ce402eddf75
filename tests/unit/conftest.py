"""Make ansible_collections.torchrun.cluster importable, as Ansible itself does."""

from __future__ import annotations

from pathlib import Path

import hypothesis
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

# Time is no property of ours on a machine that others use.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

_AnsibleCollectionFinder(paths=[str(Path(__file__).parents[2] / "collections")])._install()
