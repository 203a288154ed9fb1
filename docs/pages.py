"""The pages of the documentation as programs: what their code blocks are, and how they are run.

A page is one program. Its blocks run in their order, in one namespace and one new folder. The words after
the opening fence say what is done with a block:

    python                  it is run
    python peer             another library's code: it only has to be Python
    console                 lines that begin with `$ ` are run; what they print is compared with what is shown
    text output             what the Python block before it printed
    sh                      for a person to type (make, pip, a server): only its weft commands are looked at
    toml, json              it has to be readable
    text                    nothing
    {name}                  a directive of the page itself

Marks may follow. `digits` (console, text output): numbers need not be equal. `within=0.05` (text output):
numbers may differ by so much. `file=NAME` (any): the block is also written to that file in the page's folder.
In shown output a line of three dots stands for any lines, and three dots in a line for any text. A word that is
not known is an error.

    python docs/pages.py docs/tutorials/tasks.md

runs pages and puts what they print, and the pictures that they draw, into them: the figures in the sentences
are then yours to check.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["HERE", "Block", "blocks", "pages", "run"]

HERE = Path(__file__).parent
DIRECTIVES = {"toctree", "catalogue", "overview", "gallery", "container"}
MARKS = {
    "python": {"peer", "file"},
    "console": {"digits"},
    "text": {"output", "digits", "within", "file"},
    "sh": set(),
    "toml": {"file"},
    "json": {"file"},
}
DIGITS = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?!\w)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its marks and its text."""

    page: Path
    line: int
    language: str
    marks: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        """Where it is, for a message."""
        return f"{self.page.relative_to(HERE)}:{self.line}"


