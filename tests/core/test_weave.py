import numpy as np
import pytest
import torch
from sklearn.base import clone

from weft import Classifier, weave
from weft.core.strategy import Strategy
from weft.engine import verbs
from weft.strategies import CORAL, ERM, EWC, IRM, MAML, MMD, AdversarialTraining, ANDMask


class Noise(Strategy):
    """Acts on the step."""

    def update(self, move, state):
        return move.step, state


class Halve(Strategy):
    def update(self, move, state):
        return {n: 0.5 * s for n, s in move.step.items()}, {"count": state["count"] + 1}

    def init(self, params):
        return {"count": torch.zeros(())}


class Add(Strategy):
    """Wraps the loss by loss -> scale * loss + shift."""

    def __init__(self, scale=1.0, shift=0.0):
        self.scale, self.shift = scale, shift

    def wrap(self, loss, state):
        def changed(params, batch):
            output = loss(params, batch)
            output.losses = self.scale * output.losses + self.shift
            return output

        return changed


def test_two_combiners_are_named():
    with pytest.raises(ValueError, match=r"at most one.*ANDMask\(\) and ANDMask\(threshold=0.5\)"):
        weave(ANDMask(), EWC(), ANDMask(threshold=0.5))


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ((ANDMask(), AdversarialTraining()), ("AdversarialTraining", "ANDMask")),
        ((Noise(), ANDMask()), ("ANDMask", "Noise")),
        ((Noise(), MAML()), ("MAML", "Noise")),
    ],
)
def test_an_illegal_order_names_both(parts, names):
    with pytest.raises(ValueError, match="expected the order loss, gradient, step") as caught:
        weave(*parts)
    assert all(name in str(caught.value) for name in names)


def test_whole_groups_and_single_examples_do_not_mix():
    with pytest.raises(ValueError, match=r"agree on what a group is.*MAML.*ANDMask"):
        weave(MAML(), ANDMask(each="example"))


def test_not_a_strategy():
    with pytest.raises(TypeError, match="expected strategies"):
        weave(EWC, ANDMask())


def test_what_the_whole_sees():
    assert weave(EWC(), ANDMask()).sees == "groups"
    assert weave(EWC(), ANDMask(each="example")).sees == "examples"
    assert weave(EWC(), ERM()).sees == "rows"
    assert weave(MAML(), ANDMask()).sees == "episodes, each"
    assert weave(IRM(), ANDMask()).sees == "whole groups, each"
    assert weave(EWC(), IRM()).sees == "whole groups", "one backward of the mean"
    assert weave(MMD(), CORAL(), EWC()).sees == "all groups"
    assert weave(EWC()).sees == "rows"
    assert isinstance(weave(EWC()), EWC)


def test_nested_weaves_are_flat():
    woven = weave(weave(AdversarialTraining(), EWC()), ANDMask())
    assert repr(woven) == "weave(AdversarialTraining(), EWC(), ANDMask())"


def test_losses_are_wrapped_left_to_right():
    woven = weave(Add(shift=1.0), Add(scale=10.0))
    out = verbs.wrap(woven, lambda p, b: type("O", (), {"losses": torch.ones(1)})(), {"add": {}, "add2": {}})
    assert float(out({}, {}).losses) == 20.0


def test_parameters_of_the_parts():
    woven = weave(EWC(strength=2.0), ANDMask(threshold=0.3))
    assert woven.get_params()["andmask__threshold"] == 0.3
    woven.set_params(andmask__threshold=0.6)
    assert woven.parts[1].threshold == 0.6
    twin = clone(woven, safe=False)
    assert repr(twin) == repr(woven)
    assert twin.parts[0] is not woven.parts[0]
    with pytest.raises(ValueError, match="did you mean 'andmask'"):
        woven.set_params(andmusk__threshold=0.1)


rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
SITE = np.arange(40) % 2


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_a_sweep_through_a_weave():
    sweep = {"strategy__andmask__threshold": [0.0, 1.0], "strategy__ewc__strength": [0.0, 5.0]}
    woven = weave(EWC(), ANDMask())
    many = Classifier(strategy=woven, replicas=sweep, epochs=2, dtype="float64", random_state=0)
    many.fit(X, Y, environment=SITE)
    assert many.training_.runs[0][1].replicas == 2
    single = Classifier(strategy=weave(EWC(strength=5.0), ANDMask()), epochs=2, dtype="float64", random_state=0)
    single.fit(X, Y, environment=SITE)
    np.testing.assert_allclose(many.replica(1).predict_proba(X), single.predict_proba(X))


def test_the_step_is_what_update_makes_of_it():
    full = Classifier(optimizer="sgd", epochs=1, batch_size=None, dtype="float64", random_state=0).fit(X, Y)
    start = Classifier(optimizer="sgd", epochs=0, batch_size=None, dtype="float64", random_state=0).fit(X, Y)
    half = Classifier(strategy=Halve(), optimizer="sgd", epochs=1, batch_size=None, dtype="float64", random_state=0)
    half.fit(X, Y)
    for name, p in start.training_.runs[0][1].params.items():
        step = full.training_.runs[0][1].params[name] - p
        torch.testing.assert_close(half.training_.runs[0][1].params[name] - p, 0.5 * step)
    assert float(half.training_.runs[0][1].strategy[""]["count"]) == 1


def test_a_strategy_that_names_what_it_reads():
    class Reads(Strategy):
        reads = frozenset({"attention"})

    with pytest.raises(ValueError, match="reads 'attention', which Classification does not provide"):
        Classifier(strategy=Reads()).fit(X, Y)
