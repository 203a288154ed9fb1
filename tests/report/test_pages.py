"""The report: every name escaped, every figure in its place, and a page that works in a real browser."""

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
import typer
from tests.faults.hostile import reseal
from tests.report.report_cases import ATTACK, claim, hostile, study, write_claims, write_study
from typer.testing import CliRunner

from weft import Classifier, Learner
from weft.commands.report import register
from weft.core.objective import Objective, Output, capability
from weft.data.gaussians import ring
from weft.objectives import GAN, LeastSquares
from weft.report.page.markup import Names, Sections
from weft.report.page.run import commanded
from weft.report.page.samples import reconstructions
from weft.report.writing import look, render, write

ACCESS = Path(__file__).with_name("access.js").read_text()


class Reader(HTMLParser):
    """The tags, attributes and tables of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.tables, self.words, self._in = [], [], {}, [], None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "caption":
            self._in, self._caption, self._rows = "caption", "", []
        elif tag == "tr" and self._in is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._in is not None:
            self._in = "cell"
            self._rows[-1].append("")

    def handle_endtag(self, tag):
        if tag == "caption":
            self._in = "head"
            self.tables[self._caption] = self._rows
        elif tag == "table":
            self._in = None

    def handle_data(self, data):
        self.words.append(data)
        if self._in == "caption":
            self._caption += data
        elif self._in == "cell":
            self._rows[-1][-1] += data

    def table(self, start):
        (found,) = [rows for caption, rows in self.tables.items() if caption.startswith(start)]
        return found

    def files(self):
        found = [v for k, v in self.attributes if k == "href" and v.startswith("data:text/csv")]
        return [list(csv.reader(io.StringIO(unquote(v.partition(",")[2])))) for v in found]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder of each kind, and its report."""
    root = tmp_path_factory.mktemp("bench")
    write_study(root / "study")
    write_study(root / "tasks", tasks=True)
    write_claims(root / "claims")
    Learner(GAN(hidden=(8,)), steps=20, replicas=2, random_state=0, folder=root / "run").fit(ring(200))
    for name in ("study", "tasks", "claims", "run"):
        write([root / name])
    return root


# --- what it says -------------------------------------------------------------------------------------


def test_a_study_is_told_by_its_own_numbers(folders):
    given = json.loads((folders / "study" / "results.json").read_text())
    page = Reader((folders / "study" / "report.html").read_text())
    rows = page.table("Test accuracy")
    assert [r[0].strip() for r in rows[1:]] == [*(m["name"] for m in given["methods"]), "base rate"]
    assert float(rows[-1][1]) == given["base"]["test"]
    for row, method in zip(rows[1:-1], given["methods"], strict=True):
        assert float(row[1]) == pytest.approx(method["mean"], abs=5e-4)
        assert [float(v) for v in row[2].split(" to ")] == pytest.approx(method["interval"], abs=6e-4)
    words = " ".join(page.words)
    said = [*given["sentences"], given["command"], "Holm", "training-domain", *given["versions"], "2.11.0"]
    assert all(text in words for text in said)
    assert words.index(given["sentences"][0]) < words.index("Test accuracy")
    assert len(page.table("The ledger")) == 1 + len(given["ledger"])
    assert len(page.table("Every trial")) == 1 + len(given["trials"])
    assert len(page.table("Accuracy in each environment")) == 1 + 5


def test_a_study_that_judges_nothing_has_no_intervals(folders, tmp_path):
    given = json.loads((folders / "study" / "results.json").read_text())
    for method in given["methods"]:
        method["interval"] = None
    for pair in given["comparisons"]:
        pair |= {"interval": None, "p": None, "p_corrected": None, "verdict": "not judged"}
    shutil.copytree(folders / "study", tmp_path / "study")
    (tmp_path / "study" / "results.json").write_text(json.dumps(given))
    write([tmp_path / "study"])
    page = Reader((tmp_path / "study" / "report.html").read_text())
    assert {row[2].strip() for row in page.table("Test accuracy")[1:]} == {"–"}
    assert {(row[4], row[6]) for row in page.table("Paired differences")[1:]} == {("–", "not judged")}


