"""Densities of images: against enumeration, loops over pixels in NumPy, and mutants of each guarantee."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import expit

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.asking import _looped
from weft.engine.build import build
from weft.nets import pixel_cells, pixels
from weft.objectives import PixelCNN, PixelRNN, PixelTransformer
from weft.testing import check_density

rng = np.random.default_rng(0)
SQUARES = (rng.random((200, 1, 2, 2)) < [[0.3, 0.5], [0.8, 0.5]]).astype(float)
SQUARES[:, 0, 1, 0] = np.where(rng.random(200) < 0.8, SQUARES[:, 0, 0, 0], SQUARES[:, 0, 1, 0])
SQUARES[:, 0, 1, 1] = np.where(rng.random(200) < 0.7, SQUARES[:, 0].sum((1, 2)) % 2, SQUARES[:, 0, 1, 1])
FAST = {"steps": 20, "optimizer": Optimizer("adam", lr=0.03), "batch_size": 100}
SMALL = {"layers": 2, "width": 12, "kernel": 3}
ATTENDS = {"layers": 1, "heads": 2, "width": 12}
MODELS = {
    "gated": lambda **s: PixelCNN(**{**SMALL, **s}),
    "masked": lambda **s: PixelCNN(gated=False, **{**SMALL, **s}),
    "gated, dilated": lambda **s: PixelCNN(dilations=(2,), **{**SMALL, **s}),
    "masked, dilated": lambda **s: PixelCNN(gated=False, dilations=(2, 1), **{**SMALL, "layers": 3, **s}),
    "row": lambda **s: PixelRNN(**{**SMALL, "layers": 1, **s}),
    "diagonal": lambda **s: PixelRNN(kind="diagonal", **{**SMALL, "layers": 1, **s}),
    "transformer": lambda **s: PixelTransformer(**{**ATTENDS, **s}),
    "transformer, rotary": lambda **s: PixelTransformer(positions="rotary", **{**ATTENDS, **s}),
}
MASKED = [name for name in MODELS if "transformer" not in name]
LAWS = {
    "bernoulli": {"law": "bernoulli"},
    "categorical": {"law": "categorical", "classes": 3},
    "logistic-mixture": {"law": "logistic-mixture", "classes": 3, "parts": 2},
}
each_model = pytest.mark.parametrize("name", MODELS)


def built(objective, shape=(1, 2, 2), classes=None, scale=2.0, dtype=torch.float64):
    """Fresh weights, larger ones to make dependence stronger."""
    spec = {"x": Field(shape, dtype)}
    if classes:
        spec["y"] = Field((), torch.int64, classes)
    made = build(objective, spec, 0, dtype).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
    return made


def drawn(model, n, seed=0, **options):
    with torch.no_grad(), keyed(key_of(seed), torch.arange(n)):
        return model.sample(n, **options)


def every_image(levels, shape):
    """All images of so many levels."""
    return np.array(list(itertools.product(range(levels), repeat=int(np.prod(shape))))).reshape(-1, *shape)


def total(model, levels, **given):
    rows = torch.as_tensor(every_image(levels, model.shape), dtype=torch.float64)
    given = {name: torch.full((len(rows),), value) for name, value in given.items()}
    with torch.no_grad():
        return float(model.log_prob(rows, **given).exp().sum())


# --- they are densities ---------------------------------------------------------------------------------


@each_model
def test_bits_sum_to_one_samples_follow_and_gaps_are_summed_out(name):
    settings = {**FAST, "steps": 12}
    support, gone = every_image(2, (1, 2, 2)), [(3,), (1, 2, 3)]
    check_density(MODELS[name](), SQUARES, support=support, settings=settings, missing=gone, draws=2000)


@each_model
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", [(3, 1, 2), (2, 2, 1), (1, 2, 3)])
def test_images_of_any_law_and_channels_sum_to_one_given_any_class(name, law, shape):
    levels = 2 if law == "bernoulli" or np.prod(shape) > 5 else 3
    settings = {**LAWS[law], **({} if law == "bernoulli" else {"classes": levels})}
    assert abs(total(built(MODELS[name](**settings), shape), levels) - 1) < 1e-9
    given = built(MODELS[name](conditional=True, **settings), shape, classes=2)
    assert np.abs(np.array([total(given, levels, y=y) for y in range(2)]) - 1).max() < 1e-9


# --- nothing leaks --------------------------------------------------------------------------------------


def reached(model, asked=None):
    """By entry and entry in the order: the largest gradient of the parameters of one to the inputs of the other."""
    torch.manual_seed(0)
    inputs = torch.randn(6, len(model.reads), dtype=torch.float64, requires_grad=True)
    theta = model.conditionals(inputs)
    slopes = []
    for j in model.sequences[0] if asked is None else asked:
        own = theta[:, model.entries.places[j]]
        push = torch.randn(own.shape, dtype=own.dtype)
        slope = torch.autograd.grad((own * push).sum(), inputs, retain_graph=True)[0].abs().amax(0)
        slopes.append(torch.stack([slope[model.spans[k]].amax() for k in model.sequences[0]]))
    return torch.stack(slopes)


@each_model
@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 3, 4)])
def test_a_pixel_sees_what_comes_before_it_and_nothing_else(name, shape):
    for law in ({"law": "bernoulli"}, {"law": "categorical", "classes": 3}):
        slopes = reached(built(MODELS[name](**law), shape))
        assert (slopes.triu() == 0).all()
        assert (slopes.tril(-1) > 0).any()


def test_the_gated_one_sees_all_before_and_the_masked_one_is_blind_beyond_a_slope():
    shape, settings = (1, 5, 7), {"layers": 6, "width": 24, "kernel": 3}
    before = torch.ones(35, 35).tril(-1) > 0
    gated = reached(built(PixelCNN(**settings), shape)) > 0
    assert torch.equal(gated, before)
    blind = before & ~(reached(built(PixelCNN(gated=False, **settings), shape)) > 0)
    # Each step up goes at most one column to the right, and none goes to the right within a row.
    row, column = torch.arange(35) // 7, torch.arange(35) % 7
    beyond = column[None] - column[:, None] > row[:, None] - row[None]
    assert torch.equal(blind, before & beyond)
    assert blind.any()


def test_a_reach_is_all_that_its_layers_and_dilations_say():
    """Gated layers of kernel 3: as many rows as the dilations' sum above the row above, as many columns aside."""
    shape, pixel = (1, 9, 13), 7 * 13 + 6
    for layers, dilations in ((2, (1,)), (3, (1,)), (3, (1, 2))):
        model = built(PixelCNN(layers=layers, width=24, kernel=3, dilations=dilations), shape)
        seen = reached(model, [pixel])[0].reshape(9, 13) > 0
        far = 1 + sum(dilations[i % len(dilations)] for i in range(layers - 1))
        wanted = torch.zeros(9, 13, dtype=torch.bool)
        wanted[7 - 1 - far : 7, 6 - far : 7 + far] = True  # no hole, no blind spot
        wanted[7, 6 - far : 6] = True
        assert torch.equal(seen, wanted)


