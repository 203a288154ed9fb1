"""Where batches come from: arrays, files, streams, few-shot episodes, play, demonstrations; mapped, or side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.sources.arrays import Arrays
    from weft.sources.dagger import DAgger
    from weft.sources.demonstrations import Demonstrations
    from weft.sources.episodes import Episodes
    from weft.sources.mapped import Mapped, batchwise
    from weft.sources.parquet import Parquet
    from weft.sources.replay import Replay
    from weft.sources.rollouts import Rollouts
    from weft.sources.segments import Segments
    from weft.sources.shards import Shards
    from weft.sources.stream import Stream
    from weft.sources.tables import Tables
    from weft.sources.unpaired import Unpaired
    from weft.sources.windows import Windows

__getattr__, __dir__, __all__ = flat(__name__, __file__)
