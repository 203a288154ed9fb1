"""Folders as `weft compare` and `weft reproduce` leave them, for the tests of the report."""

import itertools
import json

import numpy as np

VERSIONS = {"torch": "2.11.0", "numpy": "2.3.1", "scikit-learn": "1.7.0", "optuna": "4.5.0"}
MACHINE = {"processor": "x86_64, 2 cores", "cores": 2, "python": "3.11.9", "accelerator": "NVIDIA H200"}


def study(*, name="digits with a spurious feature", seeds=8, records=60, methods=None, tasks=False, state="done"):
    """A study's results: made-up scores that hang together (means, intervals, curves and trials)."""
    random = np.random.default_rng(0)
    methods = methods or ["erm", "and-mask", "irm", "group-dro"]
    centres = {m: 0.62 + 0.08 * i for i, m in enumerate(methods)}
    steps = np.linspace(10, 600, records).round().astype(int).tolist()
    listed = []
    for m in methods:
        scores = (centres[m] + 0.02 * random.standard_normal(seeds)).round(4)
        mean = float(scores.mean())
        noise = 0.02 * random.standard_normal((seeds, records))
        rise = 1 - np.exp(-np.linspace(0, 4, records))
        sites = {
            f"site {k}": {
                "rows": 300 + 20 * k,
                "part": "test" if k == 4 else "train",
                "scores": (scores + 0.05 * (3 - k)).clip(0, 1).round(4).tolist(),
            }
            for k in range(5)
        }
        listed.append(
            {
                "name": m,
                "objective": "Classification()",
                "strategy": m,
                "setting": {"lr": 0.003, "hidden": "(64, 64)", "threshold": 0.8},
                "validation": round(mean + 0.03, 4),
                "trials": {"complete": 14, "failed": 1, "diverged": 1},
                "scores": scores.tolist(),
                "mean": mean,
                "interval": [mean - 0.025, mean + 0.022],
                "seconds": 41.7,
                "environments": None if tasks else sites,
                "tasks": {f"task {j}": {"rows": 200, "scores": (scores - 0.03 * j).tolist()} for j in range(3)}
                if tasks
                else None,
                "matrix": [[0.98, 0.5, 0.48], [0.81, 0.97, 0.52], [0.7, 0.88, 0.96]] if tasks else None,
                "task_names": ["task 0", "task 1", "task 2"] if tasks else None,
                "continual": {"average": 0.847, "forgetting_max": 0.185, "backward_transfer": -0.185}
                if tasks
                else None,
                "curves": {
                    "step": steps,
                    "measures": {
                        "accuracy": (centres[m] * rise + noise).clip(0, 1).round(5).tolist(),
                        "loss": (2.3 * np.exp(-3 * rise) + noise + 0.2).round(5).tolist(),
                    },
                },
            }
        )
    comparisons = [
        {
            "a": b,
            "b": a,
            "difference": centres[b] - centres[a],
            "interval": [centres[b] - centres[a] - 0.03, centres[b] - centres[a] + 0.03],
            "p": 0.0004 * (i + 1),
            "p_corrected": 0.002 * (i + 1),
            "verdict": f"{b} is better",
        }
        for i, (a, b) in enumerate(itertools.pairwise(methods))
    ]
    trials = []
    for m in methods:
        for k in range(16):
            setting = {
                "lr": float(10 ** random.uniform(-4, -1)),
                "hidden": ["(64,)", "(64, 64)"][k % 2],
                "threshold": float(random.uniform(0, 1)),
            }
            if k == 3:
                setting = {"lr": 0.003, "hidden": "(64, 64)", "threshold": 0.8}
            lost = {5: "failed", 9: "diverged"}.get(k)
            value = None if lost else round(centres[m] - 0.05 * abs(np.log10(setting["lr"]) + 2.5), 4)
            trials.append(
                {
                    "method": m,
                    "number": k,
                    "setting": setting,
                    "value": value,
                    "state": lost or "complete",
                    "why": "loss is not finite at step 40" if lost else "",
                    "seconds": 1.25,
                }
            )
    return {
        "format": 1,
        "kind": "study",
        "name": name,
        "weft": "0.1.0",
        "date": "2026-11-15T12:00:00+00:00",
        "command": "weft compare digits.csv --target digit --environment site --seeds 8",
        "seconds": 171.2,
        "state": state,
        "sentences": [
            f"{methods[-1]} is the best of {len(methods)} methods on the site that was held out: it is right for "
            "86 of 100 rows, and no other comes near it.",
            f"{methods[0]} and {methods[1]} are not distinguishable here.",
            "All methods had 16 trials each; 2 trials of each were lost.",
        ],
        "measure": {"name": "accuracy", "direction": "max"},
        "data": {
            "path": "/home/someone/digits.csv",
            "sha256": "9f2c" * 16,
            "rows": 1797,
            "features": 65,
            "target": "digit",
            "environment": None if tasks else "site",
            "task": "task" if tasks else None,
            "group": None,
        },
        "protocol": {
            "split": {
                "by": "environment",
                "seed": 0,
                "rows": {"train": 1100, "validation": 317, "test": 380},
                "test_environments": ["site 4"],
            },
            "selection": "training-domain",
            "budget": 16,
            "batch": 4,
            "seeds": list(range(seeds)),
            "steps": 600,
            "level": 0.95,
            "correction": "Holm",
            "notes": ["Validation rows come from the training sites only."],
        },
        "base": {"answer": "3", "validation": 0.11, "test": 0.1},
        "methods": listed,
        "comparisons": comparisons,
        "trials": trials,
        "ledger": [
            {
                "time": "2026-11-15T12:02:40+00:00",
                "what": "final evaluation",
                "method": m,
                "rows": 380,
                "seeds": seeds,
                "part": "test",
            }
            for m in methods
        ],
        "versions": VERSIONS,
        "machine": MACHINE,
    }


