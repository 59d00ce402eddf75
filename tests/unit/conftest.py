"""Make ansible_collections.torchrun.cluster importable, as Ansible itself does."""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

_AnsibleCollectionFinder(paths=[str(Path(__file__).parents[2] / "collections")])._install()
