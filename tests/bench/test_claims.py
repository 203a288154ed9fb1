"""The runner of claims: what a file must say, how figures are judged, what is written, what the commands do."""

import json
import os
import re
import textwrap
import zlib
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from weft.bench.claims import (
    Claim,
    Report,
    anew,
    bands,
    caught,
    claims_folder,
    combinations,
    exponents,
    interquartile_of,
    judge,
    last,
    least_losses,
    listed,
    load,
    mean_of,
    mean_over,
    median_of,
    reproduce,
    resampled,
    scores_of,
    searched,
    share_of,
    verdict_of,
)
from weft.bench.pictures import canvas, svg
from weft.bench.statistics import half_width, interval
from weft.commands.claims import register
from weft.report.digests import BY_HAND, EARLIER, standing

COIN = """
import numpy as np
from weft.bench.claims import Claim, mean_of

class Coin(Claim):
    title = "A fair coin"
    statement = "Half of the throws show heads."
    reference = "Bernoulli, 1713"
    tolerance = "Within .02: four standard errors."
    quick = {"seeds": 6, "throws": 10_000, "truth": 0.5}
    full = {"seeds": 8, "throws": 20_000, "truth": 0.5}

    def run(self, setting, seeds, report):
        report.plan(1)
        heads = []
        for seed in report.each(seeds, "throwing"):
            heads.append(np.random.default_rng(seed).integers(2, size=setting.throws).mean())
        report.spend(trainings=len(seeds), steps=len(seeds) * setting.throws)
        report.figure("heads", mean_of(heads), reference="1/2", near=setting.truth, within=0.02)
        if setting.scale == "quick":
            report.not_run("heads of a million", reference="1/2")
        report.table("by seed", ["seed", "heads"], zip(seeds, heads))
        with report.picture("heads", alt="points near <half>", caption="Heads by seed.") as ax:
            ax.plot(seeds, heads, "o")
"""


STOPPED = """
import numpy as np
from weft.bench.claims import Claim, mean_of

class Stopped(Claim):
    title = statement = reference = tolerance = "A claim in two parts"
    quick = {"seeds": 2}
    full = {"seeds": 3}

    def run(self, setting, seeds, report):
        report.plan(2)
        def first():
            with open("count", "a") as file:
                file.write("x")
            for _ in report.each(seeds, "first"):
                report.spend(trainings=1, steps=10)
            return {("a", 1): np.array([[1.5, float("nan")]]), "b": (True, None, [np.float32(0.1), np.int8(3)])}
        found = report.part("first", first)
        with open("stop") as file:
            if file.read() == "yes":
                raise KeyboardInterrupt
        report.part("second", lambda: list(report.each(seeds)))
        report.figure("the same", 1.0, holds=list(found) == [("a", 1), "b"] and found["a", 1].shape == (1, 2))
        report.figure("types", 1.0, holds=type(found["b"][2][0]) is np.float32 and found["b"][:2] == (True, None))
"""


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "claims of others"
    where.mkdir()
    (where / "coin.py").write_text(COIN)
    (where / "_shared.py").write_text("raise RuntimeError('not a claim')")
    return where


def command(*arguments):
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, [str(a) for a in arguments])


# --- intervals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimate", "truth"), [(mean_of, 1.0), (median_of, np.log(2.0))])
def test_intervals_cover_the_truth(estimate, truth):
    """Of skewed data (exponential), 12 replicas: about 95 % of intervals hold the truth."""
    rng = np.random.default_rng(0)
    inside = [low <= truth <= high for low, high in (estimate(rng.exponential(size=12)).interval for _ in range(1000))]
    assert 0.93 <= np.mean(inside) <= 0.99


FAILS = {"none": 0.0, "a tenth": 0.1, "three tenths": 0.3}