def test_a_run_tells_its_risk_by_environment(folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    each = {
        "a": {"rows": 7, "risk": 0.25, "replicas": [0.2, 0.3]},
        "<b>": {"rows": 9, "risk": 0.5, "replicas": [0.4, 0.6]},
    }
    about = {"environment": "site", "part": "held-out", "measure": "task_loss", "direction": "min", "score": None}
    found = {**about, "worst": "<b>", "mean": 0.375, "environments": {k: {**v, "score": None} for k, v in each.items()}}
    (tmp_path / "run" / "risk.json").write_text(json.dumps(found))
    write([tmp_path / "run"])
    rows = Reader((tmp_path / "run" / "report.html").read_text()).table(
        "Risk by environment: mean task loss of the held-out"
    )
    assert [[cell.strip() for cell in row[:3]] for row in rows[1:]] == [["a", "7", "0.250"], ["<b>", "9", "0.500"]]


def test_the_files_to_download_hold_every_score(folders):
    given = json.loads((folders / "study" / "results.json").read_text())
    files = Reader((folders / "study" / "report.html").read_text()).files()
    (scores,) = [f for f in files if f[0][:3] == ["method", "seed", "score"]]
    assert [float(r[2]) for r in scores[1:]] == [s for m in given["methods"] for s in m["scores"]]
    curves = [f for f in files if f[0][:3] == ["curve", "step", "seed 1"]]
    assert len(curves) == 2
    first = given["methods"][0]["curves"]["measures"]["accuracy"]
    assert [float(v) for v in curves[0][1][2:]] == [seed[0] for seed in first]
    assert len(curves[0]) == 1 + 4 * 60


def test_tasks_have_their_matrix(folders):
    page = Reader((folders / "tasks" / "report.html").read_text())
    captions = [c for c in page.tables if "accuracy after each task" in c]
    assert len(captions) == 4
    rows = page.tables[captions[0]]
    assert [[float(v) for v in r[1:]] for r in rows[1:]] == [[0.98, 0.5, 0.48], [0.81, 0.97, 0.52], [0.7, 0.88, 0.96]]
    kinds = [v.split()[-1] for k, v in page.attributes if k == "class" and v and "heat-" in v]
    assert kinds[0] == "heat-9"
    assert kinds[2] == "heat-0"
    kept = page.table("What is kept of earlier tasks")
    assert [c.strip() for c in kept[0]] == ["method", "average accuracy", "forgetting (max)", "backward transfer"]
    assert [c.strip() for c in kept[1][1:]] == ["0.847", "0.185", "−0.185"]


def test_a_run_tells_what_is_kept_of_its_tasks(folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    about = {"task": "month", "part": "held-out", "measure": "R2", "direction": "max", "rows": [7, 9]}
    matrix = [[0.9, -3.5], [0.5, None]]
    found = {**about, "names": ["May", "<b>"], "before": [0.0, 0.1], "matrix": matrix}
    found["replicas"] = [{"before": [0.0, 0.1], "matrix": matrix}] * 2
    found["measures"] = {
        "average": {"value": 0.5, "replicas": [0.4, 0.6]},
        "forward_transfer": {"value": None, "replicas": []},
    }
    (tmp_path / "run" / "tasks.json").write_text(json.dumps(found))
    write([tmp_path / "run"])
    page = Reader((tmp_path / "run" / "report.html").read_text())
    rows = page.table("R2 after each month (rows) on each (columns), held-out rows, mean over replicas")
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0][1:] == ["May", "<b>"]
    assert cells[1:] == [["before", "0.000", "0.100"], ["after May", "0.900", "−3.500"], ["after <b>", "0.500", "–"]]
    kept = [[cell.strip() for cell in row] for row in page.table("What is kept of earlier tasks")[1:]]
    assert kept == [["average R2", "0.5", "0.4", "0.6"], ["forward transfer", "–", "–", "–"]]
    assert "May goes from 0 to 0.5; <b> goes from 0.1 to -3.5." in page.words


def test_claims_have_their_verdicts_and_pictures(folders):
    page = Reader((folders / "claims" / "report.html").read_text())
    index = page.table("Every claim")
    assert [r[1].strip() for r in index[1:]] == ["fails", "not run at this scale", "holds"]
    assert "1 of 3 claims hold; 1 fails; 1 was not run at this scale." in page.words
    assert "NVIDIA H200" in page.words
    pictures = [v for k, v in page.attributes if k == "href" and v.startswith("data:image")]
    assert len(pictures) == 3
    assert all(v.startswith("data:image/svg+xml;base64,") for v in pictures)


def test_several_folders_make_one_page(folders):
    page = Reader(render([folders / "study", folders / "run", folders / "claims"]))
    assert page.tags.count("h1") == 1
    assert page.tags.count("h2") == 3
    assert {"Every claim with its verdict.", "The last record, over replicas."} <= page.tables.keys()


def test_an_ordinary_study_stays_under_two_megabytes(tmp_path):
    methods = [f"method {i}" for i in range(8)]
    write_study(tmp_path / "s", methods=methods, seeds=16, records=400)
    assert write([tmp_path / "s"])["bytes"] < 2_000_000


def test_a_study_that_has_only_begun(tmp_path):
    (tmp_path / "progress.json").write_text('{"done": 3, "total": 40, "seconds": 2, "remaining": 90, "what": "erm"}')
    assert "3 of 40 done, about 1 min 30 s to go: erm" in render([tmp_path])
    made = study(state="running")
    for method in made["methods"]:
        method.update(scores=[], mean=None, interval=None, validation=None, environments=None, curves=None)
    made.update(comparisons=[], ledger=[], sentences=[])
    (tmp_path / "results.json").write_text(json.dumps(made))
    assert "The test rows have not been looked at." in render([tmp_path])


def test_gaps_and_odd_values_are_shown_as_such(tmp_path):
    made = study()
    made["methods"][0]["curves"]["measures"]["loss"][0] = [None] * 60
    made["methods"][1]["curves"]["measures"] = {"loss": [[None] * 60] * 8}
    made["methods"][2]["scores"][0] = None
    made["trials"] = [{**t, "setting": {"only": 1}} for t in made["trials"]]
    tmp_path.joinpath("results.json").write_text(json.dumps(made).replace('"lr": 0.003,', '"lr": NaN,'))
    page = render([tmp_path])
    assert "nan" not in re.sub(r"data:[^\"]*", "", page.lower().replace("finance", ""))


# --- escaping -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A study and claims every text of which is an attack, in folders named by one."""
    root = tmp_path_factory.mktemp("bad") / "<script>alert(0)<"
    for name, tasks in (("study", False), ("tasks", True)):
        (root / name).mkdir(parents=True)
        made = hostile(study(tasks=tasks))
        made["data"]["path"] = "<script>alert(1)</script>"
        made["sentences"][1] = "=HYPERLINK(1)"
        made["methods"][0]["name"] = "=cmd|' /C calc'!A0"
        made["trials"][0]["method"] = "=cmd|' /C calc'!A0"
        (root / name / "results.json").write_text(json.dumps(made))
    made = hostile(claim("a", "b"))
    (root / "claim").mkdir()
    (root / "claim" / "result.json").write_text(json.dumps(made))
    paths = [root / "study", root / "tasks", root / "claim"]
    write(paths, root / "report.html")
    return root


def test_no_name_becomes_a_tag(bad):
    page = (bad / "report.html").read_text()
    read = Reader(page)
    assert read.tags.count("script") == 1
    own = (
        "html head meta title link style body a header p svg path b span h1 nav ul li main section h2 h3 h4 div table "
        "caption thead tbody tr th td strong line circle desc text figure details summary pre code dl dt dd article "
        "blockquote figcaption img footer script image"
    )
    assert set(read.tags) <= set(own.split())
    assert not [k for k, _ in read.attributes if k.startswith("on")]
    assert ATTACK.encode() not in page.encode()
    assert "\x00" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)") > 100
    cells = [cell for file in read.files() for r in file for cell in r]
    assert not [c for c in cells if c[:1] in ("=", "+", "@")]
    assert "'=cmd|' /C calc'!A0" in cells


