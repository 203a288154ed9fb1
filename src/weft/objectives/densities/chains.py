"""Messages along a Markov chain, in log space, of many sequences at once and of very long ones.

With a_i the start, A_ij the moves and b_t(j) the density of what is seen at step t in state j,

    forward     f_1(j) = a_j b_1(j),    f_t(j) = (sum_i f_{t-1}(i) A_ij) b_t(j)
    backward    g_T(i) = 1,             g_t(i) = sum_j A_ij b_{t+1}(j) g_{t+1}(j)
    p(x) = sum_j f_T(j),    p(z_t = j | x) = f_t(j) g_t(j) / p(x)

Sums are exact logsumexps: nothing underflows, however long a sequence is or however far off an outlier. With the largest
in place of the sum the same messages are Viterbi's.

A step is a few operations on all sequences. A few long ones are cut into pieces of about the root of their length: what
a piece does to a message is a matrix of the states, made for all pieces side by side, so that T steps take about
3 sqrt(T) turns in place of T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Chain", "best_path", "drawn_path"]

_FAR = -1e30  # a log-probability of nothing that stays finite in sums, so that gradients do
_LONG, _WORK = 256, 2**14  # from which length pieces pay, and up to which size of a step


@dataclass(frozen=True)
class Chain:
    """A chain with K states beside B sequences of at most T steps; leading axes `...` are replicas.

    Attributes:
        start: log a, `(..., K)`.
        moves: log A, from the first of its axes to the second, `(..., K, K)`.
        seen: log b, `(T, ..., K, B)`.
        inside: which steps are in a sequence, `(T, ..., 1, B)`; the first is in each.
        over: what is done over the states that one comes from: `torch.logsumexp`, or `torch.amax`.
    """

    start: Tensor
    moves: Tensor
    seen: Tensor
    inside: Tensor
    over: Callable[..., Tensor] = torch.logsumexp

    @property
    def pieces(self) -> int:
        """Into how many pieces the steps after the first are cut."""
        steps, (states, rows) = len(self.seen) - 1, self.seen.shape[-2:]
        if steps < _LONG or states**3 * rows > _WORK:
            return 1
        return math.ceil(steps / math.ceil(math.sqrt(steps / 2)))

    def _cut(self, values: Tensor, fill: float) -> Tensor:
        """Steps after the first, `(turns, ..., B * pieces)`: the pieces stand beside the sequences."""
        later, pieces = values[1:], self.pieces
        if pieces == 1:
            return later
        turns = math.ceil(len(later) / pieces)
        rest = later.new_full((turns * pieces - len(later), *later.shape[1:]), fill)
        return torch.cat([later, rest]).unflatten(0, (pieces, turns)).movedim(0, -1).flatten(-2)

    def _uncut(self, found: list[Tensor]) -> Tensor:
        """The inverse, of messages by turn."""
        whole = torch.stack(found) if found else self.seen[:0]
        if self.pieces == 1:
            return whole
        rows = self.seen.shape[-1]
        steps = whole.unflatten(-1, (rows, self.pieces)).movedim(-1, 0).flatten(0, 1)
        return steps[: len(self.seen) - 1]

    def _carried(self) -> Tensor:
        """What each piece does to a message: `(..., K, K, B, pieces)`, from a state before it to one at its end."""
        seen, inside = self._cut(self.seen, 0.0), self._cut(self.inside, False)
        states = seen.shape[-2]
        eye = torch.eye(states, dtype=torch.bool, device=seen.device).unsqueeze(-1)
        done = torch.where(eye, 0.0, _FAR).to(seen).expand(*seen.shape[1:-2], states, *seen.shape[-2:])
        moves = self.moves.unsqueeze(-3).unsqueeze(-1)
        for step, within in zip(seen, inside, strict=True):
            new = self.over(done.unsqueeze(-2) + moves, -3) + step.unsqueeze(-3)
            done = torch.where(within.unsqueeze(-3), new, done)
        return done.unflatten(-1, (self.seen.shape[-1], self.pieces))

    def forward(self, carried: Tensor | None = None) -> Tensor:
        """log f for every step, `(T, ..., K, B)`; after a sequence's end it stays."""
        message = first = self.start.unsqueeze(-1) + self.seen[0]
        if self.pieces > 1:
            carried = self._carried() if carried is None else carried
            entries = [first]
            for piece in range(self.pieces - 1):
                entries.append(self.over(entries[-1].unsqueeze(-2) + carried[..., piece], -3))
            message = torch.stack(entries, -1).flatten(-2)
        moves, found = self.moves.unsqueeze(-1), []
        for step, within in zip(self._cut(self.seen, 0.0), self._cut(self.inside, False), strict=True):
            message = torch.where(within, self.over(message.unsqueeze(-2) + moves, -3) + step, message)
            found.append(message)
        return torch.cat([first.unsqueeze(0), self._uncut(found)])

    def backward(self, carried: Tensor | None = None) -> Tensor:
        """log g for every step, `(T, ..., K, B)`."""
        message = last = torch.zeros_like(self.seen[0])
        if self.pieces > 1:
            carried = self._carried() if carried is None else carried
            exits = [last]
            for piece in range(self.pieces - 1, 0, -1):
                exits.append(self.over(carried[..., piece] + exits[-1].unsqueeze(-3), -2))
            message = torch.stack(exits[::-1], -1).flatten(-2)
        moves, found = self.moves.unsqueeze(-1), []
        turns = zip(self._cut(self.seen, 0.0).flip(0), self._cut(self.inside, False).flip(0), strict=True)
        for step, within in turns:
            message = torch.where(within, self.over(moves + (step + message).unsqueeze(-3), -2), message)
            found.append(message)
        return torch.cat([self._uncut(found[::-1]), last.unsqueeze(0)])

    def evidence(self) -> Tensor:
        """log p(x) of each sequence, `(..., B)`."""
        return self.over(self.forward()[-1], -2)

    def posterior(self, weight: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """log p(x), p(z_t | x), and how often each move is expected.

        Args:
            weight: how much each sequence counts for the moves, `(..., B)`.

        Returns:
            `(..., B)`; `(T, ..., K, B)`, 0 after the end; `(..., K, K)`, summed over steps and sequences.
        """
        carried = self._carried() if self.pieces > 1 else None
        f, g = self.forward(carried), self.backward(carried)
        evidence = self.over(f[-1], -2, keepdim=True)
        each = (f + g - evidence).exp() * self.inside
        tail = torch.where(self.inside[1:], self.seen[1:] + g[1:] - evidence, -torch.inf)
        counted = 1.0 if weight is None else weight.unsqueeze(-2)
        moved = [
            (f[:-1, ..., i : i + 1, :] + (self.moves[..., i, :].unsqueeze(-1) + tail)).exp().mul(counted).sum((0, -1))
            for i in range(f.shape[-2])
        ]
        return evidence.squeeze(-2), each, torch.stack(moved, -2)


def best_path(chain: Chain) -> Tensor:
    """The likeliest path of each sequence, `(T, ..., B)`, -1 after its end (Viterbi).

    Args:
        chain: with `over=torch.amax`.
    """
    messages = chain.forward()
    came = torch.stack(  # to each state, from where
        [(messages[:-1] + chain.moves[..., j].unsqueeze(-1)).argmax(-2) for j in range(messages.shape[-2])], -2
    )
    state = messages[-1].argmax(-2)
    path = [state]
    for t in range(len(messages) - 1, 0, -1):
        before = came[t - 1].gather(-2, state.unsqueeze(-2)).squeeze(-2)
        state = torch.where(chain.inside[t].squeeze(-2), before, state)
        path.append(state)
    return torch.where(chain.inside.squeeze(-2), torch.stack(path[::-1]), -1)


def drawn_path(chain: Chain, u: Tensor) -> Tensor:
    """A path drawn from p(z | x) for each sequence, `(T, B)`, backward from its end.

    Args:
        chain: without leading axes.
        u: uniforms, `(T, B)`.

    References:
        Scott, "Bayesian methods for hidden Markov models", JASA 97, 2002.
    """
    messages = chain.forward()
    state = _drawn(messages[-1].softmax(-2), u[-1])
    path = [state]
    for t in range(len(messages) - 1, 0, -1):
        before = (messages[t - 1] + chain.moves.mT[state].mT).softmax(-2)
        state = torch.where(chain.inside[t].squeeze(-2), _drawn(before, u[t - 1]), state)
        path.append(state)
    return torch.stack(path[::-1])


def _drawn(share: Tensor, u: Tensor) -> Tensor:
    """A state for each column of probabilities `(K, B)`, by the inverse of their distribution function."""
    return (u.unsqueeze(-2) >= share.cumsum(-2)[..., :-1, :]).sum(-2)
