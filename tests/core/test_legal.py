"""Every hyperparameter of the catalogue and of the Learner says what it may be; what it may not be is refused."""

import inspect
import re
from fnmatch import fnmatch
from types import MappingProxyType

import numpy as np
import pytest
import torch
from tests.contract.cases import parquet_file, shard

from weft import Classifier, Learner, Optimizer, Regressor, weave
from weft.attacks import PGD
from weft.core.catalogue import entries
from weft.core.configured import Configured
from weft.core.legal import Choice, Flag, Number, Several, Such, Whole, legal_of
from weft.core.source import Field
from weft.data import CartPole, sinusoids
from weft.engine.build import build
from weft.learner.settings import replica_settings
from weft.objectives import DANN, GAN, Classification, Regression
from weft.sources import Arrays, Episodes
from weft.sources import Replay as Memory
from weft.strategies import EWC, AdversarialTraining, ANDMask, GenerativeReplay, Laplace
from weft.testing import check_objective

# What no hyperparameter takes, unless it is named below as one that does.
VALUES = {
    "a numeral as text": "1",
    "bytes": b"ab",
    "a bool": True,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "-1": -1,
    "0": 0,
    "2**63": 2**63,
    "a list": [1, 2],
    "None": None,
    "an object": object(),
}
NEEDED = {
    "Arrays": {"x": torch.zeros(2, 1), "environment": [0, 1]},
    "Episodes": {"draw": sinusoids},
    "Mapped": {"source": Arrays(torch.zeros(2, 1)), "function": torch.neg},
    "Parquet": {"paths": parquet_file(), "fields": {"x": ["x0", "x1"], "y": "label"}},
    "Shards": {"paths": shard(), "fields": {"x": "npy", "y": "cls"}},
    "Rollouts": {"world": CartPole()},
    "Segments": {"world": CartPole()},
    Memory: {"world": CartPole()},
    "Demonstrations": {"world": CartPole(), "expert": lambda seen: (seen[:, 2] > 0).long()},
    "DAgger": {"world": CartPole(), "expert": lambda seen: (seen[:, 2] > 0).long()},
    "Running": {"shape": (2,)},
    "RunningReturn": {"envs": 2},
    "SlowCopy": {"net": torch.nn.Linear(1, 1)},
    "Stream": {"loader": [torch.zeros(2, 1)]},
    "Unpaired": {"a": Arrays(torch.zeros(2, 1)), "b": Arrays(torch.zeros(2, 1))},
    "Windows": {"text": "ab" * 200},
    "Recurrent": {"inputs": 2, "outputs": 1},
    "DilatedConvolutions": {"inputs": 2, "outputs": 1},
    "Transformer": {"inputs": 2, "outputs": 1, "positions": "rotary"},
    "Autoencoder": {"hidden": ()},
    "ConvEncoder": {"inputs": (1, 8, 8), "outputs": 2},
    "ConvDecoder": {"inputs": 2, "outputs": (1, 8, 8)},
    "Linear": {"inputs": 2, "outputs": 1},
    "MLP": {"inputs": 2, "outputs": 1},
    "Learner": {"objective": Regression(hidden=(2,))},
    "SGD": {"momentum": 0.9},
}
OPTIMIZERS = [
    cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
]
# Who takes such a value, beside those whose default is None, True or False, which take these.
TAKES = {
    "a numeral as text": ["Optimizer.freeze", "Learner.folder"],
    "a bool": ["*.foreach", "*.fused"],
    "None": ["Learner.batch_size", "Demonstrations.batch_size", "PGD.bounds", "Running*.clip"],
    "-1": ["Adafactor.beta2_decay", "SAC.entropy", "EpsilonGreedy.initial", "TD.initial", "TDControl.initial"],
    "0": [
        *("*.strength", "*.threshold", "*.anneal", "*.before", "*.share", "TemporalANDMask.decay", "*.shrink"),
        *("Fishr.ema", "GroupDRO.rate", "MAML.inner_lr", "MAML.inner_steps", "PGD.eps", "*.dropout"),
        *("*.floor", "*.prior", "*.tolerance", "*.smoothing"),
        "RBM.enumerate",
        *("Replay.explore", "Replay.priority", "Replay.correction"),
        *("DAgger.beta", "Demonstrations.stray", "Demonstrations.random_state", "RunningReturn.discount"),
        *("NaturalGradient.iterations", "TrustRegion.iterations", "TrustRegion.radius"),
        *("*.trace", "*.value_weight", "*.entropy_weight", "PPO.beta"),
        *("LeastSquares.ridge", "*.discount", "*.holdout", "EMA.decay", "SAM.radius"),
        *("SGLD.temperature", "SGLD.draws", "SGLD.start", "LBFGS.history", "LBFGS.trials"),
        *("DQN.discount", "DQN.temperature", "SAC.discount", "SAC.temperature", "SAC.entropy"),
        *("TD3.discount", "TD3.jitter", "TD3.most", "TD3.noise", "Dyna.imagined"),
        *("EpsilonGreedy.epsilon", "EpsilonGreedy.initial", "UCB.confidence", "TD.initial", "*Bandit.width"),
        *("TDControl.epsilon", "TDControl.initial"),
        *("Histogram.tails", "LDA.tolerance"),
        *("*VAE.beta", "*VAE.warm_up", "*VAE.free_bits", "*VAE.target_rate"),
        *("Autoencoder.noise", "Autoencoder.masking", "Autoencoder.l1", "Autoencoder.kl", "Autoencoder.contraction"),
        *("DiscreteVAE.cooling", "VQVAE.commitment", "VQVAE.decay", "VQVAE.revive"),
        *("Learner.epochs", "Learner.steps", "Learner.random_state"),
        *("*.lr", "*.weight_decay", "SGD.momentum", "RMSprop.momentum", "Muon.momentum", "*.dampening", "*.rho"),
        *("A*.eps", "NAdam.eps", "RAdam.eps", "Muon.eps", "RMSprop.eps", "*.lr_decay", "*.momentum_decay"),
        *("*.alpha", "*.initial_accumulator_value", "ASGD.lambd", "ASGD.t0", "Adafactor.beta2_decay"),
    ],
    "a list": [
        *(
            "*.hidden",
            "*.order",
            "Conv*.widths",
            "ConvEncoder.outputs",
            "ConvDecoder.inputs",
            "*.dilations",
            "*.class_weight",
            "MMD.gammas",
            "HierarchicalVAE.latent",
            "Rprop.step_sizes",
            "Adafactor.eps",
            "PGD.bounds",
            "VQVAE.latent",
            "Running.shape",
            "PolicyEvaluation.policy",
            "TD.policy",
            "TD.target",
            "TrueOnlineTD.policy",
        ),
        *("Arrays.x", "Arrays.y", "Arrays.weight", "Arrays.environment", "Arrays.strata"),
    ],
}
NOT = [
    ("ICA.prior", "0"),
    ("FactorAnalysis.floor", "0"),
    ("VAE.prior", "0"),
    ("HierarchicalVAE.prior", "0"),
    ("SemiSupervisedVAE.prior", "0"),
    ("ICA.tolerance", "0"),
    ("ValueIteration.tolerance", "0"),
    ("DiscreteVAE.prior", "0"),
    ("VQVAE.prior", "0"),
    ("RBM.hidden", "a list"),
    ("NADE.hidden", "a list"),
    ("NeuralBelief.hidden", "a list"),
    ("Learner.objective", "None"),
    ("Arrays.x", "None"),
    ("Adafactor.eps", "0"),
    ("SparseAdam.lr", "0"),
]