def test_a_claims_picture_comes_from_its_folder_only(tmp_path):
    (tmp_path / "secret.svg").write_text("<svg>hidden</svg>")
    pictures = [{"file": name, "alt": "a", "caption": ""} for name in ("../secret.svg", "x.html", "none.svg", "l.svg")]
    write_claims(tmp_path / "claims", claim("one", "One", pictures=pictures))
    (tmp_path / "claims" / "one" / "l.svg").symlink_to(tmp_path / "secret.svg")
    page = render([tmp_path / "claims"])
    assert page.count("A picture is not shown") == 4
    assert "data:image" not in page


# --- runs ---------------------------------------------------------------------------------------------


def test_a_run_draws_its_samples(folders):
    page = Reader((folders / "run" / "report.html").read_text())
    assert len(page.table("What 400 samples are like")) == 3
    assert "After 20 steps the training energy distance is" in " ".join(page.words)
    learner_rows = page.table("The last record")
    last = json.loads((folders / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert [float(learner_rows[2][i]) for i in (3, 4)] == pytest.approx(sorted(last["energy_distance"]), rel=1e-3)


def test_rows_that_are_pictures_are_shown_as_pictures(tmp_path):
    X = torch.rand(40, 8, 8)
    Learner(GAN(hidden=(4,)), steps=2, random_state=0, folder=tmp_path / "run").fit(X)
    assert Reader(render([tmp_path / "run"])).tags.count("img") == 24


def test_a_module_that_cannot_be_rebuilt_is_no_reason_to_stop(tmp_path):
    net = torch.nn.Linear(2, 2)
    GANS = GAN(generator=net, hidden=(4,))
    Learner(GANS, steps=2, random_state=0, folder=tmp_path / "run").fit(ring(50))
    page = render([tmp_path / "run"])
    assert "the run cannot be loaded by itself" in page
    assert "Learning curves" in page


class Halves(Objective):
    """Keeps the first half of each row: a representation whose reconstruction is known."""

    fields = ("x",)

    def build(self, spec):
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return Output((self.scale * batch["x"]).flatten(1).square().sum(1))

    @capability(merge="mean")
    def transform(self, x):
        return x[:, : x.shape[1] // 2]

    @capability(merge="mean")
    def inverse_transform(self, z):
        return torch.cat([z, torch.zeros_like(z)], 1)


def test_reconstructions_are_shown_beside_the_rows(tmp_path, monkeypatch):
    from weft import objectives
    from weft.report.page import run as part
    from weft.tables.recipe import Table

    monkeypatch.setattr(objectives, "__all__", [*objectives.__all__, "Halves"])  # of the catalogue, for once
    monkeypatch.setattr(objectives, "Halves", Halves, raising=False)
    X = np.arange(16.0).reshape(4, 4)
    Learner(Halves(), steps=1, random_state=0, folder=tmp_path / "run").fit(X.astype("float32"))
    monkeypatch.setattr(part, "_table", lambda folder: Table(X, list("abcd")))
    page = Reader(render([tmp_path / "run"]))
    rows = page.table("How each value is kept")
    assert [float(r[2]) for r in rows[1:]] == pytest.approx([0, 0, *np.sqrt((X[:, 2:] ** 2).mean(0))], abs=1e-2)
    digits = np.random.default_rng(0).random((6, 64))
    made = "".join(reconstructions(digits, digits + 0.5, Sections(Names())))
    assert "is 0.25." in made
    assert made.count("<img") == 12


def test_a_table_run_says_how_to_run_it_again(tmp_path):
    from weft.commands.job import Job, Options, train
    from weft.report.folder import about
    from weft.tables.files import read_columns

    random = np.random.default_rng(0)
    pairs = enumerate(random.random((60, 2)))
    rows = "".join(f"{a:.3f},{b:.3f},{'xy'[int(a > b)]},{'st'[k % 2]}\n" for k, (a, b) in pairs)
    (tmp_path / "a b.csv").write_text(f"a,b,y,site\n{rows}")
    columns = read_columns(tmp_path / "a b.csv")
    options = Options(target="y", task="site", epochs=3, replicas=2, drop=())
    train(Job.plan(columns, options), columns, tmp_path / "run")
    command = commanded(tmp_path / "run", about(tmp_path / "run"))
    assert command.startswith(f"weft fit '{tmp_path}/a b.csv' --target y --task site")
    page = render([tmp_path / "run"])
    assert 'class="break"' in page
    assert "median of 2 replicas" in page


def test_a_run_solved_in_closed_form_has_no_curves(tmp_path):
    Learner(LeastSquares()).fit(np.eye(3), np.arange(3.0)).save(tmp_path / "run")
    assert "solved in closed form" in render([tmp_path / "run"])


def test_a_run_that_was_cut_off_says_so(tmp_path):
    Classifier(epochs=3, random_state=0, folder=tmp_path / "run").fit(np.eye(4), [0, 1, 0, 1])
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    state["tree"]["fitted"]["_phase"]["runs"][0]["done"] = False
    reseal(tmp_path / "run", state_json=state)
    assert "It is still training" in render([tmp_path / "run"])
    import os

    for path in (tmp_path / "run").iterdir():
        os.utime(path, (1e9, 1e9))
    assert "weft resume" in render([tmp_path / "run"])


# --- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "got another kind of folder"),
        ({"results.json": "{"}, "expected JSON in"),
        ({"results.json": "[]"}, "expected a study of weft"),
        ({"results.json": '{"kind": "study", "format": 2}'}, "expected format 1"),
        ({"results.json": '{"kind": "study", "format": 1, "methods": [{}]}'}, "damaged or foreign"),
        ({"results.json": '{"kind": "study", "format": 1, "trials": 3}'}, "damaged or foreign"),
        ({"result.json": '{"kind": "claim", "format": 1, "figures": 3}'}, "damaged or foreign"),
        ({"results.json": "[" * 200_000}, "expected JSON in"),
        ({"results.json": b"\xff\xfe"}, "expected JSON in"),
    ],
)
def test_damaged_and_foreign_folders_are_refused(tmp_path, files, why):
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=why):
        render([tmp_path])


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="which is not there"):
        look(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="got the file"):
        look(tmp_path / "file")
    with pytest.raises(ValueError, match="got none"):
        write([])


