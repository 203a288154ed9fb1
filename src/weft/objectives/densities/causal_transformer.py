"""The causal Transformer over tokens: a language model as GPT is one."""

from __future__ import annotations

from weft.core.configured import Range
from weft.core.legal import Choice, Flag, Number, Whole
from weft.nets.attention import Transformer
from weft.nets.causal import Causal
from weft.nets.make import NetLike
from weft.objectives.densities.tokens import TokenDensity

__all__ = ["CausalTransformer"]


class CausalTransformer(TokenDensity):
    """Each token by attention to all before it, in blocks one above the other.

        p(x) = prod_t softmax(V norm(h_t))[x_t],  h = blocks of attention and perceptrons over the embeddings of x_(<t)

    All conditionals of a row come from one pass. A draw keeps the keys and values of what it has read, so that a token
    costs one step and not a pass over the whole row.

    Args:
        net: see `weft.objectives.densities.tokens.TokenDensity`, in place of all that follows up to `bias`.
        layers: how many blocks.
        heads: of attention.
        width: of a step, and of the vectors that stand for tokens.
        dropout: share that is dropped of embeddings, of attention's weights and of what blocks add.
        positions: `learned`, one vector for each step; or `rotary`, by which attention sees how far tokens are apart.
        bias: whether linear maps and norms have one.
        context: the most tokens that a row may have; as many as the longest of training by default.
        ends, conditional, vocabulary: see `weft.objectives.densities.tokens.TokenDensity`.

    References:
        Vaswani et al., "Attention is all you need", arXiv 1706.03762; Radford et al., "Language models are unsupervised
        multitask learners", 2019; Su et al., "RoFormer: enhanced transformer with rotary position embedding",
        arXiv 2104.09864.

    Example:
        >>> from weft import Learner, Optimizer
        >>> model = CausalTransformer(layers=1, heads=2, width=16, positions="rotary")
        >>> fast = Optimizer("adam", lr=0.01)
        >>> learner = Learner(model, steps=150, optimizer=fast, random_state=0).fit(["abcabcab", "bcabcabc"])
        >>> learner.generate(["abc"], length=5, temperature=0.1)
        ['abcabcab']
    """

    spread = 0.02
    space = {"layers": Range(1, 8, whole=True), "dropout": Range(0.0, 0.4)}
    legal = {
        "layers": Whole(1),
        "heads": Whole(1),
        "dropout": Number(0, 1, "[)"),
        "positions": Choice("learned", "rotary"),
        "bias": Flag(),
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
        positions: str = "learned",
        bias: bool = True,
        ends: bool = True,
        context: int | None = None,
        conditional: bool = False,
        vocabulary: str = "characters",
    ) -> None:
        super().__init__(net, width=width, ends=ends, context=context, conditional=conditional, vocabulary=vocabulary)
        self.layers = layers
        self.heads = heads
        self.dropout = dropout
        self.positions = positions
        self.bias = bias

    def validate(self) -> None:
        super().validate()
        each = self.width // self.heads
        if self.width % self.heads or (self.positions == "rotary" and each % 2):
            even = ", an even number each" if self.positions == "rotary" else ""
            raise ValueError(
                f"expected a width that {self.heads} heads share equally{even}, got {self.width}; take "
                f"width={2 * self.heads * max(1, round(each / 2))}"
            )

    def connect(self, inputs: int, outputs: int, steps: int) -> Causal:
        return Transformer(
            inputs,
            outputs,
            context=steps,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            dropout=self.dropout,
            positions=self.positions,
            bias=self.bias,
        )