def owners():
    """Classes with hyperparameters, each with the names of these."""
    for entry in entries():
        named = inspect.signature(entry.cls).parameters.values()
        yield entry.cls, [p.name for p in named if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for cls in (Learner, Classifier, Regressor):
        yield cls, cls._get_param_names()
    yield Optimizer, ["algorithm", "freeze", "groups"]
    for cls in OPTIMIZERS:
        if cls is not torch.optim.LBFGS:  # which is refused as a whole
            yield cls, [name for name in inspect.signature(cls).parameters if name != "params"]


SETTINGS = [(cls, name) for cls, names in owners() for name in names]


def start(cls, name, value):
    """Work begins with this setting: nothing is trained."""
    given = {**NEEDED.get(cls, NEEDED.get(cls.__name__, {})), name: value}
    if cls in OPTIMIZERS:
        made = Optimizer(cls, **given)
        made.validate()
        made.make({"weight": torch.zeros(2, 2, requires_grad=True)})
        return
    made = cls(**given)  # sources and nets begin at once
    if isinstance(made, Learner):
        made.settings()
    elif isinstance(made, Configured):
        made.validate()


def refusal(cls, name, value):
    """What is said of a setting, or None where it is accepted."""
    try:
        return start(cls, name, value)
    except (ValueError, TypeError, FileNotFoundError) as error:
        return str(error)


def taken(cls, name, what):
    """Whether it says that it takes this value: by hand, or by its default."""
    home = Learner if issubclass(cls, Learner) and name in Learner._get_param_names() else cls
    default, called = inspect.signature(cls).parameters[name].default, f"{home.__name__}.{name}"
    if (called, what) in NOT:
        return False
    if any(fnmatch(called, pattern) for pattern in TAKES.get(what, ())):
        return True
    return (what == "None" and default is None) or (what == "a bool" and isinstance(default, bool))


def shown(setting):
    return f"{setting[0].__name__}.{setting[1]}"


@pytest.mark.parametrize("setting", SETTINGS, ids=shown)
def test_it_is_declared(setting):
    cls, name = setting
    assert name in legal_of(Optimizer if cls in OPTIMIZERS else cls), "say what it may be, in `legal`"


@pytest.mark.parametrize("setting", SETTINGS, ids=shown)
def test_what_is_not_declared_legal_is_refused(setting):
    cls, name = setting
    for what, value in VALUES.items():
        if taken(cls, name, what):
            start(cls, name, value)
            continue
        said = refusal(cls, name, value)
        assert re.search("expected.*got", said or "", re.DOTALL), f"{what}: {said or 'accepted'}"


@pytest.mark.parametrize("entry", [*entries("objectives"), *entries("strategies")], ids=lambda entry: entry.name)
def test_a_search_looks_where_it_is_legal(entry):
    for name, limits in entry.cls().space.items():
        for value in (limits.low, limits.high):
            start(entry.cls, name, value)


def test_numbers_of_numpy_and_pytorch_are_numbers():
    ANDMask(threshold=np.float32(0.5), rescale=np.bool_(True)).validate()
    ANDMask(threshold=torch.tensor(0.5)).validate()
    PGD(steps=np.int64(3), eps=np.int32(1)).validate()
    GAN(hidden=[np.int64(3), 4], latent=np.uint8(2)).validate()
    for bad in (torch.tensor([0.5]), torch.tensor(True), torch.tensor(2.0), np.array(0.5), 0.5j, float("nan")):
        with pytest.raises((ValueError, TypeError), match=r"threshold to be a number in \[0, 1\], got"):
            ANDMask(threshold=bad).validate()
    with pytest.raises(ValueError, match=r"PGD's steps to be an integer >= 1, got tensor\(3\)"):
        PGD(steps=torch.tensor(3)).validate()


WORDS = {
    "text": (lambda: ANDMask(threshold="0.5"), r"ANDMask's threshold .*, got '0.5' \(str\); write 0.5, without quotes"),
    "a choice": (lambda: ANDMask(each="exampel"), "one of 'environment', 'example', got 'exampel'; did you mean 'exam"),
    "a flag": (lambda: EWC(normalize="false"), r"EWC's normalize to be True or False, got 'false' .*default is True"),
    "one for a flag": (lambda: EWC(normalize=1), r"True or False, got 1 \(int\)"),
    "bytes": (
        lambda: GAN(hidden=b"ab"),
        r"GAN's hidden to be widths of layers such as \(128, 128\), got b'ab' \(bytes",
    ),
    "no width": (lambda: GAN(hidden=(2, 0)), r"widths .*, got \(2, 0\)"),
    "a width beyond memory": (lambda: GAN(hidden=(2**63,)), "widths .*, got .9223372036854775808"),
    "too large": (lambda: PGD(steps=2**63), "integer >= 1, got 9223372036854775808; at most 2,147,483,648"),
    "too large for float32": (lambda: EWC(strength=1e300), r"a number >= 0, got 1e\+300; at most 3.4028"),
    "a class": (lambda: AdversarialTraining(PGD), r"an attack such as .* got the class PGD; make one: PGD\(\)"),
    "an attack within": (lambda: AdversarialTraining(PGD(eps=-1)), "PGD's eps to be a number >= 0, got -1"),
    "an objective within": (lambda: DANN(Regression(noise=0)), "Regression's noise to be a number > 0, got 0"),
    "a part of a weave": (lambda: weave(EWC(strength=-1), ANDMask()), "EWC's strength to be a number >= 0, got -1"),
    "a net's name": (lambda: Regression("liner"), "Regression's net .* got 'liner'; did you mean 'linear'"),
    "a net's setting": (lambda: Regression("mlp(dropout=2)"), "MLP's dropout to be a number in .*, got 2"),
    "a net's unknown setting": (lambda: Regression("mlp(dropuot=0.5)"), "got 'dropuot'; did you mean 'dropout'"),
    "what is inherited": (lambda: Laplace(memory="1"), "Laplace's memory .* got '1'"),
    "two that do not agree": (lambda: EWC(decay=0.5), "expected decay=1 with penalties='per_task', got 0.5; use 'onl"),
    "a generator's own": (lambda: GenerativeReplay(generator=Learner(GAN(latent=0))), "GAN's latent .* got 0"),
    "momentum": (lambda: Optimizer("sgd", momentum=5), r"Optimizer's momentum to be a number in \[0, 1\), got 5"),
    "one beta": (lambda: Optimizer("adam", betas=(0.9,)), r"betas to be two numbers in \[0, 1\).*, got \(0.9,\)"),
    "a group": (lambda: Optimizer(groups={"*": {"lr": "1"}}), r"the group '\*''s lr to be a number >= 0, got '1'"),
}


@pytest.mark.parametrize("case", WORDS)
def test_it_is_said_what_was_expected_what_came_and_how_to_mend_it(case):
    make, words = WORDS[case]
    with pytest.raises((ValueError, TypeError), match=words):
        make().validate()


def test_a_wrong_type_is_a_type_error_and_a_wrong_value_a_value_error():
    for bad, error in (("0.5", TypeError), (True, TypeError), (None, TypeError), (2, ValueError), (-0.1, ValueError)):
        with pytest.raises(error):
            ANDMask(threshold=bad).validate()
    with pytest.raises(ValueError, match=r"an integer >= 1, got 1\.5"):
        PGD(steps=1.5).validate()


def test_what_a_users_own_optimizer_takes_is_its_own_affair():
    class Triple(torch.optim.SGD):
        def __init__(self, params, lr=0.1, betas=(0.9, 0.9, 0.9)):
            super().__init__(params, lr=lr)

    Optimizer(Triple, betas=(0.98, 0.92, 0.99)).validate()
    with pytest.raises(TypeError, match=r"Optimizer's lr to be a number >= 0, got '0.1'"):
        Optimizer(Triple, lr="0.1").validate()
    with pytest.raises(ValueError, match=r"expected settings that .* takes, got .*Nesterov momentum"):
        Optimizer("sgd", nesterov=True).make({"weight": torch.zeros(1, requires_grad=True)})


def test_declarations_are_inherited_and_an_undeclared_one_passes():
    class Base(Configured):
        legal = {"width": Whole(1), "kind": Choice("a", "b")}

        def __init__(self, *, width=1, kind="a", free=None):
            self.width, self.kind, self.free = width, kind, free

    class Own(Base):
        legal = {"width": Whole(1, 9) | Several("widths", Whole(1)) | None, "kind": Such("what I say", callable)}

    Own(width=[2, 3], kind=print, free=object()).validate()
    Own(width=None, kind=print).validate()
    with pytest.raises(ValueError, match=r"Own's width to be an integer in \[1, 9\], widths or None, got 10"):
        Own(width=10, kind=print).validate()
    assert legal_of(Own)["width"].words == "an integer in [1, 9], widths or None"
    assert (Number(high=0) | Flag()).words == "a number <= 0 or True or False"


# --- on the way to a training -------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
SITE = np.arange(12) % 2
QUICK = {"hidden": (2,), "epochs": 1, "random_state": 0}


def fitted(**settings):
    return Regressor(**{**QUICK, **settings}).fit(X, X[:, 0], environment=SITE)


WAYS = {
    "the objective": (lambda: Learner(Regression(noise="1"), epochs=1).fit(X, X[:, 0]), "Regression's noise"),
    "the strategy": (lambda: fitted(strategy=ANDMask(threshold="0.5")), "ANDMask's threshold"),
    "an attack": (lambda: fitted(strategy=AdversarialTraining(PGD(steps="3"))), "PGD's steps"),
    "a source": (lambda: Learner(Regression()).fit(Arrays(X, X[:, 0], batch_size="3")), "Arrays' batch_size"),
    "episodes": (lambda: Episodes(sinusoids, shots=True), "Episodes' shots"),
    "a net": (lambda: fitted(net="mlp(batch_norm=1)"), "MLP's batch_norm"),
    "the optimizer": (lambda: fitted(optimizer=Optimizer("sgd", momentum=5)), "Optimizer's momentum"),
    "a preset": (lambda: fitted(hidden=b"ab"), "Regressor's hidden"),
    "the learner": (lambda: fitted(random_state=2**63), "Regressor's random_state"),
    "a device beyond counting": (lambda: fitted(device=2**63), "expected a device"),
    "the objective, asked for settings": (lambda: Learner(Regression(noise=0)).settings(), "Regression's noise"),
    "empty text as callbacks": (lambda: fitted(callbacks=b""), "a list of functions"),
    "a swept strategy": (
        lambda: fitted(strategy=ANDMask(), replicas={"strategy__threshold": [0.5, "1"]}),
        "ANDMask's threshold .* got '1'",
    ),
    "a swept objective": (
        lambda: Learner(Regression(), epochs=1, replicas={"objective__noise": [1.0, -1.0]}).fit(X, X[:, 0]),
        "Regression's noise .* got -1.0",
    ),
    "a swept optimizer": (
        lambda: fitted(optimizer="sgd", replicas={"optimizer__momentum": [0.9, 5]}),
        "Optimizer's momentum .* got 5",
    ),
    "a swept learner": (lambda: fitted(replicas={"accumulate": [4, b"4"]}), "Regressor's accumulate .* got b'4'"),
    "a swept seed": (lambda: fitted(replicas={"random_state": [1, -1]}), "Regressor's random_state .* got -1"),
    "the same seed twice": (
        lambda: fitted(replicas={"random_state": [1, 2, 1]}),
        "expected replicas that differ, got {'random_state': 1} for both 0 and 2, which would learn the same",
    ),
    "the same rate twice": (lambda: fitted(replicas={"optimizer__lr": [0.1, 0.1]}), "expected replicas that differ"),
    "bytes to sweep": (lambda: fitted(replicas={"optimizer__lr": b"ab"}), "a list of values for 'optimizer__lr'"),
    "a number to sweep": (lambda: fitted(replicas={"optimizer__lr": torch.tensor(0.1)}), "expected a list of values"),
    "another mapping": (
        lambda: fitted(replicas=MappingProxyType({"optimizer__lr": [0.1, 0.2]})),
        "or lists by parameter name .* got mappingproxy",
    ),
    "nothing to sweep": (lambda: fitted(replicas={}), "expected lists .* got {}"),
    "seeds that run out": (lambda: fitted(replicas=2, random_state=2**63 - 1), "not as many"),
}


@pytest.mark.parametrize("case", WAYS)
def test_a_training_does_not_begin_with_a_bad_setting(case):
    act, words = WAYS[case]
    with pytest.raises((ValueError, TypeError), match=words) as refusal:
        act()
    assert re.search("expected.*got", str(refusal.value))


def test_whoever_builds_an_objective_is_told():
    spec = {"x": Field((2,), torch.float32), "y": Field((), torch.float32)}
    with pytest.raises(ValueError, match="Regression's noise to be a number > 0, got 0"):
        build(Regression(noise=0), spec, 0, torch.float32)
    with pytest.raises(ValueError, match="Regression's noise to be a number > 0, got 0"):
        check_objective(Regression(noise=0), Arrays(torch.zeros(4, 2), torch.zeros(4)))


def test_what_may_be_swept():
    rows = replica_settings({"strategy__threshold": torch.tensor([0.25, 0.5]), "random_state": np.array([1, 1])}, 0)
    assert rows == [{"random_state": 1, "strategy__threshold": t} for t in (0.25, 0.5)]
    nets = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]  # alike to read, with weights of their own
    assert len(replica_settings({"net": nets}, 0)) == 2
    swept = fitted(strategy=ANDMask(), replicas={"strategy__threshold": [np.float32(0.5), torch.tensor(1.0)]})
    assert [own["strategy__threshold"] for own in swept.training_.settings] == [0.5, 1.0]


def test_a_batch_larger_than_the_data_is_all_of_it():
    assert fitted(batch_size=2**31).history_["loss"] == fitted(batch_size=None).history_["loss"]


def test_settings_of_the_command_line_are_values_by_then():
    from weft.core.spelling import parse

    parse("and-mask(threshold=0.5)+l2", "strategies").validate()
    parse("classification(net=mlp(dropout=0.5), hidden=(8, 8))", "objectives").validate()
    with pytest.raises(TypeError, match=r"threshold .* got '0.5' .*without quotes"):
        parse("and-mask(threshold='0.5')", "strategies").validate()
    assert isinstance(Classification().get_params()["hidden"], tuple)
