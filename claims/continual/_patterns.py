"""Units that learn random patterns by the closed form of a step, and the signal and noise of recall without chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.bench.claims import Report


def learned(w: Any, x: Any, y: Any, rate: float) -> Any:
    """The minimizer over v of (y - v x)^2 / 2 + metric |v - w|^2 / 2, where |x| = 1 and rate = 1 / (1 + metric).

    The Fisher information of t patterns has the diagonal t / n, since each squared component of x is 1 / n: it is
    EWC's metric. Without one (rate 1) the pattern is learned whole; a constant one is a smaller learning rate.
    """
    return w + (rate * (y - np.einsum("...n,...n->...", w, x)))[..., None] * x


def simulated(n: int, seeds: list[int], rates: Any, times: Any, probes: Any, report: Report) -> dict[str, Any]:
    """What each unit answers to the probes, times their sign, at each of the times: (times, probes, units)."""
    random = np.random.default_rng([seeds[0], 2])
    w = {name: np.zeros((len(seeds), n), np.float32) for name in rates}
    signs = np.zeros((len(probes), len(seeds), n), np.int8)
    recall = {name: np.full((len(times), len(probes), len(seeds)), np.nan) for name in rates}
    for t in report.each(range(10 * n + 1), "patterns"):
        bits = np.unpackbits(random.integers(256, size=(len(seeds), -(-n // 8)), dtype=np.uint8), axis=1, count=n)
        x = (2 * bits.astype(np.float32) - 1) / np.float32(np.sqrt(n))
        y = random.choice(np.array([-1, 1], np.float32), len(seeds))
        w = {name: learned(w[name], x, y, np.float32(rate[t])) for name, rate in rates.items()}
        signs[probes == t] = np.sign(y[:, None] * x)
        for i in np.flatnonzero(times == t):
            for p in np.flatnonzero(probes <= t):
                for name in rates:
                    recall[name][i, p] = np.einsum("rn,rn->r", signs[p], w[name]) / np.sqrt(n)
    return recall


def exact(n: int, rates: Any) -> tuple[Any, Any]:
    """The signal E[y x w_t] of patterns seen at s <= 3 n (rows) at time t (columns), and its standard deviation.

    With u = E|w|^2 and a = E(x w)^2 for a pattern x seen before, a step at rate r on fresh signs gives

        u <- u - (2 r - r^2) u / n + r^2,    a <- a - 2 r a / n + r^2 (1 + (u + 2 a - 2 u / n) / n) / n,

    and multiplies the signal by 1 - r / n, so that for EWC, r = n / (n + t), the first one's is n / (n + t).
    """
    kept = np.linspace(0, 3 * n, 601).astype(int)
    signal, second = np.zeros((2, len(kept), len(rates)))
    u = 0.0
    for t, r in enumerate(rates):
        if t:
            a = second[:, t - 1]
            signal[:, t] = (1 - r / n) * signal[:, t - 1]
            second[:, t] = a - 2 * r * a / n + r**2 * (1 + (u + 2 * a - 2 * u / n) / n) / n
        signal[kept >= t, t] = second[kept >= t, t] = 0
        signal[kept == t, t], second[kept == t, t] = r, (1 - r) ** 2 * u / n + r**2
        u = u - (2 * r - r**2) * u / n + r**2
    return signal, np.sqrt(np.maximum(second - signal**2, 0))


def ratio(recall: Any, weights: Any) -> Any:
    """Mean to standard deviation of answers (times, units), for each row of weights of the units."""
    total = weights.sum(1)[:, None]
    mean = weights @ recall.T / total
    return mean / np.sqrt(np.maximum(weights @ (recall.T**2) / total - mean**2, 1e-30))


def asked(probes: Any, time: int, recall: Any, weights: Any) -> Any:
    """The share of the probes seen so far whose ratio exceeds 1, for each row of weights of the units."""
    return (ratio(recall[probes <= time], weights) > 1).mean(1)


def retained(signal: Any, noise: Any) -> Any:
    """The same, exactly; right up to 3 n."""
    seen = signal > 0
    return (seen & (signal > noise)).sum(0) / seen.sum(0)
