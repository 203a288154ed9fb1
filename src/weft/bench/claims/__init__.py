"""Claims: statements of papers as files that can be run, with a verdict that can fail.

A claim is one short file in a folder: a subclass of `Claim` that says what is stated, by whom, in which
settings it is run here (`quick`, in seconds; `full`, in minutes) and how far from the paper's figures the
measured ones may be, and why. Its `run` trains, and tells a `Report` what it measured:

    class Coin(Claim):
        title = "A fair coin"
        statement = "Half of the throws show heads."
        reference = "Jakob Bernoulli, Ars Conjectandi, 1713"
        tolerance = "Within .02 of one half, four standard errors of 10,000 throws."
        quick = {"seeds": 6, "throws": 10_000}
        full = {"seeds": 16, "throws": 1_000_000}

        def run(self, setting, seeds, report):
            heads = [np.random.default_rng(s).integers(2, size=setting.throws).mean() for s in seeds]
            report.figure("heads", mean_of(heads), reference="1/2", near=0.5, within=0.02)

A figure holds where its whole interval is within the bounds, fails where it is wholly outside, and is not settled in
between. The texts must be plain literals: `weft claims` lists a folder by reading its files, and runs none of them.
`weft reproduce` does run them: a claim is Python code, to be trusted like any other program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.bench.claims.claim import SCALES, Claim, Mutant, altered
    from weft.bench.claims.estimates import (
        Estimate,
        exponents,
        interquartile_of,
        mean_of,
        mean_over,
        median_of,
        resampled,
        share_of,
    )
    from weft.bench.claims.folder import FORMAT, Listed, claims_folder, last, listed, load, since
    from weft.bench.claims.judging import Figure, anew, shown, verdict_of
    from weft.bench.claims.replicas import (
        combinations,
        each_of,
        hits_of,
        least_losses,
        middle_of,
        scores_of,
        searched,
        stacked,
        swept,
        told,
        tuned,
    )
    from weft.bench.claims.running import caught, judge, reproduce
    from weft.bench.claims.selecting import chosen_by
    from weft.bench.claims.telling import Report
    from weft.bench.claims.usual import bands, chances, curve, dots, dumbbells, plane, sheets

__getattr__, __dir__, __all__ = flat(__name__, __file__)
