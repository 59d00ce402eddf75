"""The page of measurements says what the benches have written."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import page  # noqa: E402 (benches are scripts, not a package)


def test_the_page_is_what_the_results_say():
    assert page.PAGE.read_text() == page.page(), "run bench/page.py"
