"""The page of symptoms says what the rules and the faults say."""

from __future__ import annotations

import troubleshooting


def test_the_page_is_what_rules_and_faults_say():
    assert troubleshooting.PAGE.read_text() == troubleshooting.page(), "run tests/support/troubleshooting.py"