def pages() -> list[Path]:
    """Every page, in the order of their names."""
    return sorted(path for path in HERE.rglob("*.md") if "_build" not in path.parts)


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page; raises ValueError for a language or mark that is not known."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = re.match(r"(`{3,}|~{3,})(.*)$", lines[number].strip())
        number += 1
        if not opening:
            continue
        start, fence = number, opening.group(1)
        while number < len(lines) and not re.fullmatch(
            re.escape(fence[0]) + f"{{{len(fence)},}}", lines[number].strip()
        ):
            number += 1
        if number == len(lines):
            raise ValueError(f"{page.name}:{start}: expected the fence to be closed, got the end of the page")
        block = _block(page, start, opening.group(2).split(), "\n".join(lines[start:number]) + "\n")
        number += 1
        if block is not None:
            yield block


def _block(page: Path, line: int, words: list[str], text: str) -> Block | None:
    language = words[0] if words else ""
    marks = dict(word.partition("=")[::2] for word in words[1:])
    directive = re.fullmatch(r"\{(\w+)\}", language)
    if directive:
        if directive.group(1) not in DIRECTIVES:
            raise ValueError(f"{page.name}:{line}: expected a directive among {sorted(DIRECTIVES)}, got {language}")
        return None
    if language not in MARKS or not set(marks) <= MARKS[language]:
        known = "; ".join(f"{name} ({', '.join(sorted(marks)) or 'no marks'})" for name, marks in MARKS.items())
        raise ValueError(f"{page.name}:{line}: expected one of {known}, got {' '.join(words)!r}")
    return Block(page, line, language, marks, text)


def run(page: Path, folder: Path, printing: dict[int, str] | None = None) -> int:
    """Runs a page in a folder, and returns how many blocks did something; raises where one does not hold.

    With `printing`, what Python printed is put there by the line of the block that should show it, uncompared.
    """
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed = ""
    done = 0
    with contextlib.chdir(folder):
        for block in blocks(page):
            if "file" in block.marks:
                written = Path(block.marks["file"])
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_text(block.text, encoding="utf-8")
            if block.language == "python":
                # padded, so that a traceback shows the page's own lines
                code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
                if "peer" not in block.marks:
                    with contextlib.redirect_stdout(io.StringIO()) as out:
                        exec(code, namespace)
                    printed = out.getvalue()
                    done += 1
            elif block.language == "console":
                done += _console(block)
            elif "output" in block.marks:
                if printing is None:
                    _compare(block, printed, block.text)
                else:
                    printing[block.line] = printed
                done += 1
            elif block.language == "sh":
                _commands(block)
            elif block.language in ("toml", "json"):
                {"toml": tomllib, "json": json}[block.language].loads(block.text)
    return done


# --- commands -----------------------------------------------------------------------------------------


def _console(block: Block) -> int:
    """Each `$ ` line with what is shown of its output."""
    parts: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if parts and not parts[-1][1] and parts[-1][0].endswith("\\"):
            parts[-1] = (parts[-1][0][:-1] + line.removeprefix("> "), [])
        elif line.startswith("$ "):
            parts.append((line[2:], []))
        elif parts:
            parts[-1][1].append(line)
        else:
            raise ValueError(f"{block.place}: expected a line that begins with '$ ' first, got {line!r}")
    for command, shown in parts:
        status, output = _command(command)
        if status:
            raise ValueError(f"{block.place}: expected exit status 0 of {command!r}, got {status}\n{output}")
        if "\n".join(shown).strip():
            _compare(block, output, "\n".join(shown))
    return len(parts)


def _command(command: str) -> tuple[int, str]:
    """Exit status and output; weft runs within this process, since importing torch takes seconds."""
    if not command.startswith("weft ") or re.search(r"[|<>;&]", command):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    from typer.testing import CliRunner

    from weft.commands.app import app

    result = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "100"}, prog_name="weft")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def _commands(block: Block) -> None:
    """Commands that are not run must exist, with their options."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "weft" not in words:
            continue
        words = words[words.index("weft") + 1 :]
        status, told = _command(f"weft {words[0]} --help")
        known = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", told))
        unknown = [w for w in words[1:] if w.startswith("-") and w.partition("=")[0] not in known]
        if status or unknown:
            raise ValueError(f"{block.place}: expected a command of weft and its options, got {line!r} ({unknown})")


# --- output -------------------------------------------------------------------------------------------


def _compare(block: Block, got: str, shown: str) -> None:
    """What is shown must be what came, up to spaces, three dots and the tolerance for numbers."""
    want = [" ".join(line.split()) for line in shown.splitlines() if line.strip()]
    have = [" ".join(line.split()) for line in got.splitlines() if line.strip()]
    if not _matches(want, have, block.marks):
        raise ValueError(f"{block.place}: expected\n{shown}\ngot\n{got}")


def _matches(want: list[str], have: list[str], marks: dict[str, str]) -> bool:
    if not want:
        return not have
    if want[0] == "...":
        return any(_matches(want[1:], have[skip:], marks) for skip in range(len(have) + 1))
    return bool(have) and _same(want[0], have[0], marks) and _matches(want[1:], have[1:], marks)


def _same(want: str, have: str, marks: dict[str, str]) -> bool:
    if "within" not in marks:
        if "digits" in marks:
            want, have = DIGITS.sub("#", want.replace("...", "\0")), DIGITS.sub("#", have)
        pattern = ".*".join(map(re.escape, re.split(r"\.\.\.|\0", want)))
        return re.fullmatch(pattern, have) is not None
    if NUMBER.sub("#", want) != NUMBER.sub("#", have):
        return False
    pairs = zip(NUMBER.findall(want), NUMBER.findall(have), strict=True)
    return all(abs(float(a) - float(b)) <= float(marks["within"]) for a, b in pairs)


def renew(page: Path) -> None:
    """Puts what a page prints and draws into it; pictures go to docs/pictures."""
    import matplotlib

    matplotlib.rcParams.update({"svg.hashsalt": page.stem})
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # else each picture would tell when it was drawn
    printing: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        run(page, Path(folder), printing)
        for picture in Path(folder).glob("*.svg"):
            # without the trailing blanks that matplotlib leaves
            lines = [line.rstrip() for line in picture.read_text(encoding="utf-8").splitlines()]
            (HERE / "pictures").mkdir(exist_ok=True)
            (HERE / "pictures" / picture.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = page.read_text(encoding="utf-8").splitlines()
    for start in sorted(printing, reverse=True):
        end = next(i for i in range(start, len(lines)) if lines[i].startswith("```"))
        if "..." not in lines[start:end]:
            lines[start:end] = [line.rstrip() for line in printing[start].splitlines()]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(Path(name).resolve())
