"""How an objective reads its rows: what it declares of tables, gaps and lengths, and what the check finds out."""

import pytest
import torch
from torch import nn

from weft.core import Composed, Field, Objective, Output, Part, capability
from weft.core.objective import wrong_marks
from weft.core.random import normal
from weft.sources import Arrays
from weft.testing import ContractError, check_objective

ROWS = 24
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 3, generator=GENERATOR)
SEEN = torch.rand(ROWS, 3, generator=GENERATOR) > 0.3
TOKENS = torch.randint(0, 4, (ROWS, 5), generator=GENERATOR)
LENGTH = torch.arange(ROWS) % 5 + 1
AFTER = torch.arange(5) >= LENGTH[:, None]


class Gaussian(Objective):
    """Independent normals of unit variance, over what is observed."""

    fields = ("x",)
    columns = "values"
    gaps = True
    masks = True

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["observed"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed):
        each = torch.distributions.Normal(self.mean, torch.ones(())).log_prob(x)
        return (each * observed if self.masks else each + 0 * observed).sum(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n):
        return self.mean + normal((n, *self.mean.shape), place="x").to(self.mean)


class Letters(Objective):
    """How often each token comes, whatever its place."""

    fields = ("x",)
    kinds = {"x": "tokens"}
    masks = True

    def build(self, spec):
        self.logits = nn.Parameter(torch.zeros(spec["x"].classes or 4))

    def forward(self, batch, player=""):
        each = -self.logits.log_softmax(-1)[batch["x"]]
        inside = torch.arange(each.shape[-1]) < batch["x_length"][:, None]
        return Output((each * inside if self.masks else each + 0 * inside).sum(-1))


class Careless(Gaussian):
    """Reads what stands at a gap."""

    masks = False


class Endless(Letters):
    """Reads what stands after a row's end."""

    masks = False

    def build(self, spec):
        self.logits = nn.Parameter(torch.arange(4.0))


GAPPED = {"x": torch.where(SEEN, X, 0.0), "observed": SEEN}
ENDED = {"x": TOKENS.masked_fill(AFTER, 0), "x_length": LENGTH}


def source(rows):
    return Arrays(**rows, batch_size=8)


def test_what_comes_along_is_declared_and_held_to():
    assert Gaussian().companions == ("observed",)
    assert Letters().companions == ("x_length",)
    check_objective(Gaussian(), source(GAPPED))
    check_objective(Letters(), source(ENDED))


@pytest.mark.parametrize(
    ("objective", "rows", "message"),
    [
        (Careless(), GAPPED, "do not depend on x at gaps"),
        (Endless(), ENDED, "do not depend on x after a row's end"),
        (Gaussian(), {"x": X, "weight": torch.ones(ROWS)}, "observed"),
    ],
)
def test_what_reads_gaps_and_padding_is_found_out(objective, rows, message):
    with pytest.raises((ContractError, KeyError), match=message):
        check_objective(objective, source(rows))


class Odd(Gaussian):
    """Reads a table as nobody does."""

    columns = "entries"


def test_columns_are_one_of_two():
    with pytest.raises(ContractError, match="columns to be 'features' or 'values', got 'entries'"):
        check_objective(Odd(), source(GAPPED))


def test_columns_of_a_field_leave_no_entry_out():
    parts = (Part("height", "number"), Part("leaf", "category", 2, 2))
    assert Field((3,), torch.float32, columns=parts).columns == parts
    with pytest.raises(ValueError, match="columns that fill a row of shape"):
        Field((4,), torch.float32, columns=parts)
    for wrong in (
        {"kind": "text"},
        {"kind": "category"},
        {"kind": "number", "classes": 2},
        {"kind": "count", "width": 0},
    ):
        with pytest.raises(ValueError, match="expected a column of one of the kinds"):
            Part("leaf", **wrong)


class Unsaid(Gaussian):
    """Marks that leave open what is given."""

    fields = ("x", "y")

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed, y):
        return y

    @capability(merge="mean")
    def impute(self, x, observed):
        return x

    @capability(gives="rows")
    def told(self, x):
        return x


def test_marks_say_what_is_given_or_their_names_do():
    marks = Gaussian().capabilities()
    assert (marks["log_prob"].gives, marks["sample"].gives) == ("density", "x")
    told = "\n".join(wrong_marks(Unsaid()))
    assert "'log_prob' to say what it gives" in told
    assert "'impute', which gives rows, to merge by share or refuse, got 'mean'" in told
    assert "'told' to give 'x', 'density', 'surprise' or '', got 'rows'" in told
    assert not list(wrong_marks(Gaussian()))


class Pair(Composed):
    """Two densities of the same rows."""

    composes = ("parts_",)
    shared = ("x",)

    def __init__(self, parts_=None):
        super().__init__()
        self.parts_ = parts_

    def build(self, spec):
        self.assemble({name: self.view(name, spec) for name in self.parts()})

    def forward(self, batch, player=""):
        return Output(sum(self.ask(name, self.view(name, batch)).losses for name in self.parts()))


class Full(Gaussian):
    """Takes no gaps."""

    gaps = False


class Captioned(Letters):
    """Reads tokens beside its rows."""

    fields = ("x", "caption")
    kinds = {"x": "values", "caption": "tokens"}


def test_parts_agree_on_how_a_table_is_read_and_see_their_own_lengths():
    assert (Pair({"a": Gaussian(), "b": Gaussian()}).columns, Pair({"a": Gaussian(), "b": Gaussian()}).gaps) == (
        "values",
        True,
    )
    assert not Pair({"a": Gaussian(), "b": Full()}).gaps
    check_objective(Pair({"a": Gaussian(), "b": Gaussian()}), source(GAPPED))
    with pytest.raises(ValueError, match="that read a table alike"):
        _ = Pair({"a": Gaussian(), "b": Letters()}).columns
    both = Pair({"a": Captioned(), "b": Captioned()})
    assert both.companions == ("a_caption_length", "b_caption_length")
    rows = {"x": 0, "a_caption": 1, "a_caption_length": 2, "b_caption": 3, "b_caption_length": 4}
    assert both.view("b", rows) == {"x": 0, "caption": 3, "caption_length": 4}
    assert both.capabilities() == {}


class Priored(Composed):
    """Has a density of something that is no row."""

    composes = ("prior",)
    fields = ("x",)

    def __init__(self, prior=None):
        super().__init__()
        self.prior = prior


def test_what_a_part_gives_of_other_rows_is_not_put_back():
    marks = Priored(Gaussian()).capabilities()
    assert {name: mark.gives for name, mark in marks.items()} == {"prior_log_prob": "", "prior_sample": ""}
    shared = Pair({"a": Gaussian(), "b": Full()}).capabilities()
    assert (shared["a_sample"].gives, shared["b_log_prob"].gives) == ("x", "density")