@pytest.mark.parametrize("share", FAILS.values(), ids=FAILS)
@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_the_interval_of_an_interquartile_mean_covers_the_truth(kind, share):
    """Of 10 replicas, some of which fail altogether, twenty deviations below the others."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return getattr(rng, f"standard_{kind}")(shape) - 20.0 * (rng.random(shape) < share)

    truth = np.sort(draw(1_000_000))[250_000:750_000].mean()
    found = [interquartile_of(row) for row in draw(400, 10)]
    assert np.mean([one.interval[0] <= truth <= one.interval[1] for one in found]) >= 0.93
    assert abs(np.mean([one.value for one in found]) - truth) < 0.5 + 5 * share


def test_an_interquartile_mean_leaves_a_quarter_out_at_either_end():
    assert interquartile_of([0.0, 1.0, 2.0, 30.0]) == (1.5, None, 4)
    assert interquartile_of([*[500.0] * 9, 0.0]).value == 500.0
    assert interquartile_of([*[500.0] * 9, 0.0]).interval[0] < 500.0, "another draw of seeds may have had more of those"
    assert interquartile_of([500.0] * 10).interval == (500.0, 500.0)
    assert "an interquartile mean's 8" in interquartile_of([1.0] * 7).lacks
    assert np.isnan(interquartile_of([*[1.0] * 9, np.nan]).value), "one that diverged is not left out as the worst"


def test_the_interval_over_seeds_and_points_covers_the_truth():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        table = rng.normal(size=(10, 1)) + rng.normal(size=(1, 40)) + rng.normal(size=(10, 40))
        low, high = mean_over(table).interval
        inside.append(low <= 0 <= high)
    assert np.mean(inside) >= 0.93
    ratio = mean_over(np.full((3, 4), 2.0), beside=np.full((3, 4), 8.0))
    assert ratio.value == 0.25
    with pytest.raises(ValueError, match=r"expected tables of one shape \(seeds, points\)"):
        mean_over(np.ones((2, 3)), np.ones((2, 4)))


def test_one_replica_has_no_interval():
    assert mean_of([3.0]) == (3.0, None, 1)
    assert median_of([3.0]) == (3.0, None, 1)
    assert mean_of([1.0, 2.0, 3.0, 4.0]).interval is None
    assert share_of([1, 0, 0, 0]).value == 25.0
    with pytest.raises(ValueError, match="at least one replica"):
        mean_of([])


# --- figures and verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"least": 1.5}, "holds"),
        ({"least": 1.6}, "not settled"),
        ({"least": 2.4}, "not settled"),
        ({"least": 2.6}, "fails"),
        ({"most": 2.5}, "holds"),
        ({"most": 2.4}, "not settled"),
        ({"most": 1.4}, "fails"),
        ({"near": 2.0, "within": 0.5}, "holds"),
        ({"near": 2.5, "within": 0.5}, "not settled"),
        ({"near": 3.5, "within": 0.5}, "fails"),
        ({"near": 0.5, "within": 0.5}, "fails"),
        ({"near": 2.0, "within": 0.5, "least": 1.75}, "not settled"),
        ({"least": 1.0, "most": 1.25}, "fails"),
        ({"least": 1.0, "most": 3.0}, "holds"),
        ({"holds": True}, "holds"),
        ({"holds": False}, "fails"),
        ({}, None),
    ],
)
def test_a_figure_is_judged_by_the_bound_of_its_interval(bounds, verdict):
    report = Report()
    report.figure("two", 2.0, interval=(1.5, 2.5), **bounds)
    assert report.figures[0]["verdict"] == verdict
    assert report.verdict()[0] == (verdict or "not run at this scale")
    assert anew(report.figures[0]) == report.figures[0]


def test_a_number_without_an_interval_is_judged_only_where_it_is_called_exact():
    report = Report()
    with pytest.raises(ValueError, match="expected an interval for the figure 'two', which is judged, got the number"):
        report.figure("two", 2.0, least=1.0)
    with pytest.raises(ValueError, match="expected no interval beside the exact figure"):
        report.figure("two", 2.0, interval=(1.0, 3.0), least=1.0, exact=True)
    report.figure("two", 2.0, least=2.0, exact=True)
    report.figure("two", 2.0, least=2.1, exact=True)
    report.figure("one seed", mean_of([2.0]), least=1.0)
    report.figure("told", 2.0)
    assert [f["verdict"] for f in report.figures] == ["holds", "fails", "not settled", None]
    assert [f["exact"] for f in report.figures] == [True, True, False, False]


def test_a_figure_keeps_every_score_and_is_judged_anew_by_them():
    report = Report()
    scores = [1.0, 2.0, 3.0, 4.0]
    for estimate in (mean_of, median_of, interquartile_of):
        report.figure(estimate.__name__, estimate(scores), least=1.5)
    report.figure("share", share_of([True, False, True]), unit="%", most=10)
    report.figure("table", mean_over([[1.0, 2.0], [3.0, 4.0]]), least=0)
    found = report.figures
    assert [f["scores"] for f in found] == [scores, scores, scores, [1.0, 0.0, 1.0], [1.5, 3.5]]
    assert [f["by"] for f in found] == ["mean_of", "median_of", "interquartile_of", "share_of", "mean_over"]
    for figure in found:
        assert anew(figure) == figure
        again = anew({**figure, "interval": None, "verdict": "holds", "measured": 0.0})
        assert again["measured"] == figure["measured"], "of the scores, not of what was concluded from them"
    report.figure("diverged", mean_of([1.0, np.nan]), least=0.5)
    assert report.figures[-1]["scores"] == [1.0, None]
    assert report.figures[-1]["verdict"] == "fails"


@pytest.mark.parametrize("kind", ["mean", "share", "ratio"])
def test_an_interval_over_seeds_and_points_is_made_anew_of_what_was_kept(kind, monkeypatch):
    random = np.random.default_rng(0)
    x, y = random.normal(3, 1, (6, 50)), random.normal(5, 1, (6, 50))
    table = 100.0 * (x > 3) if kind == "share" else x
    report = Report()
    report.figure("told", mean_over(table))
    report.figure("table", mean_over(table, y if kind == "ratio" else None), least=0.0)
    told, figure = json.loads(json.dumps(report.figures))
    assert told["margins"] is None, "what is not judged needs none"
    assert len(figure["margins"]["counts"]) <= (7 if kind == "share" else 50), "points that are alike are kept once"
    assert anew(figure) == figure == report.figures[1]
    lost = {**figure, "interval": None, "measured": 0.0, "verdict": "fails"}
    assert anew(lost) == figure
    low, high = interval(table if kind != "ratio" else (x + (x.mean() / y.mean()) * (y.mean() - y)) / y.mean())
    assert figure["interval"] == pytest.approx([low, high], rel=1e-12)
    monkeypatch.setattr("weft.bench.claims.estimates.half_width", lambda *given: 2 * half_width(*given))
    wide = anew(figure)["interval"]
    assert wide[1] - wide[0] == pytest.approx(2 * (high - low)), "other code, another interval"


def test_results_of_earlier_versions_keep_their_verdicts():
    assert [verdict_of({"holds": h}) for h in (True, False, None)] == ["holds", "fails", None]
    assert verdict_of({"verdict": "not settled"}) == "not settled"


def test_one_missed_figure_fails_the_claim_and_is_named():
    report = Report()
    report.figure("good", 1.0, least=0.0, exact=True)
    report.figure("open", mean_of([0.0, 2.0] * 3), least=0.5)
    assert report.verdict() == ("not settled", report.verdict()[1])
    assert report.verdict()[1].startswith("1 of 2 judged figures not settled. open: 1 [")
    report.figure("bad", np.float32(0.25), reference="1/2", least=0.5, exact=True)
    report.not_run("large", reference="9")
    few = Report()
    few.figure("few", mean_of([1.0, 2.0]), least=0.5)
    assert few.verdict()[1].startswith(
        "1 of 1 judged figures not settled. few: 1.5, of too few seeds for an interval (2)"
    )
    verdict, why = report.verdict()
    assert verdict == "fails"
    assert "1 of 3 judged figures missed. bad: 0.25 (exact) (expected: 1/2; here at least 0.5)" in why
    assert "1 of 3 judged figures not settled. open: 1 [" in why
    assert "Not run at this scale: large." in why


def test_what_is_not_finite_does_not_hold():
    report = Report()
    report.figure("lost", float("nan"), least=0.0, exact=True)
    report.figure("told", mean_of([1.0, np.inf]))
    report.figure("said", float("inf"), holds=True)
    assert [f["verdict"] for f in report.figures] == ["fails", None, "fails"]
    assert [f["measured"] for f in report.figures] == [None, None, None]
    assert report.figures[1]["interval"] is None
    json.dumps(report.figures, allow_nan=False)


def test_a_report_refuses_what_cannot_be_shown():
    report = Report()
    with pytest.raises(ValueError, match="both near and within"):
        report.figure("x", 1.0, near=1.0)
    with pytest.raises(ValueError, match="expected bounds or holds for the figure 'x', got both"):
        report.figure("x", mean_of([1.0, 2.0]), least=1.0, holds=True)
    with pytest.raises(ValueError, match="rows of 2 cells"):
        report.table("t", ["a", "b"], [[1, 2], [1]])
    for name in ("../up", "A b", ""):
        with pytest.raises(ValueError, match="a new name"), report.picture(name, alt="", caption=""):
            pass


def test_fits_are_counted_and_followed():
    from weft import Regressor

    seen = []
    report = Report(progress=lambda share, what: seen.append((share, what)))
    report.plan(2)
    x = np.linspace(0, 1, 20)[:, None]
    learner = Regressor(hidden=(4,), steps=10, replicas=3, random_state=0)
    assert report.fit(learner, x, x[:, 0], what="fitting") is learner
    assert learner.callbacks == ()
    assert (report.trainings, report.steps) == (3, 30)
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 0.5
    assert len(set(shares)) == 10
    assert list(report.each("ab", "walking")) == ["a", "b"]
    assert seen[-1] == (1.0, "walking")


# --- pictures -----------------------------------------------------------------------------------------


def drawing(name="one"):
    with canvas(2, size=(4, 2)) as (figure, (left, right)):
        left.plot([0, 1], [0, 1], label="a < b & c")
        left.legend()
        right.imshow([[0.0, 1.0], [1.0, 0.0]])
        return svg(figure, name=name, alt='less < more & "so"')


def test_a_picture_is_one_svg_that_links_to_nothing():
    text = drawing()
    own = f"p{zlib.crc32(b'one'):08x}-"
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.find("{http://www.w3.org/2000/svg}title").text == 'less < more & "so"'
    assert text.startswith("<svg")
    assert "a &lt; b &amp; c" in text, "text stays text"
    for element in root.iter():
        for name, value in element.attrib.items():
            if name.endswith("href"):
                assert value.startswith((f"#{own}", "data:image/png"))
            if name == "id":
                assert value.startswith(own)
            for target in re.findall(r"url\((.*?)\)", value):
                assert target.startswith(f"#{own}")
    assert text == drawing(), "the same picture is the same text"
    ids = [set(re.findall(r'id="([^"]+)"', drawing(name))) for name in ("one", "two")]
    assert not ids[0] & ids[1]


def test_many_marks_take_few_bytes():
    rng = np.random.default_rng(0)
    with canvas(size=(4, 2)) as (figure, ax):
        ax.scatter(*rng.normal(size=(2, 2000)), s=6, alpha=0.5, linewidth=0)
        ax.plot(*rng.normal(size=(2, 300)), "s", markersize=3)
        ax.plot(np.linspace(-2, 2, 5000), np.zeros(5000))
        text = svg(figure, name="many", alt="marks")
    assert len(text) < 60_000
    assert text.count("h0") == 2000, "every dot is there"
    assert text.count("<path") > 2000 / 40, "in layers, so that they add up where they overlap"
    assert text.count("<use") >= 300, "squares stay squares"


# --- files --------------------------------------------------------------------------------------------


def test_a_result_is_kept_with_its_pictures(folder, tmp_path):
    out = tmp_path / "out"
    told = []
    result = reproduce(folder / "coin.py", out=out, progress=lambda share, what: told.append((share, what)))
    where = out / "claims" / "coin"
    assert json.loads((where / "result.json").read_text()) == result == last("coin", out)
    assert (result["format"], result["kind"], result["name"], result["scale"]) == (1, "claim", "coin", "quick")
    assert result["verdict"] == "holds"
    assert result["seeds"] == [0, 1, 2, 3, 4, 5]
    assert result["setting"] == {"seeds": "6", "throws": "10000", "truth": "0.5"}
    assert result["figures"][0]["reference"] == "1/2; here 0.5 ± 0.02"
    assert len(result["figures"][0]["scores"]) == 6
    million = result["figures"][1]
    assert (million["name"], million["reference"]) == ("heads of a million", "1/2")
    assert million["measured"] is million["interval"] is million["verdict"] is None
    assert result["budget"]["trainings"] == 6
    assert result["budget"]["steps"] == 60_000
    assert result["command"] == f"weft reproduce coin --quick --folder {folder}"
    assert result["machine"]["cores"] >= 1
    assert ("accelerator" in result["machine"]) == torch.cuda.is_available()
    assert result["versions"]["torch"]
    assert [p["file"] for p in result["pictures"]] == ["heads.svg"]
    ElementTree.parse(where / "heads.svg")
    assert told[-1] == (1.0, "throwing")

    (where / "of an earlier run.svg").write_text("<svg/>")
    again = reproduce(folder / "coin.py", scale="full", seeds=2, out=out)
    assert again["seeds"] == [0, 1]
    assert again["command"].startswith("weft reproduce coin --full --seeds 2")
    assert sorted(p.name for p in where.iterdir()) == ["heads.svg", "result.json"]
    assert last("coin", out)["scale"] == "full"


def test_a_claim_can_fail(folder, tmp_path):
    (folder / "coin.py").write_text(COIN.replace('"truth": 0.5', '"truth": 0.6'))
    result = reproduce(folder / "coin.py", out=tmp_path)
    assert result["verdict"] == "fails"
    assert "heads: " in result["why"]


def test_seeds_and_scales_out_of_range(folder):
    with pytest.raises(ValueError, match="expected scale to be 'quick' or 'full', got 'huge'"):
        reproduce(folder / "coin.py", scale="huge")
    for seeds in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="expected a number of seeds >= 1"):
            reproduce(folder / "coin.py", seeds=seeds)


def test_listing_reads_files_and_runs_none(folder):
    (folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\n{COIN}")
    found = listed(folder)
    assert [claim.name for claim in found] == ["coin", "evil"]
    assert found[0].statement == "Half of the throws show heads."
    assert found[0].reference == "Bernoulli, 1713"
    assert not (folder / "ran").exists()
    load(folder / "evil.py")
    assert (folder / "ran").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "expected a claim in .* got no Python"),
        ("x = 1", "expected a subclass of weft.bench.claims.Claim"),
    ],
)
def test_files_that_are_no_claims_are_named(folder, text, message):
    (folder / "coin.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        listed(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("import numpy as np", "import no_such_module"), "got ModuleNotFoundError: No module named 'no_such_module'"),
        (('"Bernoulli, 1713"', '" "'), "expected Coin.reference to be a text"),
        (('{"seeds": 8, ', '{"seeds": 0, '), "expected Coin.full to be a dictionary with a number of 'seeds' >= 1"),
        (
            ("class Coin(Claim):", "class Other(Claim):\n    pass\n\nclass Coin(Claim):"),
            "expected one subclass of Claim",
        ),
    ],
)
def test_claims_that_say_too_little_are_refused(folder, change, message):
    assert change[0] in COIN
    (folder / "coin.py").write_text(COIN.replace(*change))
    with pytest.raises(ValueError, match=re.escape(message) if "." not in message else message):
        load(folder / "coin.py")


def test_a_claim_must_run():
    with pytest.raises(NotImplementedError, match="does not define run"):
        Claim().run(SimpleNamespace(), [0], Report())


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder of claims"):
        listed(tmp_path / "nowhere")
    assert last("coin", tmp_path) is None
    (tmp_path / "claims" / "coin").mkdir(parents=True)
    for text in ("{", "[]", '{"kind": "study", "format": 1}'):
        (tmp_path / "claims" / "coin" / "result.json").write_text(text)
        assert last("coin", tmp_path) is None


def test_the_example_of_the_module_is_a_claim(folder):
    import weft.bench.claims as module

    block = re.search(r"    class Coin\(Claim\):.*?\n\n(?=A figure holds)", module.__doc__, re.DOTALL).group()
    text = "import numpy as np\nfrom weft.bench.claims import Claim, mean_of\n" + textwrap.dedent(block)
    (folder / "coin.py").write_text(text)
    assert reproduce(folder / "coin.py")["verdict"] == "holds"


# --- commands -----------------------------------------------------------------------------------------


def test_the_commands_list_and_run(folder, tmp_path):
    out = tmp_path / "out"
    ask = ("--folder", folder, "--out", out)
    before = command("claims", *ask)
    assert before.exit_code == 0
    assert "not run yet" in before.output
    ran = command("reproduce", "coin", *ask)
    assert ran.exit_code == 0, ran.output
    for part in ("Half of the throws", "1/2; here 0.5 ± 0.02", "not run at this scale", "budget:", "verdict: holds"):
        assert part in ran.output
    after = command("claims", *ask, "--json")
    (claim,) = json.loads(after.output)["claims"]
    assert (claim["name"], claim["verdict"], claim["scale"]) == ("coin", "holds", "quick")
    assert "holds (quick" in " ".join(command("claims", *ask).output.split())


def test_the_exit_status_tells_of_failures_and_the_others_are_run(folder, tmp_path):
    (folder / "bent.py").write_text(COIN.replace('"truth": 0.5', '"truth": 0.6'))
    (folder / "broken.py").write_text(COIN.replace("heads = []", "raise RuntimeError('no coin <here>')"))
    ran = command("reproduce", "--all", "--folder", folder, "--out", tmp_path, "--json")
    assert ran.exit_code == 1
    found = json.loads(ran.stdout)
    assert {c["name"]: c["verdict"] for c in found["claims"]} == {"bent": "fails", "coin": "holds"}
    assert found["errors"] == {"broken": "RuntimeError: no coin <here>"}
    assert last("broken", tmp_path) is None
    shown = command("reproduce", "bent", "coin", "--folder", folder, "--out", tmp_path)
    assert shown.exit_code == 1
    assert "verdict: fails" in shown.output
    assert command("reproduce", "coin", "--seeds", 2, "--folder", folder, "--out", tmp_path).exit_code == 0
    assert last("coin", tmp_path)["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected names of claims or --all, got neither"),
        (["coin", "--all"], "expected names of claims or --all, got both"),
        (["coin", "--quick", "--full"], "expected --quick or --full, got both"),
        (["cion"], "did you mean 'coin'?"),
    ],
)
def test_wrong_usage_takes_one_line(folder, tmp_path, arguments, message):
    ran = command("reproduce", *arguments, "--folder", folder, "--out", tmp_path)
    assert ran.exit_code == 1
    assert message in " ".join(ran.output.split())


def test_an_interrupted_claim_keeps_those_before_it(folder, tmp_path):
    (folder / "later.py").write_text(COIN.replace("heads = []", "raise KeyboardInterrupt"))
    ran = command("reproduce", "--all", "--folder", folder, "--out", tmp_path)
    assert ran.exit_code == 130
    assert "interrupted in later; 1 claims before it are kept" in " ".join(ran.output.split())
    assert last("coin", tmp_path)["verdict"] == "holds"


def test_names_of_files_cannot_steer_the_terminal(folder, tmp_path):
    (folder / "coin.py").write_text(COIN.replace("A fair coin", "A [bold]fair\\x1b[31m coin"))
    ran = command("reproduce", "coin", "--folder", folder, "--out", tmp_path)
    assert "\x1b" not in ran.output
    assert "[bold]fair" in ran.output


def test_wefts_own_claims_are_found():
    assert claims_folder() == Path(__file__).parents[2] / "claims"
    assert {claim.name for claim in listed()} >= {
        "bias_variance",
        "policy_gradient",
        "posterior",
        "ring",
        "sinusoids",
        "spirals",
        "test_set_tuning",
    }


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, parts = tmp_path / "stopped.py", tmp_path / "out" / "claims" / "stopped" / "parts.json"
    path.write_text(STOPPED)

    def run(stop, **more):
        (tmp_path / "stop").write_text(stop)
        said = []
        result = reproduce(path, out=tmp_path / "out", progress=lambda share, what: said.append(share), **more)
        return result, said

    def count():
        return len((tmp_path / "count").read_text())

    with pytest.raises(KeyboardInterrupt):
        run("yes")
    assert parts.exists()
    assert count() == 1
    kept = json.loads(parts.read_text())["parts"]["first"]["cost"]
    kept[3] += 100.0  # seconds
    whole = json.loads(parts.read_text())
    whole["parts"]["first"]["cost"] = kept
    parts.write_text(json.dumps(whole))
    result, said = run("no")
    assert count() == 1, "the first part is not done again"
    assert result["verdict"] == "holds"
    assert result["budget"]["trainings"] == 2
    assert result["budget"]["steps"] == 20
    assert result["budget"]["seconds"] > 100, "what earlier runs took counts"
    assert said[0] == 0.5
    assert said[-1] == 1.0
    assert not parts.exists(), "a whole run begins anew"
    for change in ("seeds", "code"):
        with pytest.raises(KeyboardInterrupt):
            run("yes")
        before = count()
        if change == "code":
            path.write_text(STOPPED + "# another\n")
        run("no", **({"seeds": 3} if change == "seeds" else {}))
        assert count() == before + 1, f"another {change}: nothing counts"
    parts.write_text("[broken")
    assert run("no")[0]["verdict"] == "holds"


# --- digests, judging anew ----------------------------------------------------------------------------


def edited(where, change):
    result = json.loads((where / "result.json").read_text())
    change(result)
    (where / "result.json").write_text(json.dumps(result))
    return result


def test_a_result_that_was_changed_by_hand_is_told(folder, tmp_path):
    result = reproduce(folder / "coin.py", out=tmp_path)
    where = tmp_path / "claims" / "coin"
    assert standing(result, where) == standing(last("coin", tmp_path), where) == ""
    assert set(result["digests"]) == {"weft", "claim", "setting", "data", "parts", "content"}
    kept = {path.name: path.read_bytes() for path in where.iterdir()}
    changes = [
        lambda r: r.update(verdict="fails"),
        lambda r: r["figures"][0].update(measured=0.5),
        lambda r: r["figures"][0]["scores"].pop(),
        lambda r: r["digests"].update(weft="0"),
        lambda r: r["machine"].update(cores=99),
        lambda r: r.update(more=1),
    ]
    for change in changes:
        assert standing(edited(where, change), where) == BY_HAND
        (where / "result.json").write_bytes(kept["result.json"])
    (where / "heads.svg").write_text("<svg/>")
    assert standing(result, where) == BY_HAND
    (where / "heads.svg").write_bytes(kept["heads.svg"])
    assert standing(result, where) == ""
    assert standing({**result, "digests": None}, where) == EARLIER


def test_the_listing_says_whether_the_code_has_changed_since(folder, tmp_path, monkeypatch):
    ask = ("claims", "--folder", folder, "--out", tmp_path, "--json")

    def told():
        return json.loads(command(*ask).output)["claims"][0]["since"]

    reproduce(folder / "coin.py", out=tmp_path)
    assert told() == ""
    (folder / "coin.py").write_text(COIN + "# another\n")
    assert told() == "the claim's file has changed since"
    monkeypatch.setattr("weft.report.digests.code", lambda: "another")
    assert told() == "weft's code and the claim's file have changed since"
    edited(tmp_path / "claims" / "coin", lambda r: r.pop("digests"))
    assert told() == EARLIER


def test_a_kept_result_is_judged_anew_without_training(folder, tmp_path, monkeypatch):
    first = reproduce(folder / "coin.py", out=tmp_path)
    (folder / "coin.py").write_text(COIN.replace("heads = []", "raise RuntimeError('trained')"))
    ran = command("reproduce", "coin", "--judge", "--folder", folder, "--out", tmp_path)
    assert ran.exit_code == 0, ran.output
    again = last("coin", tmp_path)
    assert again["figures"] == first["figures"]
    assert again["judged"]["weft"]
    assert standing(again, tmp_path / "claims" / "coin") == ""

    def wide(values):
        return mean_of(values)._replace(interval=(0.0, 1.0))

    monkeypatch.setitem(anew.__globals__["ESTIMATES"], "mean_of", wide)
    found = judge("coin", tmp_path)
    assert found["verdict"] == last("coin", tmp_path)["verdict"] == "not settled"
    edited(tmp_path / "claims" / "coin", lambda r: r.update(verdict="holds"))
    with pytest.raises(ValueError, match="got one that was changed by hand; run it again"):
        judge("coin", tmp_path)
    with pytest.raises(FileNotFoundError, match="weft reproduce other"):
        judge("other", tmp_path)


def test_judging_says_which_intervals_it_cannot_make_anew(folder, tmp_path):
    own = COIN.replace("mean_of(heads)", "float(np.mean(heads)), interval=(0.49, 0.51)")
    (folder / "coin.py").write_text(own)
    reproduce(folder / "coin.py", out=tmp_path)
    ran = command("reproduce", "coin", "--judge", "--folder", folder, "--out", tmp_path)
    assert "judged by intervals as they were kept, not made anew: heads" in ran.output
    assert last("coin", tmp_path)["judged"]["intervals_as_kept"] == ["heads"]
    (folder / "coin.py").write_text(COIN)
    reproduce(folder / "coin.py", out=tmp_path)
    ran = command("reproduce", "coin", "--judge", "--folder", folder, "--out", tmp_path)
    assert "as they were kept" not in ran.output


def test_data_are_told_apart_by_their_bytes():
    def seen(*data):
        report = Report()
        report.saw(*data)
        return report.data

    x = np.arange(6.0)
    assert seen(x) == seen(x.copy()) == seen(torch.as_tensor(x)) == seen(x[::1])
    assert len({frozenset(seen(v)) for v in (x, x + 1, x.astype(np.float32), x.reshape(2, 3), x[::-1], object())}) == 6


# --- mutants ------------------------------------------------------------------------------------------

MUTANT = COIN.replace("import Claim, mean_of", "import Claim, Mutant, altered, mean_of").replace(
    "    def run(", "    mutant = Mutant(what='a bent coin', misses='heads', {})\n\n    def run("
)


@pytest.mark.parametrize(
    ("broken", "is_caught"),
    [
        ("setting={'truth': 0.6}", True),
        ("names={'mean_of': lambda x, right=mean_of: right([0.9, 0.91] * 3)}", True),
        ("setting={'truth': 0.501}", False),
    ],
)
def test_a_mutant_must_fail_its_claim(folder, tmp_path, broken, is_caught):
    (folder / "coin.py").write_text(MUTANT.replace("{})", f"{broken})"))
    result = caught(folder / "coin.py")
    assert result["caught"] is is_caught
    assert reproduce(folder / "coin.py")["verdict"] == "holds", "the claim itself is as it was"
    ran = command("reproduce", "coin", "--mutant", "--folder", folder, "--out", tmp_path)
    assert ran.exit_code == (not is_caught)
    assert ("a bent coin: caught" in ran.output) is is_caught
    assert last("coin", tmp_path) is None, "nothing of it is kept"


def test_a_mutant_must_fail_by_the_figure_that_it_names(folder):
    text = MUTANT.replace("misses='heads'", "misses='tails'").replace("{})", "setting={'truth': 0.6})")
    (folder / "coin.py").write_text(text)
    result = caught(folder / "coin.py")
    assert result["verdict"] == "fails"
    assert not result["caught"]


def test_mutants_that_break_nothing_are_refused(folder):
    with pytest.raises(ValueError, match=r"expected Coin.mutant, a broken method that fails the claim, got none"):
        caught(folder / "coin.py")
    (folder / "coin.py").write_text(MUTANT.replace("{})", "names={'maen_of': None})"))
    with pytest.raises(ValueError, match=r"expected 'maen_of' of Coin.mutant in the claim's file, got no such name"):
        caught(folder / "coin.py")


# --- several processes --------------------------------------------------------------------------------

SHARED = """
import os
from functools import partial
from pathlib import Path
import numpy as np
from weft import Regressor
from weft.bench.claims import Claim, mean_of

