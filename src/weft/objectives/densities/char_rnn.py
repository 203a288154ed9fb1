"""The character RNN: text by a net that reads it token by token and carries a state."""

from __future__ import annotations

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.nets.causal import Causal
from weft.nets.make import NetLike
from weft.nets.recurrent import GATES, Recurrent
from weft.objectives.densities.tokens import TokenDensity

__all__ = ["CharRNN"]


class CharRNN(TokenDensity):
    """A recurrent net that says, after each character, which comes next.

        p(x) = prod_t softmax(V h_t)[x_t],  h_t = cell(embedding of x_(t-1), h_(t-1))

    The state is all that is known of what came before, whatever its length: an LSTM keeps it over longer spans than a
    plain RNN, whose gradients fade by a factor with each step back.

    Args:
        net: see `weft.objectives.densities.tokens.TokenDensity`, in place of all that follows up to `dropout`.
        kind: `lstm`, `gru` or `rnn`.
        layers: how many, one above the other.
        width: of the states, and of the vectors that stand for tokens.
        dropout: share of a layer's outputs that is dropped on their way up.
        ends, context, conditional, vocabulary: see `weft.objectives.densities.tokens.TokenDensity`.

    References:
        Graves, "Generating sequences with recurrent neural networks", arXiv 1308.0850; Sutskever, Martens and Hinton,
        "Generating text with recurrent neural networks", ICML 2011.

    Example:
        >>> from weft import Learner, Optimizer
        >>> names = ["anna", "hanna", "johanna", "susanna"]
        >>> fast = Optimizer("adam", lr=0.02)
        >>> learner = Learner(CharRNN(width=16), steps=200, optimizer=fast, random_state=0).fit(names)
        >>> learner.generate(["joh"], temperature=0.1)
        ['johanna']
        >>> bool(learner.log_prob(["anna"])[0] > -2)
        True
    """

    space = {"width": Range(16, 256, log=True, whole=True), "layers": Range(1, 3, whole=True)}
    legal = {"kind": Choice(*GATES), "layers": Whole(1), "dropout": Number(0, 1, "[)")}

    def __init__(
        self,
        net: NetLike = None,
        *,
        kind: str = "lstm",
        layers: int = 1,
        width: int = 128,
        dropout: float = 0.0,
        ends: bool = True,
        context: int | None = None,
        conditional: bool = False,
        vocabulary: str = "characters",
    ) -> None:
        super().__init__(net, width=width, ends=ends, context=context, conditional=conditional, vocabulary=vocabulary)
        self.kind = kind
        self.layers = layers
        self.dropout = dropout

    def connect(self, inputs: int, outputs: int, steps: int) -> Causal:
        return Recurrent(inputs, outputs, kind=self.kind, layers=self.layers, width=self.width, dropout=self.dropout)
