"""Sixteen replicas of a small MLP, 64-64-10 on the digits in batches of 64, beside one run of the same.

Both are whole fits of ten epochs; what is compared is the price of sixteen against the price of one.
"""

from __future__ import annotations

from harness import Comparison, Turn, serve, timed


def _fit(replicas: int | None) -> Turn:
    from sklearn.datasets import load_digits

    from weft import Learner
    from weft.objectives import Classification

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    learner = Learner(Classification(hidden=(64,)), epochs=10, batch_size=64, replicas=replicas, random_state=0)
    return timed(lambda: learner.set_params(device="cpu").fit(x, y))


CONTESTANTS = {"weft, 16 replicas": lambda: _fit(16), "weft, one run": lambda: _fit(None)}
PEERS: set[str] = set()
ROUNDS = 9
COMPARISONS = [Comparison("weft, 16 replicas", "weft, one run", price=5.0)]

if __name__ == "__main__":
    serve(CONTESTANTS)