class Shared(Claim):
    title = statement = reference = tolerance = "A claim in parts that do not depend on each other"
    quick = {"seeds": 2, "counts": (8, 12, 16)}
    full = {"seeds": 2, "counts": (8, 12, 16)}

    def run(self, setting, seeds, report):
        report.plan(len(setting.counts))
        found = report.parts({f"of {n}": partial(self.fitted, n, seeds, report) for n in setting.counts})
        for name, scores in found.items():
            report.figure(name, mean_of(scores), least=-100.0)

    def fitted(self, n, seeds, report):
        if Path("stop").exists() and n == 16:
            raise RuntimeError("stopped")
        with open("pids", "a") as file:
            file.write(f"{n} {os.getpid()}\\n")
        x = np.linspace(0, 1, n)[:, None]
        learner = Regressor(hidden=(4,), steps=5, replicas=len(seeds), random_state=seeds[0])
        report.fit(learner, x, x[:, 0])
        return [float(learner.replica(k).score(x, x[:, 0])) for k in range(len(seeds))]
"""


@pytest.mark.turns("src/weft/bench/claims/*")
def test_parts_are_shared_out_among_processes_and_the_result_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    (tmp_path / "shared.py").write_text(SHARED)
    pids, parts = tmp_path / "pids", tmp_path / "out" / "claims" / "shared" / "parts.json"
    alone = reproduce(tmp_path / "shared.py", out=tmp_path / "one")
    assert len({line.split()[1] for line in pids.read_text().splitlines()}) == 1
    pids.unlink()

    (tmp_path / "stop").touch()
    with pytest.raises(RuntimeError, match="stopped"):
        reproduce(tmp_path / "shared.py", out=tmp_path / "out")
    assert set(json.loads(parts.read_text())["parts"]) == {"of 8", "of 12"}
    parts.write_text(json.dumps({**json.loads(parts.read_text()), "parts": {}}))  # and as if it had just begun
    (tmp_path / "stop").unlink()
    pids.unlink()
    said = []
    together = reproduce(
        tmp_path / "shared.py", out=tmp_path / "out", workers=2, progress=lambda share, what: said.append(share)
    )
    found = dict(line.split() for line in pids.read_text().splitlines())
    assert set(found) == {"8", "12", "16"}
    assert str(os.getpid()) not in found.values()
    assert said == sorted(said)
    assert said[-1] == 1.0
    for key in ("figures", "verdict", "seeds", "setting"):
        assert together[key] == alone[key], key
    for key in ("parts", "data", "weft", "claim"):
        assert together["digests"][key] == alone["digests"][key], key
    assert {k: v for k, v in together["budget"].items() if k != "seconds"} == {
        "trainings": 6,
        "steps": 30,
        "processes": 2,
    }
    assert alone["budget"]["processes"] == 1
    assert not parts.exists()

    (tmp_path / "stop").touch()
    with pytest.raises(RuntimeError, match="stopped"):
        reproduce(tmp_path / "shared.py", out=tmp_path / "out", workers=2)
    kept = set(json.loads(parts.read_text())["parts"]) if parts.exists() else set()
    (tmp_path / "stop").unlink()
    pids.unlink()
    assert reproduce(tmp_path / "shared.py", out=tmp_path / "out", workers=2)["figures"] == alone["figures"]
    begun = {f"of {line.split()[0]}" for line in pids.read_text().splitlines()}
    assert begun == {"of 8", "of 12", "of 16"} - kept, "what was kept is not done again"


def test_workers_that_gain_nothing_are_told(folder, tmp_path):
    told = "--workers 2 gained nothing for want of parts to share out: coin"
    ask = ("--folder", folder, "--out", tmp_path)
    assert told in command("reproduce", "coin", "--workers", 2, *ask).output.splitlines()
    assert "gained nothing" not in command("reproduce", "coin", *ask).output
    for other in ("--judge", "--mutant"):
        ran = command("reproduce", "coin", other, "--workers", 2, *ask)
        assert ran.exit_code == 1, "it would be one process, whatever is asked for"
        assert "expected one of --judge, --mutant and a run with --full, --seeds or --workers" in ran.output


# --- what claims have in common -----------------------------------------------------------------------


def line(lists, steps=40, **more):
    from weft import Learner
    from weft.objectives import Regression

    x = np.linspace(-1, 1, 30)[:, None]
    held = (x, 2 * x[:, 0])
    objective = Regression(hidden=(4,))
    return Learner(objective, steps=steps, batch_size=None, replicas=lists, validation=held, **more), x, held[1]


def test_a_diverged_replica_has_the_score_that_is_given_for_it():
    learner, x, y = line({"optimizer__lr": [0.05, 1e30], "random_state": [0, 0]}, patience=100)
    learner.fit(x, y)
    scores, losses = scores_of(learner, x, y, lost=50.0), least_losses(learner)
    assert scores[0] == 100 * learner.replica(0).score(x, y)
    assert scores[0] != 50.0
    assert scores[1] == 50.0
    assert losses[0] == min(record["valid_loss"][0] for record in learner.history_)
    assert losses.shape == (2,)


def test_a_search_goes_by_the_rows_held_out_and_its_own_seeds():
    made = []

    def make(lists):
        made.append(lists)
        return line(lists, patience=100)[0]

    _, x, y = line(None)
    fitted = []
    loss, best = searched(
        make,
        lambda learner: fitted.append(learner.fit(x, y)),
        combinations({"optimizer__lr": (1e-6, 0.05), "objective__noise": (0.5, 1.0)}),
        seeds=(7, 8),
    )
    assert made[1:] == [{"optimizer__lr": [1e-6, 1e-6, 0.05, 0.05], "random_state": [7, 8, 7, 8]}] * 2
    assert [learner.objective.noise for learner in fitted] == [0.5, 1.0]
    assert best["optimizer__lr"] == 0.05
    means = [least_losses(learner).reshape(2, 2).mean(1) for learner in fitted]
    assert loss == np.min(means)
    assert best["objective__noise"] == (0.5, 1.0)[int(np.argmin(np.min(means, axis=1)))]


@pytest.mark.parametrize(
    ("off", "verdict"),
    [([1e-7, -9e-7], "holds"), ([[1e-7], [-2e-6]], "fails"), ([2e-6, 0.0], "fails"), ([0.0, np.nan], "fails")],
)
def test_the_worst_of_what_should_be_nought_is_judged_on_both_sides(off, verdict):
    report = Report()
    report.worst("off", off, most=1e-6, unit="sd")
    (figure,) = report.figures
    assert figure["verdict"] == verdict
    assert figure["exact"]
    assert figure["reference"] == "0; here at most 1e-06 sd"
    assert verdict == "fails" or figure["measured"] == 9e-7


def test_tasks_learned_in_turn_are_counted_and_looked_at_after_each():
    from weft import Regressor

    said = []
    report = Report(progress=lambda share, what: said.append((share, what)))
    x = np.linspace(0, 1, 20)[:, None]
    tasks = [(x, x[:, 0]), (x, -x[:, 0])]
    learner = Regressor(hidden=(4,), steps=10, replicas=3, random_state=0)
    seen = report.in_turn(learner, tasks, lambda one: (one.tasks_[:], one.n_steps_), "turns")
    assert seen == [(["0"], 10), (["0", "1"], 20)]
    assert (report.trainings, report.steps) == (3, 60)
    assert said[-1] == (1.0, "turns")
    other = Report()
    other.saw(*tasks[0])
    assert other.data < report.data, "all tasks' rows are seen"


def test_what_replicas_drawn_anew_say_is_an_interval():
    random = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        x = random.normal(size=60)
        draws = random.multinomial(60, [1 / 60] * 60, 200)
        draws[0] = 1
        found = resampled(draws @ x / 60, replicas=60)
        assert (found.value, found.replicas) == (pytest.approx(x.mean()), 60)
        inside.append(found.interval[0] <= 0 <= found.interval[1])
    assert 0.9 <= np.mean(inside) <= 0.98
    law = exponents([1.0, 2.0, 8.0], [[3.0, 6.0, 24.0], [5.0, 5.0 / 4, 5.0 / 64]])
    np.testing.assert_allclose(law, [1.0, -2.0])


def test_bands_end_at_the_quantiles_that_are_asked_for():
    values = np.arange(5.0)[:, None] * [1.0, 10.0]
    with canvas() as (_, ax):
        bands(ax, [0, 1], values, "black")
        bands(ax, [0, 1], values**2, "black", between=(0.25, 0.75), middle=np.median)
        first, second = (band.get_paths()[0].vertices[:, 1] for band in ax.collections)
        means, medians = (line.get_ydata().tolist() for line in ax.lines)
    assert (first.min(), first.max()) == (0.0, 40.0)
    assert (second.min(), second.max()) == (1.0, 900.0)
    assert (means, medians) == ([2.0, 20.0], [4.0, 400.0])


def test_the_page_shows_what_is_not_settled_and_what_was_changed(folder, tmp_path):
    from weft.report.writing import render

    (folder / "coin.py").write_text(COIN.replace("within=0.02", "within=0.002"))
    assert reproduce(folder / "coin.py", out=tmp_path)["verdict"] == "not settled"
    where = tmp_path / "claims" / "coin"
    page = render([where])
    assert 'class="badge not-settled"' in page
    assert "The claim is not settled." in page or "not settled" in page
    assert "This result:" not in page
    edited(where, lambda r: r["figures"][0].update(verdict="holds"))
    assert "This result: changed by hand." in render([where])
    ran = command("reproduce", "coin", "--folder", folder, "--out", tmp_path)
    assert ran.exit_code == 0
    assert "verdict: not settled" in ran.output
