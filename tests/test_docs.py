"""The documentation: every block of code runs, what is shown is what comes, every link leads somewhere."""

import html
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft.core import Move, Objective, Penalty, Strategy, Summing

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "docs" / "pages.py")
pages = importlib.util.module_from_spec(_spec)
sys.modules["docs_pages"] = pages
_spec.loader.exec_module(pages)


def _name(page):
    return str(page.relative_to(pages.HERE))


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.turns(f"docs/{_name(p)}", "docs/pages.py"), id=_name(p)) for p in pages.pages()],
)
def test_the_page_runs(page, tmp_path):
    pages.run(page, tmp_path)


def test_every_guide_has_something_to_run():
    made = {"gallery.md", "statistics.md", "support.md", "vectorized.md"}
    for page in pages.pages():
        if page.name in made or page.parent.name == "catalogue":
            continue
        kinds = {block.language for block in pages.blocks(page) if "peer" not in block.marks}
        assert kinds & {"python", "console"}, page


def _page(folder, text):
    page = pages.HERE / "index.md"

    class Page(type(page)):
        def read_text(self, encoding=None):
            return text

    return Page(page)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```pyhton\n1\n```\n", "got 'pyhton'"),
        ("```python per\n1\n```\n", "got 'python per'"),
        ("```\n1\n```\n", "got ''"),
        ("```{tocree}\n```\n", "expected a directive"),
        ("```python\n1\n", "expected the fence to be closed"),
        ("```python\nprint(1)\n```\n```text output\n2\n```\n", "got\n1"),
        ("```python\nprint(.5)\n```\n```text output within=0.1\n0.61\n```\n", "got\n0.5"),
        ("```python\nprint('a 1')\n```\n```text output digits\nb 2\n```\n", "got\na 1"),
        ("```console\n$ weft --version\nweft 17\n```\n", "expected\nweft 17"),
        ("```console\n$ weft show nothing\n```\n", "expected exit status 0"),
        ("```console\n$ false\n```\n", "expected exit status 0"),
        ("```console\nweft --version\n```\n", "expected a line that begins"),
        ("```sh\nweft fit x.csv --targt y\n```\n", "--targt"),
        ("```sh\nweft fot x.csv\n```\n", "expected a command of weft"),
        ("```toml\na = \n```\n", "Invalid value"),
    ],
)
def test_what_does_not_hold_is_told(text, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        pages.run(_page(tmp_path, text), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint('a  0.50')\n```\n```text output within=0.1\na 0.55\n```\n",
        "```python\nprint(1, 2); print(3); print(4)\n```\n```text output\n1 2\n...\n4\n```\n",
        "```console digits\n$ weft --version\nweft 9.9.9\n```\n",
        "```console\n$ echo a \\\n> b\na b\n```\n",
        "```sh\nmake docs\nweft fit x.csv --target y   # a comment\n```\n",
        "```python peer\nimport nothing\n```\n",
        "```toml file=a/b.toml\nc = 1\n```\n```console\n$ cat a/b.toml\nc = 1\n```\n",
    ],
)
def test_what_holds_passes(text, tmp_path):
    pages.run(_page(tmp_path, text), tmp_path)


@pytest.mark.parametrize("text", ["```python\n1 / 0\n```\n", "```python peer\n1 +\n```\n"])
def test_a_failure_is_raised_with_the_line_of_the_page(text, tmp_path):
    with pytest.raises((ZeroDivisionError, SyntaxError)) as caught:
        pages.run(_page(tmp_path, text), tmp_path)
    last = caught.traceback[-1].lineno + 1 if caught.type is ZeroDivisionError else caught.value.lineno
    assert last == 2


