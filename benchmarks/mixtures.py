"""EM of a Gaussian mixture: 5 components with full covariances, 500 x 2 (50 iterations) and 50,000 x 10 rows (20).

Weft's turn is a whole `fit`, with its reading, records and the measure of the solution. scikit-learn comes as it is,
from the same means, shares and precisions (it runs k-means once all the same, to fill in what it is not given), and at
its best: `bare`, with that taken away. Both make the same iterations in double precision, without a tolerance, and end
at the same parameters (tests/objectives/densities/test_mixtures.py).

`restarts` are 50 replicas from starts of their own, beside one. At 500 x 2, from k-means, they shall cost at most five
times one; at 50,000 x 10, where arithmetic and memory rule, the ratio is told, of 3 iterations from rows drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Comparison, Turn, serve, timed

ROUNDS = 5
COMPONENTS = 5
ITERATIONS = {"500 x 2": 50, "50,000 x 10": 20}
SIZES = {"500 x 2": (500, 2, 3), "50,000 x 10": (50_000, 10, 1)}
STARTS = {"500 x 2": "k-means", "50,000 x 10": "rows"}
RESTARTS = 50


def _rows(n: int, d: int) -> Any:
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(COMPONENTS, d))
    return centres[random.integers(0, COMPONENTS, n)] + random.normal(size=(n, d))


def _weft(size: str, replicas: int | None = None, start: str = "") -> Turn:
    from weft import Learner
    from weft.objectives import GaussianMixture

    warnings.simplefilter("ignore")  # that a component sits on the floor is not the matter here
    n, d, times = SIZES[size]
    x = _rows(n, d)
    scale = np.zeros((COMPONENTS, d, d)).tolist()
    given = {"logits": [0.0] * COMPONENTS, "mean": x[:COMPONENTS].tolist(), "scale": scale}
    turns = 3 if start and n > 1000 else ITERATIONS[size]
    model = GaussianMixture(COMPONENTS, start=start or given, iterations=turns, tolerance=0.0)
    learner = Learner(model, dtype="float64", device="cpu", replicas=replicas, random_state=0)
    return timed(lambda: learner.fit(x), times=1 if replicas else times)


def _sklearn(size: str, bare: bool) -> Turn:
    from sklearn.mixture import GaussianMixture

    class Bare(GaussianMixture):
        """Without the k-means whose clusters nobody reads."""

        def _initialize_parameters(self, X: Any, random_state: Any, **more: Any) -> None:
            self._initialize(X, None)

    warnings.simplefilter("ignore")  # of its convergence, which is not asked for
    n, d, times = SIZES[size]
    x = _rows(n, d)
    start = {"means_init": x[:COMPONENTS], "weights_init": np.full(COMPONENTS, 1 / COMPONENTS)}
    start["precisions_init"] = np.stack([np.eye(d)] * COMPONENTS)
    peer = (Bare if bare else GaussianMixture)(COMPONENTS, tol=0.0, max_iter=ITERATIONS[size], random_state=0, **start)
    return timed(lambda: peer.fit(x), times=times)


CONTESTANTS: dict[str, Callable[[], Turn]] = {}
COMPARISONS = []
for _size in SIZES:
    CONTESTANTS |= {
        f"weft, {_size}": partial(_weft, _size),
        f"scikit-learn, {_size}": partial(_sklearn, _size, False),
        f"scikit-learn, bare, {_size}": partial(_sklearn, _size, True),
        f"weft, one start, {_size}": partial(_weft, _size, None, STARTS[_size]),
        f"weft, {RESTARTS} restarts, {_size}": partial(_weft, _size, RESTARTS, STARTS[_size]),
    }
    COMPARISONS += [
        Comparison(f"weft, {_size}", f"scikit-learn, {_size}", price=1.0),
        Comparison(f"weft, {_size}", f"scikit-learn, bare, {_size}", price=1.0),
        Comparison(
            f"weft, {RESTARTS} restarts, {_size}",
            f"weft, one start, {_size}",
            price=5.0 if _size == "500 x 2" else None,
        ),
    ]
PEERS: tuple[str, ...] = ()

if __name__ == "__main__":
    serve(CONTESTANTS)
