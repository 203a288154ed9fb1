"""Models of p(x): each says whether its likelihood is exact, a bound or an estimate, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.objectives.densities.annealing import Annealed, Tempered, ais
    from weft.objectives.densities.autoregressive import Autoregressive
    from weft.objectives.densities.density import Density
    from weft.objectives.densities.laws import Law, Laws, laws_of
    from weft.objectives.densities.outputs import LogisticMixture, NormalMixture

__getattr__, __dir__, __all__ = flat(__name__, __file__)