RESULT = {
    "format": 1,
    "kind": "claim",
    "name": "spirals",
    "title": "Spirals & <script>alert(1)</script>",
    "statement": "A | B, *not* starred",
    "reference": "Nobody, 1900",
    "scale": "quick",
    "seeds": [0, 1],
    "setting": {},
    "figures": [
        {"name": "accuracy", "reference": "97", "measured": 98.5, "interval": [97.0, 99.0], "unit": "%", "holds": True},
        {"name": "too long", "reference": "12", "measured": None, "interval": None, "unit": "", "holds": None},
    ],
    "verdict": "fails",
    "why": "Because.",
    "tolerance": "None.",
    "tables": [{"title": "All", "columns": ["a", "b"], "rows": [["x", 0.123456], [None, 3]]}],
    "pictures": [{"file": "dots.svg", "alt": "Some dots", "caption": "Look at the dots."}],
    "budget": {"seconds": 1.0, "trainings": 2, "steps": 30},
    "weft": "0.1.0",
    "date": "2026-11-15T12:00:00+00:00",
    "machine": {"accelerator": "NVIDIA H200"},
    "command": "weft reproduce spirals",
}


def _build(folder, out):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", folder / "trees"]
    command += [ROOT / "docs", folder / "html"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "WEFT_OUT": str(out)}
    )


@pytest.mark.parametrize("kind", [Strategy, Penalty, Summing, Move, Objective], ids=lambda kind: kind.__name__)
def test_how_to_add_a_method_teaches_every_trait_and_verb(kind):
    """A method of the user's own needs no attribute that the page does not teach."""
    page = (ROOT / "docs" / "adding.md").read_text()
    own = {name for name in vars(kind) if not name.startswith("_")} | set(getattr(kind, "__dataclass_fields__", ()))
    asked = {"parts", "sight", "does", "pulls", "capabilities", "declares"}  # by the engine and the Learner
    asked |= {"projects", "masses", "holds", "orders", "companions", "lowered", "surveys"}
    missing = sorted(name for name in own - asked if not re.search(rf"\b{name}\b", page))
    assert not missing


def _promises(text):
    """By each row of the page's tables, the tests that it names."""
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    return {row: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows}


def _unheld(text):
    """The rows of the page without a test, or with one that does not exist."""

    def exists(path, name):
        return (ROOT / path).is_file() and re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)

    return [row for row, tests in _promises(text).items() if not tests or not all(exists(*test) for test in tests)]


