"""Bits of intensities: keyed, drawn anew at each step in training and once elsewhere."""

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.core.source import Field, Source
from weft.core.state import State
from weft.data import binarize, binarized
from weft.objectives import FVBN, MADE
from weft.sources import Arrays, Mapped
from weft.testing import check_source

GREY = np.random.default_rng(0).random((300, 6)).astype(np.float32)
FAST = {"steps": 6, "batch_size": 50, "optimizer": Optimizer("adam", lr=0.05)}


def clock(seed=0, step=0):
    return State(objective=None, params={}, buffers={}, seeds=torch.tensor(seed), step=step)


def batch(step=0, seed=0, rows=GREY):
    return next(Mapped(Arrays(torch.as_tensor(rows), batch_size=None), binarize).batches(clock(seed, step)))["x"]


def test_the_contract_of_sources_holds():
    check_source(Mapped(Arrays(torch.as_tensor(GREY), batch_size=12), binarize))


def test_dynamic_bits_are_drawn_anew_at_each_step_with_the_intensities_as_probabilities():
    drawn = torch.stack(
        [batch(step, rows=np.tile([[0.0, 0.3, 1.0]], (500, 1)).astype(np.float32)) for step in range(8)]
    )
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert (drawn[..., 0] == 0).all()
    assert (drawn[..., 2] == 1).all()
    assert abs(float(drawn[..., 1].mean()) - 0.3) < 4 * (0.21 / 4000) ** 0.5
    assert not torch.equal(batch(0), batch(1))
    assert not torch.equal(batch(0), batch(0, seed=1))
    assert torch.equal(batch(1), batch(1))


def test_a_fixed_draw_depends_on_seed_and_row_alone():
    one = binarized(GREY, seed=3)
    assert one.dtype == np.float32
    assert one.shape == GREY.shape
    np.testing.assert_array_equal(one, binarized(GREY, seed=3))
    np.testing.assert_array_equal(one[:20], binarized(GREY[:20], seed=3))
    assert (one != binarized(GREY, seed=4)).any()
    assert abs(one.mean() - GREY.mean()) < 0.05
    images = binarized(GREY.reshape(300, 1, 2, 3), seed=3)
    np.testing.assert_array_equal(images.reshape(300, 6), one)


def test_replica_k_is_the_single_run_of_seed_k():
    both = Learner(FVBN(law="bernoulli"), augment=binarize, replicas=2, random_state=5, **FAST).fit(GREY)
    asked = binarized(GREY[:10], seed=0)
    for k in range(2):
        alone = Learner(FVBN(law="bernoulli"), augment=binarize, random_state=5 + k, **FAST).fit(GREY)
        np.testing.assert_allclose(both.replica(k).log_prob(asked), alone.log_prob(asked), rtol=1e-4, atol=1e-5)
    assert not np.allclose(both.replica(0).log_prob(asked), both.replica(1).log_prob(asked), atol=1e-3)


def test_rows_held_out_are_bits_that_a_seed_draws_once():
    """At no rate nothing is learned: a validation on the same bits gives the same figure at each record."""
    still = {**FAST, "optimizer": Optimizer("sgd", lr=0.0), "every": 1, "validation": 0.3}

    def figures(seed):
        return Learner(MADE((8,), law="bernoulli"), augment=binarize, random_state=seed, **still).fit(GREY)

    first = figures(0)
    assert len(set(first.history_["valid_loss"].ravel().tolist())) == 1
    assert len(set(first.history_["loss"].ravel().tolist())) > 1, "training draws anew"
    np.testing.assert_array_equal(first.history_["valid_loss"], figures(0).history_["valid_loss"])
    assert first.history_["valid_loss"][0] != figures(1).history_["valid_loss"][0]


def test_without_it_grey_rows_are_refused_and_answers_want_bits():
    with pytest.raises(ValueError, match="expected 0 or 1 in column 0"):
        Learner(FVBN(law="bernoulli"), random_state=0, **FAST).fit(GREY)
    learner = Learner(FVBN(law="bernoulli"), augment=binarize, random_state=0, **FAST).fit(GREY)
    with pytest.raises(ValueError, match="expected 0 or 1 in column 0"):
        learner.log_prob(GREY)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, 255.0])
def test_what_is_no_intensity_is_refused(wrong):
    odd = GREY.copy()
    odd[7, 2] = wrong
    message = (
        rf"expected intensities in \[0, 1\] to binarize, got {wrong:g}, in 1 of 1800 numbers; bytes are divided by"
    )
    with pytest.raises(ValueError, match=message):
        binarized(odd, seed=0)
    with pytest.raises(ValueError, match=message):
        Learner(FVBN(law="bernoulli"), augment=binarize, random_state=0, **FAST).fit(odd)
    with pytest.raises(ValueError, match="got whole numbers"):
        binarized(np.full((2, 2), 255, np.uint8), seed=0)
    with pytest.raises(ValueError, match="a whole number as seed"):
        binarized(GREY, seed=None)
    with pytest.raises(ValueError, match=r"got nan"):
        binarized(np.where(GREY > 0.99, np.nan, GREY), seed=0)


def test_of_a_source_that_holds_no_rows_every_batch_is_looked_at():
    class Two(Source):
        spec = {"x": Field((2,), torch.float32)}

        def batches(self, state):
            for value in (0.5, 2.0):
                yield {"x": torch.full((4, 2), value)}

    stream = Two()
    batches = Mapped(stream, binarize).batches(clock())
    next(batches)
    with pytest.raises(ValueError, match="expected intensities"):
        next(batches)