def test_along_the_diagonals_all_before_is_seen_and_down_the_rows_a_triangle():
    shape, row, column = (1, 5, 7), torch.arange(35) // 7, torch.arange(35) % 7
    before = torch.ones(35, 35).tril(-1) > 0
    settings = {"width": 24, "kernel": 3}
    assert torch.equal(reached(built(PixelRNN(kind="diagonal", layers=1, **settings), shape)) > 0, before)
    up, right = row[:, None] - row[None], column[None] - column[:, None]
    for layers in (1, 2):
        seen = reached(built(PixelRNN(layers=layers, **settings), shape)) > 0
        assert torch.equal(seen, before & (right <= up) & (-right <= up + 1 + layers))


def test_channels_are_seen_in_order():
    """Green sees the red of its pixel and blue both; red sees neither."""
    for name in MODELS:
        slopes = reached(built(MODELS[name](width=32 if "transformer" in name else 30), (3, 2, 2)))
        pixel = slopes[9:, 9:]  # the last pixel
        assert torch.equal(pixel > 0, torch.ones(3, 3).tril(-1) > 0)
        assert (slopes[9:12, 6:9] > 0).all()  # all channels of the pixel left of it


@pytest.mark.parametrize("name", MASKED)
def test_the_mutant_that_sees_itself_is_caught(name, monkeypatch):
    """Mask B for mask A in the first layer."""
    right = pixels.follows
    monkeypatch.setattr(pixels, "follows", lambda after, before, strictly=False: right(after, before))
    model = built(MODELS[name]())
    assert (reached(model).diagonal() > 0).any()
    assert abs(total(model, 2) - 1) > 0.01


