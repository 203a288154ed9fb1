"""Messages along a Markov chain, in log space, of many sequences at once and of very long ones.

With a_i the start, A_ij the moves and b_t(j) the density of what is seen at step t in state j,

    forward     f_1(j) = a_j b_1(j),    f_t(j) = (sum_i f_{t-1}(i) A_ij) b_t(j)
    backward    g_T(i) = 1,             g_t(i) = sum_j A_ij b_{t+1}(j) g_{t+1}(j)
    p(x) = sum_j f_T(j),    p(z_t = j | x) = f_t(j) g_t(j) / p(x)

Sums are exact logsumexps: nothing underflows, however long a sequence is or however far off an outlier. With the
largest in place of the sum the same messages are Viterbi's. Where numbers can be read, probabilities are tried first,
scaled at each step, which costs a third: if none comes near underflow they are the same to rounding, else they are
thrown away.

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

from weft.objectives.densities.sequences import readable

__all__ = ["Chain", "Scaled", "best_path", "drawn_path"]

_FAR = -1e30  # a log-probability of nothing that stays finite in sums, so that gradients do
_LEAST = 1e-200  # a probability below which doubles begin to lose what adds up to it
_FEW = 6  # states
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

    def cut(self, values: Tensor, fill: float) -> Tensor:
        """Steps after the first, `(turns, ..., B * pieces)`: the pieces stand beside the sequences."""
        later, pieces = values[1:], self.pieces
        if pieces == 1:
            return later
        turns = math.ceil(len(later) / pieces)
        rest = later.new_full((turns * pieces - len(later), *later.shape[1:]), fill)
        return torch.cat([later, rest]).unflatten(0, (pieces, turns)).movedim(0, -1).flatten(-2)

    def uncut(self, found: list[Tensor]) -> Tensor:
        """The inverse, of messages by turn."""
        whole = torch.stack(found) if found else self.seen[:0, ..., :1, :]
        if self.pieces == 1:
            return whole
        rows = self.seen.shape[-1]
        steps = whole.unflatten(-1, (rows, self.pieces)).movedim(-1, 0).flatten(0, 1)
        return steps[: len(self.seen) - 1]

    def _carried(self) -> Tensor:
        """What each piece does to a message: `(..., K, K, B, pieces)`, from a state before it to one at its end."""
        seen, inside = self.cut(self.seen, 0.0), self.cut(self.inside, False)
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
        for step, within in zip(self.cut(self.seen, 0.0), self.cut(self.inside, False), strict=True):
            message = torch.where(within, self.over(message.unsqueeze(-2) + moves, -3) + step, message)
            found.append(message)
        return torch.cat([first.unsqueeze(0), self.uncut(found)])

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
        turns = zip(self.cut(self.seen, 0.0).flip(0), self.cut(self.inside, False).flip(0), strict=True)
        for step, within in turns:
            message = torch.where(within, self.over(moves + (step + message).unsqueeze(-3), -2), message)
            found.append(message)
        return torch.cat([self.uncut(found[::-1]), last.unsqueeze(0)])

    def evidence(self) -> Tensor:
        """log p(x) of each sequence, `(..., B)`."""
        quick = Scaled.of(self)
        if quick is not None:
            return quick.evidence
        return self.over(self.forward()[-1], -2)

    def posterior(self, weight: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """log p(x), p(z_t | x), and how often each move is expected.

        Args:
            weight: how much each sequence counts for the moves, `(..., B)`.

        Returns:
            `(..., B)`; `(T, ..., K, B)`, 0 after the end; `(..., K, K)`, summed over steps and sequences.
        """
        quick = Scaled.of(self)
        if quick is not None:
            return quick.posterior(weight)
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


@dataclass(frozen=True)
class Scaled:
    """The same messages as probabilities, scaled at each step to sum to 1.

    Attributes:
        chain: whose they are.
        f: forward, `(T, ..., K, B)`, p(z_t | x_1..x_t).
        b: the densities of what is seen, over the largest of each step.
        scale: what each step was divided by, `(T, ..., 1, B)`; 1 after the end.
        evidence: log p(x), `(..., B)`.
        carried: what each piece does to a message, up to a factor; None where there is one piece.
        plain: whether no step stands after an end.
    """

    chain: Chain
    f: Tensor
    b: Tensor
    scale: Tensor
    evidence: Tensor
    carried: Tensor | None
    plain: bool

    @classmethod
    def of(cls, chain: Chain) -> Scaled | None:
        """The messages, or None where they may have lost something, or where that cannot be told."""
        if chain.over is not torch.logsumexp or not readable(chain.seen):
            return None
        peak = chain.seen.detach().amax(-2, keepdim=True)
        b = (chain.seen - peak).exp()
        moves, plain = chain.moves.exp().mT, chain.pieces == 1 and bool(chain.inside.all())
        first = chain.start.exp().unsqueeze(-1) * b[0]
        scale = first.sum(-2, keepdim=True)
        f = first = first / scale
        exits = carried = None
        if chain.pieces > 1:
            entries = [first]
            carried = _scaled_pieces(chain, b)
            for piece in range(chain.pieces):
                new = (entries[-1].unsqueeze(-2) * carried[..., piece]).sum(-3)
                entries.append(new / new.sum(-2, keepdim=True))
            f = torch.stack(entries[:-1], -1).flatten(-2)
            exits = torch.stack(entries[1:], -1).flatten(-2)
        found, scales = [], []
        for step, within in zip(chain.cut(b, 1.0), chain.cut(chain.inside, False), strict=True):
            new = _product(moves, f) * step
            c = new.sum(-2, keepdim=True)
            new = new / c
            f = new if plain else torch.where(within, new, f)
            found.append(f)
            scales.append(c)
        if exits is not None and not torch.allclose(f, exits, rtol=1e-8, atol=0.0):
            return None
        every = torch.cat([first.unsqueeze(0), chain.uncut(found)])
        if not bool((every > _LEAST).all()):
            return None
        scale = torch.cat([scale.unsqueeze(0), chain.uncut(scales)])
        told = torch.where(chain.inside, scale.log() + peak, 0.0).sum((0, -2))
        return cls(chain, every, b, torch.where(chain.inside, scale, 1.0), told, carried, plain)

    def posterior(self, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As `Chain.posterior`."""
        chain, moves = self.chain, self.chain.moves.exp()
        ratio = self.b / self.scale
        g = last = torch.ones_like(self.f[0])
        if self.carried is not None:
            exits, carried = [last], self.carried
            turns = math.ceil((len(self.f) - 1) / chain.pieces)
            for piece in range(chain.pieces - 1, 0, -1):
                new = (carried[..., piece] * exits[-1].unsqueeze(-3)).sum(-2)
                entry = self.f[piece * turns]
                exits.append(new / (new * entry).sum(-2, keepdim=True))  # as f and g of a step make 1 together
            g = torch.stack(exits[::-1], -1).flatten(-2)
        found = []
        turns_back = zip(chain.cut(ratio, 1.0).flip(0), chain.cut(chain.inside, False).flip(0), strict=True)
        for step, within in turns_back:
            new = _product(moves, step * g)
            g = new if self.plain else torch.where(within, new, g)
            found.append(g)
        every = torch.cat([chain.uncut(found[::-1]), last.unsqueeze(0)])
        each = self.f * every * chain.inside
        counted = chain.inside[1:] if weight is None else chain.inside[1:] * weight.unsqueeze(-2)
        tail = ratio[1:] * every[1:] * counted
        moved = torch.einsum("t...ib,t...jb->...ij", self.f[:-1], tail) * moves
        return self.evidence, each, moved


