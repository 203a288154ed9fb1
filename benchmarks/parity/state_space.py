"""What statsmodels answers about a given state space model, kept for the tests: tests/fixtures/parity/state_space.npz.

    .venv-peers/bin/python benchmarks/parity/state_space.py

A sequence with gaps, of single numbers and of whole steps: its log-likelihood, the smoothed states, and what is
forecast.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import statsmodels
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

OUT = Path(__file__).parents[2] / "tests" / "fixtures" / "parity" / "state_space.npz"
STATES, ENTRIES, STEPS, AHEAD = 2, 3, 40, 5


def main() -> None:
    """Draws, asks and writes."""
    rng = np.random.default_rng(0)
    given = {
        "moves": np.array([[0.9, 0.2], [-0.1, 0.8]]),
        "shock": np.tril(rng.normal(size=(STATES, STATES))),
        "start": rng.normal(size=STATES),
        "spread": np.tril(rng.normal(size=(STATES, STATES))),
        "loading": rng.normal(size=(ENTRIES, STATES)),
        "offset": rng.normal(size=ENTRIES),
        "scale": rng.uniform(0.3, 1.0, ENTRIES),
    }
    x = rng.normal(size=(STEPS, ENTRIES)).cumsum(0)
    x[rng.random(x.shape) < 0.15] = np.nan
    x[[0, 11]] = np.nan
    model = KalmanSmoother(k_endog=ENTRIES, k_states=STATES)
    model.bind(np.concatenate([x, np.full((AHEAD, ENTRIES), np.nan)]))
    model["transition"], model["selection"] = given["moves"], np.eye(STATES)
    model["state_cov"] = given["shock"] @ given["shock"].T
    model["design"], model["obs_intercept"] = given["loading"], given["offset"][:, None]
    model["obs_cov"] = np.diag(given["scale"] ** 2)
    model.initialize_known(given["start"], given["spread"] @ given["spread"].T)
    told = model.smooth()
    kept = {
        "x": x,
        "evidence": told.llf_obs.sum(),
        "smoothed": told.smoothed_state.T[:STEPS],
        "smoothed_covariance": told.smoothed_state_cov.transpose(2, 0, 1)[:STEPS],
        "forecast": told.forecasts.T[STEPS:],
        "forecast_covariance": told.forecasts_error_cov.transpose(2, 0, 1)[STEPS:],
    }
    about = {"peer": f"statsmodels {statsmodels.__version__}", "command": "make parity"}
    np.savez(OUT, **kept, **about, **{f"given_{name}": value for name, value in given.items()})


if __name__ == "__main__":
    main()
