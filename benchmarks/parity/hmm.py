"""What hmmlearn answers about given hidden Markov models, kept for the tests: tests/fixtures/parity/hmm.npz.

    .venv-peers/bin/python benchmarks/parity/hmm.py

Tokens (CategoricalHMM) and numbers (GaussianHMM, diagonal and full): the log-likelihood of every sequence, Viterbi's
paths, the posteriors of the states, and the parameters after one iteration of EM from the ones at hand.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import hmmlearn
import numpy as np
from hmmlearn.hmm import CategoricalHMM, GaussianHMM
from numpy.typing import NDArray

OUT = Path(__file__).parents[2] / "tests" / "fixtures" / "parity" / "hmm.npz"
STATES, TOKENS, ENTRIES = 3, 5, 2
LENGTHS = [7, 12, 1, 20, 5]
Model = CategoricalHMM | GaussianHMM


def answers(model: Model, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """What a model says, by name; it has made one iteration of EM afterwards."""
    ends = np.cumsum(LENGTHS)
    parts = np.split(x, ends[:-1])
    told = {
        "score": np.array([model.score(part) for part in parts]),
        "path": np.concatenate([model.decode(part)[1] for part in parts]),
        "posterior": model.predict_proba(x, LENGTHS),
    }
    model.fit(x, LENGTHS)
    return told | {"start": model.startprob_, "moves": model.transmat_}


def main() -> None:
    """Draws, asks and writes."""
    logging.disable()
    rng = np.random.default_rng(0)
    start, moves = rng.dirichlet(np.ones(STATES)), rng.dirichlet(np.ones(STATES), STATES)
    shared = {"n_components": STATES, "n_iter": 1, "init_params": "", "tol": -np.inf}
    kept: dict[str, Any] = {"lengths": np.array(LENGTHS), "given_start": start, "given_moves": moves}

    tokens = rng.integers(0, TOKENS, sum(LENGTHS))
    shown = rng.dirichlet(np.ones(TOKENS), STATES)
    words = CategoricalHMM(**shared)
    words.startprob_, words.transmat_, words.emissionprob_ = start, moves, shown
    words.n_features = TOKENS
    told = answers(words, tokens[:, None])
    kept |= {f"tokens_{name}": value for name, value in told.items()}
    kept |= {"tokens_x": tokens, "tokens_given": shown, "tokens_shown": words.emissionprob_}

    x = rng.normal(size=(sum(LENGTHS), ENTRIES)) + 2 * rng.integers(0, 2, (sum(LENGTHS), 1))
    means = rng.normal(size=(STATES, ENTRIES))
    roots = 0.4 * rng.normal(size=(STATES, ENTRIES, ENTRIES)) + np.eye(ENTRIES)
    spreads = {"diag": rng.uniform(0.5, 2.0, (STATES, ENTRIES)), "full": roots @ roots.transpose(0, 2, 1)}
    kept |= {"numbers_x": x, "given_means": means}
    for kind, spread in spreads.items():
        numbers = GaussianHMM(**shared, covariance_type=kind, covars_prior=0.0, covars_weight=0.0)
        numbers.startprob_, numbers.transmat_, numbers.means_ = start, moves, means
        numbers.covars_ = spread
        told = answers(numbers, x)
        kept |= {f"{kind}_{name}": value for name, value in told.items()}
        kept |= {f"{kind}_given": spread, f"{kind}_means": numbers.means_, f"{kind}_covars": numbers.covars_}

    kept |= {"peer": f"hmmlearn {hmmlearn.__version__}", "command": "make parity"}
    np.savez(OUT, **kept)


if __name__ == "__main__":
    main()