class Unshifted(PixelTransformer):
    """A mutant: each step reads the entry that it is asked for."""

    def conditionals(self, inputs, member=0):
        read = self.image(inputs).flatten(1, 3)[:, self.along]
        return self.net(self.steps(read, inputs, True))[:, self.places].flatten(1)


def test_the_mutant_that_reads_what_it_is_asked_for_is_caught():
    model = built(Unshifted(**ATTENDS), scale=20.0)
    assert (reached(model).diagonal() > 0).any()
    assert abs(total(model, 2) - 1) > 0.01


def test_the_mutant_whose_channels_see_each_other_is_caught(monkeypatch):
    monkeypatch.setattr(
        pixels, "follows", lambda after, before, strictly=False: torch.ones(len(after), len(before), dtype=torch.uint8)
    )
    model = built(PixelCNN(**SMALL), (2, 1, 2))
    assert (reached(model).triu() > 0).any()
    assert abs(total(model, 2) - 1) > 0.01


@pytest.mark.parametrize("name", ["gated, dilated", "masked, dilated"])
def test_the_mutant_dilated_without_a_mask_sees_the_future(name, monkeypatch):
    """An ordinary dilated convolution has its taps on both sides."""

    def around(self, x):
        rows, columns = self.mask.shape[2:]
        d = self.dilation
        x = torch.nn.functional.pad(
            x, ((columns - 1) * d // 2, (columns - 1) * d - (columns - 1) * d // 2, (rows - 1) * d, 0)
        )
        return torch.nn.functional.conv2d(x, self.weight, self.bias, dilation=d)

    monkeypatch.setattr(pixels.MaskedConv2d, "forward", around)
    model = built(MODELS[name](), (1, 3, 3), scale=3.0)
    assert (reached(model).triu() > 0).any()
    assert abs(total(model, 2) - 1) > 0.01


def test_the_mutant_whose_mirrored_states_are_not_moved_down_is_caught(monkeypatch):
    def beside(self, above, here, given=None):
        left = self._along(self.across(here), self.state)
        right = self._along(self.mirror(torch.cat([here, above], 1)).flip(-1), self.mirror_state).flip(-1)
        return above, self.mixed(left + right, here)

    monkeypatch.setattr(pixel_cells.DiagonalLSTM, "forward", beside)
    model = built(PixelRNN(kind="diagonal", layers=1, width=12, kernel=3), (1, 2, 3), scale=3.0)
    assert (reached(model).triu() > 0).any()
    assert abs(total(model, 2) - 1) > 0.01


# --- their formulas -------------------------------------------------------------------------------------


def test_gated_is_its_formula_pixel_by_pixel():
    """A loop over pixels, features and taps in NumPy, of two layers and two channels, given a class."""
    layers, width, kernel, (channels, H, W) = 2, 4, 3, (2, 3, 4)
    settings = {"layers": layers, "width": width, "kernel": kernel, "dilations": (2,), "conditional": True}
    model = built(PixelCNN(**settings), (channels, H, W), classes=3)
    P = {name: p.detach().numpy() for name, p in model.net.named_parameters()}
    x = np.random.default_rng(1).integers(0, 2, (channels, H, W)).astype(float)
    y, group = 2, [0, 0, 1, 1]
    here = {(r, c): x[:, r, c] for r in range(H) for c in range(W)}
    above = {(r, c): x[:, r - 1, c] if r else np.zeros(channels) for r in range(H) for c in range(W)}
    groups_in = [0, 1]
    for layer in range(layers):
        K = {key.split(".", 2)[2]: v for key, v in P.items() if key.startswith(f"layers.{layer}.")}
        d = (1, 2)[layer]
        told = K["told.weight"][:, y]
        new_above, new_here = {}, {}
        for r in range(H):
            for c in range(W):
                down = K["down.bias"].copy()
                for i, up in enumerate((-1, 0)):
                    for j, side in enumerate((-1, 0, 1)):
                        at = (r + up * d, c + side * d)
                        if at in above:
                            down += K["down.weight"][:, :, i, j] @ above[at]
                sums = K["across.bias"] + K["link.weight"][:, :, 0, 0] @ down + told[2 * width :]
                if (r, c - d) in here:
                    sums += K["across.weight"][:, :, 0, 0] @ here[r, c - d]
                for o in range(2 * width):  # at the pixel, by channel
                    for i, channel in enumerate(groups_in):
                        own = group[o % width]
                        if channel < own or (layer and channel == own):
                            sums[o] += K["across.weight"][o, i, 0, 1] * here[r, c][i]
                active = np.tanh(sums[:width]) * expit(sums[width:])
                out = K["out.bias"].copy()
                for o in range(width):
                    out[o] += sum(K["out.weight"][o, i, 0, 0] * active[i] for i in range(width) if group[i] <= group[o])
                new_here[r, c] = out + here[r, c] if layer else out
                over = down + told[: 2 * width]
                new_above[r, c] = np.tanh(over[:width]) * expit(over[width:])
        above, here, groups_in = new_above, new_here, group
    found = model.log_prob(torch.as_tensor(x)[None], None, torch.tensor([y]))
    np.testing.assert_allclose(found.item(), end_of(P, x, here, width, group), rtol=1e-12)


def end_of(P, x, here, width, group):
    """log p of bits by the two 1 x 1 convolutions at the end."""
    log = 0.0
    for (r, c), h in here.items():
        hidden, theta = P["hidden.bias"].copy(), P["answer.bias"].copy()
        for o in range(width):
            seen = [i for i in range(width) if group[i] <= group[o]]
            hidden[o] += sum(P["hidden.weight"][o, i, 0, 0] * max(h[i], 0) for i in seen)
        for k in range(len(x)):
            seen = [i for i in range(width) if group[i] <= k]
            theta[k] += sum(P["answer.weight"][k, i, 0, 0] * max(hidden[i], 0) for i in seen)
            log += np.log(expit(theta[k] if x[k, r, c] else -theta[k]))
    return log


@pytest.mark.parametrize("kind", ["row", "diagonal"])
def test_recurrent_layers_are_their_recursions_pixel_by_pixel(kind):
    width, (channels, H, W), y, group = 4, (2, 3, 4), 1, [0, 0, 1, 1]
    model = built(PixelRNN(kind=kind, layers=1, width=width, kernel=3, conditional=True), (channels, H, W), classes=2)
    P = {name: p.detach().numpy() for name, p in model.net.named_parameters()}
    x = np.random.default_rng(1).integers(0, 2, (channels, H, W)).astype(float)
    first, cells = ({k.split(".", 2)[2]: v for k, v in P.items() if k.startswith(f"layers.{i}.")} for i in (0, 1))
    places = [(r, c) for r in range(H) for c in range(W)]

    def mixed(K, active):
        out = K["out.bias"].copy()
        for o in range(width):
            out[o] += sum(K["out.weight"][o, i, 0, 0] * active[i] for i in range(width) if group[i] <= group[o])
        return out

    def inside(weight, values, itself):  # at the pixel, by channel
        owners = group if len(values) == width else [0, 1]
        sums = np.zeros(len(weight))
        for o in range(len(weight)):
            for i, channel in enumerate(owners):
                if channel < group[o % width] or (itself and channel == group[o % width]):
                    sums[o] += weight[o, i] * values[i]
        return sums

    here = {}
    for r, c in places:
        sums = first["across.bias"] + first["told.weight"][:, y]
        for i, j, up, side in ((0, 0, -1, -1), (0, 1, -1, 0), (0, 2, -1, 1), (1, 0, 0, -1)):
            if (r + up, c + side) in places:
                sums = sums + first["across.weight"][:, :, i, j] @ x[:, r + up, c + side]
        sums += inside(first["across.weight"][:, :, 1, 1], x[:, r, c], False)
        here[r, c] = mixed(first, np.maximum(sums, 0))

    def step(sums, cell):
        o, f, i, g = np.split(sums, 4)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        return expit(o) * np.tanh(cell), cell

    zero, told = np.zeros(width), cells["told.weight"][:, y]
    hidden, cell, other, other_cell = {}, {}, {}, {}
    if kind == "row":
        for r, c in places:
            sums = cells["across.bias"] + told
            if c:
                sums = sums + cells["across.weight"][:, :, 0, 0] @ here[r, c - 1]
            sums = sums + inside(cells["across.weight"][:, :, 0, 1], here[r, c], True)
            for j, side in enumerate((-1, 0, 1)):
                sums = sums + cells["state.weight"][:, :, 0, j] @ hidden.get((r - 1, c + side), zero)
            hidden[r, c], cell[r, c] = step(sums, cell.get((r - 1, c), zero))
        active = hidden
    else:
        S, M = cells["state.weight"][..., 0], cells["mirror_state.weight"][..., 0]
        for r, c in places:
            sums = (
                cells["across.bias"] + told[: 4 * width] + inside(cells["across.weight"][:, :, 0, 0], here[r, c], True)
            )
            sums = sums + S[:, :, 0] @ hidden.get((r - 1, c), zero) + S[:, :, 1] @ hidden.get((r, c - 1), zero)
            hidden[r, c], cell[r, c] = step(sums, cell.get((r, c - 1), zero))
        for r in range(H):
            for c in reversed(range(W)):
                down = np.concatenate([here[r - 1, c], x[:, r - 1, c]]) if r else np.zeros(width + channels)
                sums = cells["mirror.bias"] + told[4 * width :] + cells["mirror.weight"][:, :, 0, 0] @ down
                sums = sums + M[:, :, 0] @ other.get((r - 1, c), zero) + M[:, :, 1] @ other.get((r, c + 1), zero)
                other[r, c], other_cell[r, c] = step(sums, other_cell.get((r, c + 1), zero))
        active = {(r, c): hidden[r, c] + other[r, c] for r, c in places}
    here = {at: here[at] + mixed(cells, active[at]) for at in places}
    found = model.log_prob(torch.as_tensor(x)[None], None, torch.tensor([y]))
    np.testing.assert_allclose(found.item(), end_of(P, x, here, width, group), rtol=1e-12)


# --- draws ----------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 4, 3), (2, 1, 4), (1, 4, 1)])
def test_cached_draws_are_the_naive_ones(name, shape):
    for law in LAWS.values():
        model = built(MODELS[name](conditional=True, **law), shape, classes=2)
        options = {"y": torch.arange(20) % 2, "prefix": (1, 0)}
        one, other = drawn(model, 20, **options), drawn(model, 20, cached=False, **options)
        assert torch.equal(one, other)
        assert one.shape == (20, *shape)
        inputs = model.read(model.flat(one), options["y"])
        kept, whole = model.begin(inputs), model.conditionals(inputs)
        for known, j in enumerate(model.sequences[0]):  # the laws too, not the draws alone
            with torch.no_grad():
                theta = model.advance(known, inputs, kept)
            torch.testing.assert_close(theta, whole[:, model.entries.places[j]], rtol=1e-10, atol=1e-10)


@each_model
def test_cached_draws_in_single_precision_are_nearly_always_the_naive_ones(name):
    model = built(MODELS[name](), (1, 5, 5), dtype=torch.float32)
    same = (drawn(model, 2000) == drawn(model, 2000, cached=False)).flatten(1).all(1)
    assert same.float().mean() >= 0.999


@each_model
def test_the_mutant_whose_cache_is_a_step_late_is_caught(name):
    model = built(MODELS[name](width=24), (2, 3, 3), scale=2.5 if name in MASKED else 20.0)
    right, seen = model.advance, []

    def late(known, inputs, kept, member=0):
        seen.append(inputs.clone())
        return right(known, seen[max(known - 1, 0)], kept, member)

    model.advance = late
    assert not torch.equal(drawn(model, 200), drawn(model, 200, cached=False))


@each_model
def test_replicas_draw_at_once_what_each_draws_alone(name):
    settings = {**FAST, "steps": 3, "replicas": 2, "random_state": 0}
    learner = Learner(MODELS[name](), **settings).fit(SQUARES)
    both = learner.sample(20, random_state=3)
    alone = [learner.replica(k).sample(20, random_state=3) for k in range(2)]
    np.testing.assert_array_equal(both, np.concatenate([alone[0][:10], alone[1][10:]]))
    assert not _looped.get(learner.objective_, set()) & {"sample", "log_prob", "impute"}
    assert np.isfinite(learner.log_prob(SQUARES)).all()


def test_a_prefix_is_in_the_order_of_the_pixels_and_of_their_channels():
    model = built(PixelCNN(**SMALL, law="categorical", classes=4), (3, 2, 2))
    images = drawn(model, 10, prefix=(3, 1, 2, 0))
    assert (images[:, :, 0, 0] == torch.tensor([3.0, 1.0, 2.0])).all()
    assert (images[:, 0, 0, 1] == 0).all()
    with pytest.raises(
        ValueError, match="expected gaps in what comes last in the order of PixelCNN, got one in row 0, col"
    ):
        drawn(model, 3, prefix=(3, None, 1))
    with pytest.raises(ValueError, match=r"expected classes 0\.\.3 in row 0, column 0, channel 1, .* got 4"):
        drawn(model, 3, prefix=(3, 4))
    with pytest.raises(ValueError, match="expected a prefix of at most 12 numbers"):
        drawn(model, 3, prefix=(0,) * 13)


@each_model
def test_the_lower_part_of_an_image_is_painted_and_what_was_there_is_kept(name):
    X = np.repeat(rng.integers(0, 2, (300, 1, 1, 4)), 4, 2).astype(float)  # columns
    learner = Learner(MODELS[name](width=8), **{**FAST, "steps": 150}, random_state=0).fit(X)
    holes = X[:50].copy()
    holes[:, :, 2:] = np.nan
    filled = learner.impute(holes, random_state=0)
    assert filled.shape == X[:50].shape
    assert (filled[:, :, :2] == X[:50, :, :2]).all()
    assert (filled == X[:50]).mean() > 0.97
    holes[7, 0, 0, 0] = np.nan
    message = "got one in row 0, column 0, which row 0, column 1 comes after, in 1 of 50 rows, first in row 7; what is"
    for ask in (learner.impute, learner.log_prob):
        with pytest.raises(ValueError, match=message):
            ask(holes)
    X[:50] = holes
    with pytest.raises(ValueError, match=message.replace("of 50", "of 300")):
        Learner(MODELS[name](), **FAST).fit(X)
    X[7, 0, 0, 0] = 1.0
    assert np.isfinite(Learner(MODELS[name](), **{**FAST, "steps": 2}).fit(X).log_prob(X)).all()


# --- a class for each image -----------------------------------------------------------------------------


def test_images_given_their_class():
    label = rng.integers(0, 2, 200)
    X = np.where(label[:, None, None, None] == 1, 1 - SQUARES, SQUARES)
    settings = {**FAST, "steps": 80, "random_state": 0, "dtype": "float64"}
    for name in ("gated", "masked"):
        learner = Learner(MODELS[name](conditional=True), **settings).fit(X, np.array(["a", "b"])[label])
        every = every_image(2, (1, 2, 2))
        share = {}
        for y in "ab":
            share[y] = np.exp(learner.log_prob(every, y=np.full(16, y)))
            rows = learner.sample(3000, y=np.full(3000, y), random_state=0)
            seen = np.array([(rows == row).all((1, 2, 3)).mean() for row in every])
            assert abs(share[y].sum() - 1) < 1e-9
            assert np.abs(seen - share[y]).max() < 0.04
        first = [share[y][8:].sum() for y in "ab"]
        assert first[1] - first[0] > 0.15  # the first pixel depends on the class as well
        with pytest.raises(ValueError, match=r"expected a class y for each row .* got none; give y=..."):
            learner.log_prob(every)


# --- what is refused ------------------------------------------------------------------------------------


def test_images_that_are_none_are_refused():
    def fit(X, **settings):
        return Learner(PixelCNN(**SMALL, **settings), steps=1).fit(X)

    with pytest.raises(ValueError, match=r"got rows of shape \(2, 2\); give them an axis of channels: X\[:, None\]"):
        fit(SQUARES[:, 0])
    with pytest.raises(
        ValueError, match=r"expected images of shape \(channels, height, width\) for PixelCNN, got rows"
    ):
        fit(SQUARES.reshape(-1, 4))
    with pytest.raises(ValueError, match=r"expected 0 or 1 in row 0, column 0, .*'bernoulli', got 0\.5"):
        fit(SQUARES / 2 + 0.5)
    levels = {"law": "logistic-mixture", "classes": 256, "parts": 2}
    for wrong, said in ((256.0, "256"), (-1.0, "-1"), (0.5, "0.5")):
        X = SQUARES.copy()
        X[3, 0, 1, 0] = wrong
        with pytest.raises(
            ValueError, match=rf"expected whole numbers 0\.\.255 in row 1, column 0, .* got {said}; 1 of 200"
        ):
            fit(X, **levels)
        with pytest.raises(ValueError, match=r"expected classes 0\.\.255 in row 1, column 0"):
            fit(X, law="categorical", classes=256)
    learner = fit((255 * SQUARES).astype(np.uint8), **levels)
    with pytest.raises(ValueError, match=r"expected whole numbers 0\.\.255 in row 0, column 1"):
        learner.log_prob(np.full((1, 1, 2, 2), [[3, 300], [0, 0]]))
    with pytest.raises(ValueError, match="expected the number of levels for the law 'logistic-mixture', got none"):
        fit(SQUARES, law="logistic-mixture")


def test_channels_that_come_last_are_refused():
    with pytest.raises(ValueError, match=r"got \(8, 8, 3\), which seem to have their channels last; X\.transpose"):
        Learner(PixelCNN(**SMALL), steps=1).fit(np.zeros((5, 8, 8, 3)))


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match="expected at most 1 dilations for 2 layers of PixelCNN, the first having none"
    ):
        PixelCNN(layers=2, dilations=(1, 2)).validate()
    PixelCNN(layers=1).validate()
    for model in (PixelCNN, PixelRNN):
        with pytest.raises(
            ValueError, match="expected classes for the laws 'categorical' and 'logistic-mixture' alone"
        ):
            model(classes=4).validate()
    with pytest.raises(ValueError, match="expected an odd kernel for PixelRNN"):
        PixelRNN(kernel=4).validate()
    with pytest.raises(ValueError, match="expected PixelRNN's kind to be one of 'row', 'diagonal'"):
        PixelRNN(kind="rows").validate()
    with pytest.raises(
        ValueError, match="expected an odd kernel for PixelCNN, with the pixel in its middle, got 4; try 5"
    ):
        PixelCNN(kernel=4).validate()
    with pytest.raises(
        ValueError, match="expected a width of at least 3 for PixelCNN, a feature for each channel, got 2"
    ):
        built(PixelCNN(layers=1, width=2, kernel=3), (3, 2, 2))
    with pytest.raises(ValueError, match="expected PixelCNN's law to be one of 'bernoulli', 'categorical'"):
        PixelCNN(law="normal").validate()
    for wrong in ((), (0,), 3):
        with pytest.raises((ValueError, TypeError), match="expected PixelCNN's dilations to be steps from tap to tap"):
            PixelCNN(dilations=wrong).validate()


def test_a_transformer_whose_heads_do_not_share_the_width_is_refused():
    with pytest.raises(ValueError, match="expected a width that 4 heads share equally, got 10"):
        Learner(PixelTransformer(heads=4, width=10), steps=1, random_state=0).fit(SQUARES)


def test_the_mutant_whose_answers_are_in_another_order_is_caught():
    """Parameters of entries put back by the order itself, and not by its inverse."""
    right = built(PixelTransformer(**ATTENDS), (3, 2, 2), scale=20.0)
    assert (reached(right).triu() == 0).all()
    right.places.copy_(right.along)
    assert (reached(right).triu() > 0).any()