def test_only_an_older_report_is_replaced(tmp_path):
    write_study(tmp_path / "s")
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work")
    with pytest.raises(ValueError, match="which is neither"):
        write([tmp_path / "s"], precious)
    with pytest.raises(ValueError, match="got the folder"):
        write([tmp_path / "s"], tmp_path)
    assert precious.read_text() == "years of work"
    assert write([tmp_path / "s"]) == write([tmp_path / "s"])
    made = write([tmp_path / "s"], tmp_path / "new" / "page.html")
    assert Path(made["report"]).stat().st_size == made["bytes"]


def test_the_command(tmp_path, monkeypatch):
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    write_study(tmp_path / "s")
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run = CliRunner().invoke
    told = run(app, ["report", str(tmp_path / "s"), "--json", "--open"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["parts"] == [{"kind": "study", "folder": str(tmp_path / "s")}]
    assert opened == [(tmp_path / "s" / "report.html").as_uri()]
    assert "report.html (" in run(app, ["report", str(tmp_path / "s")]).stdout
    told = run(app, ["report", str(tmp_path / "none")])
    assert told.exit_code == 1
    assert told.stderr.startswith("error: expected a folder")
    assert told.stderr.count("\n") == 1
    told = run(app, ["report", str(tmp_path), str(tmp_path), "--serve"])
    assert told.exit_code == 1
    assert "expected one folder to serve" in told.stderr


# --- in a browser -------------------------------------------------------------------------------------

KINDS = ("study", "tasks", "claims", "run")


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_sound_to_the_eye_and_to_a_screen_reader(folders, visit, kind, scheme):
    page = visit((folders / kind / "report.html").as_uri(), color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate(ACCESS) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    assert dark == (scheme == "dark")
    for width in (1200, 720, 360):
        page.set_viewport_size({"width": width, "height": 740})
        assert overflow(page) <= 0, width
    assert page.said == []
    assert [a for a in page.asked if not a.startswith(("file:", "data:"))] == []


def test_attacks_stay_text(bad, visit):
    page = visit((bad / "report.html").as_uri(), width=360, height=740)
    assert page.said == []
    assert overflow(page) <= 0
    assert page.evaluate(ACCESS) == []
    assert "taken over" not in page.title()
    assert page.locator("main script, main img[src='x']").count() == 0


def test_nothing_can_leave_the_page(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri())
    tried = """async () => {
        const out = [];
        try { await fetch("http://127.0.0.1:9/x"); out.push("fetched"); } catch { out.push("refused"); }
        const image = new Image();
        const loaded = new Promise((done) => {
            image.onload = () => done("loaded");
            image.onerror = () => done("refused");
        });
        image.src = "http://127.0.0.1:9/x.png";
        out.push(await loaded);
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        out.push(window.ran ? "ran" : "refused");
        return out;
    }"""
    assert page.evaluate(tried) == ["refused"] * 3
    assert len([s for s in page.said if "Content Security Policy" in s]) >= 3


def column(page, table, n):
    return page.locator(f"{table} tbody tr").evaluate_all(f"(rows) => rows.map((r) => r.cells[{n}].textContent.trim())")


def test_tables_sort_by_click_and_by_keyboard(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri())
    table = "#results table >> nth=0"
    before = [float(v) for v in column(page, table, 1)]
    head = page.locator(f"{table} >> thead th").nth(1)
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(v) for v in column(page, table, 1)] == sorted(before)
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(v) for v in column(page, table, 1)] == sorted(before, reverse=True)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    heads = page.locator(f"{table} >> thead th")
    assert heads.nth(1).get_attribute("aria-sort") == "none"
    assert heads.nth(2).get_attribute("aria-sort") == "ascending"
    assert "Sorted by 95% interval, ascending" in page.locator("#told").text_content()
    assert heads.nth(3).locator("button").count() == 0


def test_missing_values_sort_last_and_times_by_their_length(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri())
    page.locator("#tuning details summary").click()
    table = "#tuning table"
    head = page.locator(f"{table} >> thead th button").nth(3)
    for _ in range(2):
        head.click()
        shown = column(page, table, 3)
        assert shown[-8:] == ["–"] * 8
        assert "–" not in shown[:-8]
    values = [float(v) for v in shown[:-8]]
    assert values == sorted(values, reverse=True)


def test_the_keyboard_reaches_everything(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri(), width=360, height=740)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.scroll')")  # wide tables can be scrolled by keyboard
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_table_is_saved_as_csv(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri())
    with page.expect_download() as waiting:
        page.locator("#results a.csv").first.click()
    saved = waiting.value
    assert saved.suggested_filename == "methods.csv"
    rows = list(csv.reader(io.StringIO(Path(saved.path()).read_text())))
    assert rows[0][:2] == ["method", "test accuracy"]
    assert len(rows) == 6  # four methods and the base rate


def test_on_paper(folders, visit):
    page = visit((folders / "study" / "report.html").as_uri(), color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.locator(".tools").first.is_visible()
    assert page.locator("#results table").first.is_visible()
    assert page.evaluate(ACCESS) == []
    assert page.pdf(format="A4").startswith(b"%PDF")