def _product(moves: Tensor, messages: Tensor) -> Tensor:
    """Of matrices `(..., K, K)` and `(..., K, B)`.

    Of few states it is a sum of a few multiples: a product of matrices would wake threads at every step of a chain, for
    which they wait longer than they work.
    """
    if moves.shape[-1] > _FEW:
        return moves @ messages
    return (moves.unsqueeze(-1) * messages.unsqueeze(-3)).sum(-2)


def _scaled_pieces(chain: Chain, b: Tensor) -> Tensor:
    """What each piece does to a message up to a factor, `(..., K, K, B, pieces)`."""
    seen, inside = chain.cut(b, 1.0), chain.cut(chain.inside, False)
    states = seen.shape[-2]
    eye = torch.eye(states, dtype=seen.dtype, device=seen.device).unsqueeze(-1)
    done = eye.expand(*seen.shape[1:-2], states, *seen.shape[-2:])
    moves = chain.moves.exp().mT.unsqueeze(-3)
    for step, within in zip(seen, inside, strict=True):
        new = _product(moves, done) * step.unsqueeze(-3)
        new = new / new.sum((-3, -2), keepdim=True)
        done = torch.where(within.unsqueeze(-3), new, done)
    return done.unflatten(-1, (chain.seen.shape[-1], chain.pieces))


def best_path(chain: Chain) -> Tensor:
    """The likeliest path of each sequence, `(T, ..., B)`, -1 after its end (Viterbi).

    Args:
        chain: with `over=torch.amax`.
    """
    messages = chain.forward()
    states, rows = messages.shape[-2:]
    before = torch.cat([messages[:1], messages[:-1]])
    came = torch.stack([(before + chain.moves[..., j].unsqueeze(-1)).argmax(-2) for j in range(states)], -2)
    # From each state at a piece's end, the way back through it; then the ends, from the last one on.
    turns, within = chain.cut(came, 0).flip(0), chain.cut(chain.inside, False).flip(0)
    back = torch.arange(states, device=came.device).unsqueeze(-1).expand(turns.shape[1:] or came.shape[1:])
    found = []
    for step, here in zip(turns, within, strict=True):
        back = torch.where(here, step.gather(-2, back), back)
        found.append(back)
    ends = [messages[-1].argmax(-2, keepdim=True)]
    through = back.unflatten(-1, (rows, chain.pieces))
    for piece in range(chain.pieces - 1, 0, -1):
        ends.append(through[..., piece].gather(-2, ends[-1]))
    end = torch.stack(ends[::-1], -1).flatten(-2)
    path = torch.cat([chain.uncut([way.gather(-2, end) for way in found[::-1]]).long(), ends[0].unsqueeze(0)])
    return torch.where(chain.inside, path, -1).squeeze(-2)


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