def claim(name, title, verdict="holds", **more):
    """A claim's result."""
    return {
        "format": 1,
        "kind": "claim",
        "name": name,
        "title": title,
        "statement": "Where a shortcut differs from site to site, a mask on gradients that disagree in sign learns "
        "the mechanism, and plain training the shortcut.",
        "reference": "Parascandolo et al., “Learning explanations that are hard to vary”, arXiv 2009.00329.",
        "scale": "quick",
        "seeds": list(range(16)),
        "setting": {"environments": "16", "rows": "512 each", "net": "MLP 3 × 64"},
        "figures": [
            {
                "name": "AND-mask's test accuracy",
                "reference": "100 %",
                "measured": 99.2,
                "interval": [98.1, 99.8],
                "unit": "%",
                "holds": verdict == "holds",
            },
            {"name": "ERM's", "reference": "chance", "measured": 51.3, "interval": None, "unit": "%", "holds": True},
            {
                "name": "at 1,024 sites",
                "reference": "100 %",
                "measured": None,
                "interval": None,
                "unit": "%",
                "holds": None,
            },
        ],
        "verdict": verdict,
        "why": "The median over seeds is within the tolerance.",
        "tolerance": "97 % or more, as single seeds of so small a net may fail.",
        "tables": [
            {
                "title": "Share of seeds that solve it",
                "columns": ["method", "share"],
                "rows": [["erm", 0], ["and-mask", 0.84]],
            }
        ],
        "pictures": [
            {"file": "curves.svg", "alt": "Accuracy by step for both methods.", "caption": "Medians of 16 seeds."}
        ],
        "budget": {"seconds": 18.4, "trainings": 32, "steps": 9600},
        "weft": "0.1.0",
        "date": "2026-11-15T12:00:00+00:00",
        "versions": VERSIONS,
        "machine": MACHINE,
        "command": f"weft reproduce {name} --quick",
        **more,
    }


SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 300" width="700" height="300">
<script>document.title = "taken over"</script>
<path d="M40 250 C 200 240 260 60 660 40" fill="none" stroke="#4477cc" stroke-width="3"/>
<path d="M40 250 C 200 220 360 190 660 200" fill="none" stroke="#cc7733" stroke-width="3"/>
<path d="M40 10V260H680" fill="none" stroke="#888"/><text x="560" y="30" fill="#888">AND-mask</text></svg>"""


def write_study(folder, **more):
    """A study's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = study(**more)
    (folder / "results.json").write_text(json.dumps(made, allow_nan=False))
    return folder


def write_claims(folder, *claims):
    """A folder of claims."""
    given = claims or (
        claim("spirals", "Spirals: a mask finds what all sites share"),
        claim("ring", "A ring of Gaussians is sampled whole", "fails"),
        claim("sinusoids", "One gradient step learns a sinusoid", "not run at this scale"),
    )
    for c in given:
        (folder / c["name"]).mkdir(parents=True)
        (folder / c["name"] / "result.json").write_text(json.dumps(c, allow_nan=False))
        (folder / c["name"] / "curves.svg").write_text(SVG)
    return folder


def hostile(value):
    """Every text in it with a tag, an attribute's end and a script's end added."""
    if isinstance(value, str):
        return value + ATTACK
    if isinstance(value, list):
        return [hostile(v) for v in value]
    if isinstance(value, dict):
        return {(k if k in KEYS else hostile(k)): v if k in FIXED else hostile(v) for k, v in value.items()}
    return value


ATTACK = "\"'><script>alert(1)</script><img src=x onerror=alert(2)></script></title></svg>\x00\u202e"
FIXED = {"format", "kind", "state", "direction", "file", "level", "verdict"}
KEYS = {k for made in (study(tasks=True), claim("a", "b")) for k in json.dumps(made).split('"')} - {
    "site 0",
    "site 1",
    "site 2",
    "site 3",
    "site 4",
    "lr",
    "hidden",
    "threshold",
    "accuracy",
    "loss",
    "torch",
}
