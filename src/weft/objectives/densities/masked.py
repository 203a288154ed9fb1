"""What densities by a masked net share: all conditionals in one pass, and one after another for the work of one."""

from __future__ import annotations

from torch import Tensor

from weft.nets.masked import MaskedMLP, Walk
from weft.objectives.densities.autoregressive import Autoregressive

__all__ = ["Masked"]


class Masked(Autoregressive):
    """Conditionals by a `MaskedMLP`: a model makes `net` in `connect`."""

    net: MaskedMLP

    @property
    def answers(self) -> list[int]:
        """Of each output of the net, the entry whose law it describes."""
        return [j for j, law in enumerate(self.entries.laws) for _ in range(law.size)]

    def masks_of(self, member: int) -> list[Tensor]:
        """The masks of a member."""
        return [layer.mask for layer in self.net.layers]  # type: ignore[misc]

    def assignment(self, member: int) -> int:
        """Of a member, the number of its hidden degrees."""
        return 0

    def conditionals(self, inputs: Tensor, member: int = 0) -> Tensor:
        return self.net(inputs, self.masks_of(member))

    def begin(self, inputs: Tensor, member: int = 0) -> Walk:
        return self.net.begin(inputs, self.masks_of(member), self.assignment(member))

    def advance(self, known: int, inputs: Tensor, kept: Walk, member: int = 0) -> Tensor:
        return self.net.advance(known, inputs, kept, self.sequences[member][known])
