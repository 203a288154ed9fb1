"""Pictures of what measures found: rate and distortion of a sweep."""

from __future__ import annotations

import numpy as np

from weft.bench.pictures import BLUE, INK, ORANGE, SOFT, canvas, note, svg
from weft.measures.rates import RateDistortion

__all__ = ["rate_distortion_picture"]


def rate_distortion_picture(curve: RateDistortion, *, name: str = "rate-distortion") -> str:
    """Models by rate and distortion, each with its beta; as SVG text.

    Where the entropy H is known, what no model can reach is shaded, D + R < H. The thin line is that of all models with
    the best ELBO among these.

    Args:
        curve: as `weft.measures.rate_distortion` gives it.
        name: what ids in it begin with, where several pictures stand in one page.

    Example:
        >>> from weft.measures.rates import Mean, RateDistortionPoint
        >>> def point(beta, rate, distortion):
        ...     told = [Mean(v, (v - 0.1, v + 0.1)) for v in (rate, distortion, -rate - distortion)]
        ...     return RateDistortionPoint({}, beta, *told, None, (3.0 - distortion, rate))
        >>> curve = RateDistortion([point(4.0, 0.5, 4.0), point(1.0, 2.0, 1.5)], entropy=3.0, rows=100)
        >>> text = rate_distortion_picture(curve)
        >>> text[:4], "R, nats" in text, "no model" in text
        ('<svg', True, True)
    """
    R = np.array([p.rate.value for p in curve.points])
    D = np.array([p.distortion.value for p in curve.points])
    best = float((R + D).min())
    wide, tall = max(float(R.max()), 1e-3), max(float(np.ptp(D)), 0.1 * float(R.max()), 1e-3)
    right, low, high = 1.15 * wide, float(D.min()) - 0.25 * tall, float(D.max()) + 0.15 * tall
    ends = np.array([0.0, right])
    with canvas(size=(5.2, 3.8)) as (figure, ax):
        if curve.entropy is not None:
            ax.fill_between(ends, low, curve.entropy - ends, where=[True, True], color=SOFT, alpha=0.25, linewidth=0)
            ax.plot(ends, curve.entropy - ends, color=SOFT, linewidth=1.2)
            ax.text(0.03, 0.04, "no model: D + R < H", transform=ax.transAxes, color=INK, fontsize=9)
        ax.plot(ends, best - ends, color=ORANGE, linewidth=0.9, linestyle="--")
        ax.text(0.97, 0.95, f"dashed: ELBO {-best:.2f}", transform=ax.transAxes, color=ORANGE, fontsize=9, ha="right")
        across = [_reach(p.rate.value, p.rate.interval) for p in curve.points]
        along = [_reach(p.distortion.value, p.distortion.interval) for p in curve.points]
        ax.errorbar(R, D, xerr=np.transpose(across), yerr=np.transpose(along), color=BLUE, marker="o", linewidth=1.6)
        for p in curve.points:
            if p.beta is not None:
                note(
                    ax, p.rate.value + 0.015 * right, p.distortion.value + 0.02 * (high - low), f"β = {p.beta:g}", BLUE
                )
        ax.set(xlabel="rate R, nats", ylabel="distortion D, nats", xlim=(0, right), ylim=(low, high))
        alt = ", ".join(f"R {r:.2f} and D {d:.2f}" for r, d in zip(R, D, strict=True))
        return svg(figure, name=name, alt=f"Rate and distortion of {len(R)} models: {alt}")


def _reach(value: float, interval: tuple[float, float]) -> tuple[float, float]:
    return max(value - interval[0], 0.0), max(interval[1] - value, 0.0)
