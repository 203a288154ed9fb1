"""Every Python example of the README runs, in order, as a reader would type them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    namespace = {"__name__": "readme"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"README.md, example {number}", "exec"), namespace)
        assert capsys.readouterr().out


def test_what_it_points_to_is_there():
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
    for folder in re.findall(r"`(\w+)/`", TEXT):
        assert (ROOT / "src" / "weft" / folder).is_dir(), folder


def test_the_commands_are_in_the_makefile():
    rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:^|`)make (\w+)", TEXT, re.MULTILINE)
    assert {"demo", "test"} <= set(named) <= set(rules)