def test_every_promise_is_held_by_a_test():
    page = (ROOT / "docs" / "promises.md").read_text()
    assert _unheld(page) == []
    assert len(_promises(page)) >= 25
    assert re.findall(r"^## (\w+)", page, re.MULTILINE) == [
        "Kills",
        "Acting",
        "Densities",
        "Autoregressive",
        "Latent",
        "Ranks",
        "Replicas",
        "Draws",
        "Samples",
        "Data",
        "Memory",
        "Files",
        "Sequences",
    ]
    first = "| It flies | `tests/test_docs.py::test_it_flies` |"
    assert _unheld(f"{first}\n| It swims | said so |\n| `tests/test_docs.py::test_the_page_runs` |") == [
        first,
        "| It swims | said so |",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site with one claim's result, built strictly: a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    claim = folder / "out" / "claims" / "spirals"
    claim.mkdir(parents=True)
    (claim / "result.json").write_text(json.dumps(RESULT), encoding="utf-8")
    (claim / "dots.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', encoding="utf-8")
    done = _build(folder, folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_the_site_needs_no_network(site):
    found = list(site.rglob("*.html"))
    assert len(found) >= len(pages.pages())
    for path in [*found, *site.rglob("*.css"), *site.rglob("*.js")]:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"(?:https?:)?//[^\"]*", text)
        loaded += re.findall(r"<link[^>]*\bhref=\"(?:https?:)?//[^\"]*", text)
        loaded += re.findall(r"url\(['\"]?(?:https?:)?//[^)]*|@import[^;]*", text)
        assert not loaded, (path.name, loaded)
        assert not re.search(r"pypi\.org|pythonhosted|/simple/", text), path.name


def test_the_catalogue_holds_every_method(site):
    from weft.core.catalogue import entries

    for entry in entries():
        text = (site / "catalogue" / f"{entry.room}.html").read_text(encoding="utf-8")
        assert f'id="{entry.name}"' in text
        overview = (site / "catalogue" / "index.html").read_text(encoding="utf-8")
        assert f"{entry.room}.html#{entry.name}" in overview


def test_the_catalogue_shows_what_a_method_takes_without_types(site):
    for room, call in {
        "sources": "Episodes(draw, *, tasks=25, shots=10, queries=None, ways=None, classes=None)",
        "objectives": "GAN(latent=2, *, generator=None, critic=None, hidden=(128, 128), critic_steps=1",
        "attacks": "PGD(*, eps=0.1, steps=1, step=None, start='clean', bounds='rows')",
    }.items():
        text = (site / "catalogue" / f"{room}.html").read_text(encoding="utf-8")
        assert call in html.unescape(re.sub(r"<[^>]+>", "", text))


def test_the_catalogue_says_what_a_family_is(site):
    from weft.core.catalogue import entries

    families = {(entry.room, entry.family) for entry in entries() if entry.family}
    assert {("strategies", "invariance"), ("objectives", "games")} <= families
    for room, family in families:
        said = importlib.import_module(f"weft.{room}.{family}").__doc__
        for page in (room, "index"):
            text = html.unescape((site / "catalogue" / f"{page}.html").read_text(encoding="utf-8"))
            assert f'id="{family}"' in text
            assert said in text


def test_the_gallery_shows_results_and_what_was_not_run(site):
    from weft.bench.claims import listed

    text = (site / "gallery.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in text
    assert "Spirals &amp; &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "A | B, *not* starred" in text
    assert "✗ fails" in text
    assert "98.5 % [97, 99]" in text
    assert "0.1235" in text
    assert "30 steps, 1 s on NVIDIA H200; weft 0.1.0" in text
    assert 'alt="Some dots"' in text
    assert (site / "_images" / "dots.svg").exists()
    others = [claim for claim in listed() if claim.name != "spirals"]
    assert text.count(">not run</span>") == 2 * len(others)  # in the overview and in its own section
    for claim in others:
        assert claim.title in html.unescape(text)


def test_a_quick_result_never_takes_the_place_of_a_full_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs")
    made = importlib.import_module("made")
    scales = {"kept": {"a": "full", "b": "quick", "c": "full"}, "own": {"a": "quick", "b": "full", "c": "full"}}
    for folder, each in scales.items():
        for name, scale in each.items():
            (tmp_path / folder / "claims" / name).mkdir(parents=True)
            result = {"format": 1, "kind": "claim", "name": name, "scale": scale}
            (tmp_path / folder / "claims" / name / "result.json").write_text(json.dumps(result))
    found = made.chosen([tmp_path / "kept", tmp_path / "own"])
    where = {result["name"]: result["folder"].parents[1].name for result in found}
    assert where == {"a": "kept", "b": "own", "c": "own"}


def test_the_overview_tells_the_headline_figure(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs")
    made = importlib.import_module("made")
    about = {"interval": None, "unit": "", "reference": "", "verdict": "holds", "by": "", "scores": [], "margins": None}
    exact = {**about, "name": "identity", "measured": 0.0, "least": None, "most": 1e-9, "exact": True}
    told = {**about, "name": "error", "measured": 88.3, "least": 85.76, "most": 87.76, "exact": False}
    result = {"scale": "full", "seeds": [0, 1], "figures": [exact, told]}
    assert made.headline(result) == ["full", "2", "error", made.measured(told), "+1.5 of ±1"]
    told |= {"least": None}
    assert made.headline(result)[-1] == "0.54 beyond its bound"
    assert made.headline({**result, "figures": [exact]})[2] == "identity"
    assert made.headline({"name": "not run"}) == ["-"] * 5


@pytest.mark.turns("docs/made.py", "docs/conf.py")
def test_a_damaged_result_of_a_claim_is_told(tmp_path):
    claim = tmp_path / "out" / "claims" / "spirals"
    claim.mkdir(parents=True)
    (claim / "result.json").write_text('{"format": 2}', encoding="utf-8")
    done = _build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert "expected the result of a claim (format 1)" in done.stderr
