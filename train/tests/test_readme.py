"""What the README shows is what is tested."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def test_the_example_of_the_readme_is_the_one_that_is_tested():
    example = (HERE / "example_plugin.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1].strip()
    assert f"```python\n{example}\n```" in (HERE.parent / "README.md").read_text(encoding="utf-8")
