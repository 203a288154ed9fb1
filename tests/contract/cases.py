"""The catalogue's objectives and strategies with small data, for the contract tests."""

import io
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

from weft import Learner, Optimizer
from weft.attacks import PGD
from weft.core import Field
from weft.core.catalogue import entries
from weft.core.random import fold, key_of, unit
from weft.data import Bandits, FiniteMDP, ring, sinusoids
from weft.nets import MLP
from weft.objectives import (
    A2C,
    DANN,
    DQN,
    FVBN,
    GAN,
    GLO,
    HMM,
    ICA,
    LDA,
    MADE,
    MPC,
    NADE,
    NCE,
    PPO,
    RBM,
    REINFORCE,
    REPS,
    SAC,
    TD,
    TD3,
    UCB,
    VAE,
    VQVAE,
    Autoencoder,
    BackwardInduction,
    CausalTransformer,
    CharRNN,
    ClassConditional,
    Classification,
    Dequantized,
    DiscreteVAE,
    Dyna,
    Dynamics,
    EpsilonGreedy,
    FactorAnalysis,
    Gaussian,
    GaussianMixture,
    GradientBandit,
    Heads,
    HierarchicalVAE,
    Histogram,
    Independent,
    KernelDensity,
    LeastSquares,
    LinearBandit,
    LinearProgram,
    Mixture,
    NaiveBayes,
    NeuralBandit,
    NeuralBelief,
    PixelCNN,
    PixelRNN,
    PixelTransformer,
    PolicyEvaluation,
    PolicyIteration,
    ProbabilisticPCA,
    Regression,
    SemiSupervisedVAE,
    StateSpace,
    TDControl,
    Thompson,
    TrueOnlineTD,
    ValueIteration,
    WaveNet,
)
from weft.sources import (
    Arrays,
    DAgger,
    Demonstrations,
    Episodes,
    Mapped,
    Parquet,
    Rollouts,
    Segments,
    Shards,
    Stream,
    Tables,
    Unpaired,
    Windows,
)
from weft.sources import Replay as Memory
from weft.strategies import (
    AGEM,
    CORAL,
    EMA,
    ERM,
    EWC,
    IRM,
    L1,
    L2,
    LBFGS,
    MAML,
    MAS,
    MMD,
    SAM,
    SGLD,
    SWA,
    AdversarialTraining,
    ANDMask,
    Fishr,
    GenerativeReplay,
    GeometricMean,
    GroupDRO,
    L2Anchor,
    Laplace,
    LwF,
    NaturalGradient,
    PCGrad,
    Replay,
    SANDMask,
    SynapticIntelligence,
    TemporalANDMask,
    TrustRegion,
    VREx,
)

rng = np.random.default_rng(0)
ROWS = 120
X = rng.normal(size=(ROWS, 5)).astype(np.float32)
SITE = np.repeat([0, 1, 2], [50, 40, 30])  # unequal environments
KIND = np.repeat(np.arange(15), np.arange(15) % 3 + 7)  # fifteen kinds of seven to nine rows
SCORE = X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0]) + 0.2 * rng.normal(size=ROWS)
LABEL = (SCORE > 0).astype(int)
FEW = np.where(np.arange(ROWS) % 3 == 0, -1, LABEL)
MIXED = np.sign(X) * (1 + 0.2 * np.abs(X)) @ (np.eye(5) + 0.5 * np.eye(5, k=1))  # two hills a column, then mixed
MIXED = MIXED.astype(np.float32)
NARROW = MIXED / 4  # for sums of squared errors under SGD at the rate of .3
BITS = (X[:, :1] + 0.3 * X > 0.4).astype(np.float32)  # neither fair nor independent: there is something to learn
IMAGES = np.repeat(BITS[:, None, None, :3], 2, 2)  # 1 x 2 x 3, the second row as the first
VALUE = SCORE.astype(np.float32)
TARGETS = {"label_y": torch.as_tensor(LABEL), "value_y": torch.as_tensor(VALUE)}


def noisy(inputs, outputs):
    """A net with what makes contracts hard: dropout and batch statistics."""
    return MLP(inputs, outputs, hidden=(16,), dropout=0.1, batch_norm=True)


def both_targets(keys, rows):
    """Rows of an environment with both targets."""
    drawn = Episodes((X, np.arange(ROWS), SITE)).draw(keys, rows)
    return {"x": drawn["x"], **{name: target[drawn["y"]] for name, target in TARGETS.items()}}


def rightwards(seen):
    """Who knows the corridor."""
    return torch.ones(len(seen), dtype=torch.int64)


def ladder():
    """Places in a row; at each another way leads on and pays, and the other one back to the first."""
    on, back = torch.eye(4).roll(1, 1), torch.eye(4)[:1].expand(4, 4)
    ways = torch.stack([torch.stack([on[k], back[k]] if k % 2 else [back[k], on[k]]) for k in range(4)])
    pays = torch.stack([torch.tensor([float(k % 2), float(1 - k % 2)]) for k in range(4)])
    return FiniteMDP(ways, pays, horizon=8)


@cache
def steps_taken():
    """Steps of an expert that errs now and then, by field."""
    given = Demonstrations(corridor(), rightwards, episodes=20, stray=0.4, horizon=20)
    names = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
    return {name: given.fields[name][:ROWS] for name in names}


def walked(kind):
    """Steps that were taken, for what learns from any; as groups, in two halves."""
    if kind != "groups":
        return Demonstrations(corridor(), rightwards, episodes=8, stray=0.4, horizon=20, batch_size=16)
    half = torch.arange(ROWS) % 2
    return Arrays(None, environment=half, batch_size=16, grouped=True, classes={"action": 2}, **steps_taken())


def remembered(kind):
    """Steps by the policy that is learned: a memory of them, or of two worlds those just played."""
    if kind == "groups":
        return Segments([ladder(), ladder()], envs=4, length=8)
    return Memory(ladder(), envs=2, capacity=400, start=32, batch_size=16, every=2, updates_each=2, explore=0.2)


def few_steps():
    """Episodes of steps that were taken."""
    return rows_of(steps_taken()["observation"], classes={"action": 2}, **steps_taken())()


def corridor():
    """Four places in a row; going right pays at the last one."""
    left, right = torch.eye(4).roll(-1, 1).tril(), torch.eye(4).roll(1, 1).triu()
    left[0, 0], right[3, 3] = 1.0, 1.0
    reward = torch.zeros(4, 2)
    reward[3, 1] = 1.0
    return FiniteMDP(torch.stack([left, right], 1), reward, horizon=8)


def corridor_steps(keys, rows):
    """Steps in it from anywhere, by actions drawn evenly."""
    world, drawn = corridor(), Episodes((X, np.arange(ROWS), SITE)).draw(keys, rows)["y"]
    place, action = drawn % 4, drawn // 4 % 2
    _, seen, reward, ended = world.step(place.flatten(), action.flatten(), torch.zeros(drawn.numel()).long())
    told = {"reward": reward, "next_observation": seen, "terminated": ended}
    return {"observation": torch.eye(4)[place], "action": action} | {
        name: value.unflatten(0, drawn.shape) for name, value in told.items()
    }


class Target:
    """A number is shown for some steps, and its negative half is to be said."""

    observation, horizon = Field((1,), torch.float32), 4
    action = Field((1,), torch.float32, low=(-2.0,), high=(2.0,))

    def reset(self, keys):
        shown = 2 * unit(keys, (1,)) - 1
        return shown, shown

    def step(self, shown, action, keys):
        paid = -(action + shown / 2).square()[:, 0]
        return shown, shown, paid, torch.zeros(len(shown), dtype=torch.bool)


def target_steps(keys, rows):
    """Steps there, by actions drawn evenly."""
    drawn = Episodes((X, np.arange(ROWS), SITE)).draw(keys, rows)["y"].unsqueeze(-1)
    shown, action = drawn / ROWS * 2 - 1, drawn * 7 % 40 / 10.0 - 2
    paid = -(action + shown / 2).square()[..., 0]
    told = {"reward": paid, "next_observation": shown, "terminated": torch.zeros_like(paid, dtype=torch.bool)}
    return {"observation": shown, "action": action, **told}


def everywhere(draw):
    """Some rows of a function that draws them for episodes."""
    return {name: value.flatten(0, 1) for name, value in draw(fold(key_of(0), torch.arange(4)), 30).items()}


LENGTH = torch.arange(ROWS) % 4 + 2
OBSERVED = (torch.arange(5) < LENGTH[:, None]) & (torch.as_tensor(X) > -1.5)
SERIES = {"x": torch.as_tensor(2 * X + 1) * OBSERVED, "x_length": LENGTH, "observed": OBSERVED}


def series(kind):
    """Sequences of two to five steps, some with a gap."""
    return Arrays(**SERIES, environment=SITE, grouped=kind == "groups", batch_size=30)


TEXT = {"x": ((torch.as_tensor(BITS).long().cumsum(1)) % 3) * (torch.arange(5) < LENGTH[:, None]), "x_length": LENGTH}
WAVES = {"x": torch.as_tensor(np.tanh(X)).cumsum(1).sin() * (torch.arange(5) < LENGTH[:, None]), "x_length": LENGTH}


def text(kind):
    """Rows of two to five tokens."""
    return Arrays(**TEXT, environment=SITE, grouped=kind == "groups", batch_size=30, classes={"x": 3})


def waves(kind):
    """Waves of two to five steps."""
    return Arrays(**WAVES, environment=SITE, grouped=kind == "groups", batch_size=30)


def rows_of(x, tasks=6, shots=8, classes=None, **others):
    """Episodes of rows of an environment, without labels."""
    fields = {"x": torch.as_tensor(x), **others}

    def draw(keys, rows):
        drawn = Episodes((X, np.arange(ROWS), SITE)).draw(keys, rows)["y"]
        return {name: field[drawn] for name, field in fields.items()}

    return lambda: Episodes(draw, tasks=tasks, shots=shots, classes=classes)


def scattered(rows):
    """Every seventh entry is missing."""
    return torch.arange(rows.numel()).reshape(rows.shape) % 7 > 0


def at_the_end(rows):
    """The last entry is missing in every third row."""
    entries = rows[0].size if isinstance(rows, np.ndarray) else rows[0].numel()
    there = torch.arange(entries) < entries - (torch.arange(len(rows)) % 3 == 0).long()[:, None]
    return there.reshape(rows.shape)


def complete(rows):
    """Nothing is missing."""
    return torch.ones(rows.shape, dtype=torch.bool)


@dataclass
class Case:
    """An objective, the data it learns from in each form, and how long it takes to show progress.

    A source is asked for as `groups`, as `flat`, and as `played`, where an objective that acts may play and else not.
    """

    make: Callable[[str], Any]
    arrays: dict[str, Any] | None = None
    source: Callable[[str], Any] | None = None
    steps: int = 40
    settings: dict[str, Any] = field(default_factory=dict)
    episodes: Callable[[], Any] | None = None
    strategies: dict[str, Any] = field(default_factory=dict)  # in other settings than for other objectives
    counted: Callable[[], Any] | None = None  # rows that were given, for strategies that ask how many there are
    gaps: Callable[[Any], Any] = scattered  # which entries of rows are observed, where gaps are learned from
    learned: Callable[[Any], bool] | None = None  # whether it has, where no record tells


ADAM = Optimizer("adam", lr=0.01)
# What a GAN draws are no bits: what an objective itself draws are.
ITSELF = {"generative-replay": GenerativeReplay(size=40, rows=10)}
FAST = {"optimizer": Optimizer("adam", lr=0.05)}


def painted(make):
    """A density of small images."""
    told = {"settings": FAST, "strategies": ITSELF, "gaps": at_the_end}
    return Case(make, {"X": IMAGES}, episodes=rows_of(IMAGES, observed=complete(IMAGES)), **told)


def planned(make):
    """What is solved by the tables of the corridor."""
    solved = lambda learner: bool(np.max(learner.history_["loss"][-1]) < 1e-8)
    return Case(make, source=lambda kind: Tables(corridor()), learned=solved)


def worth_more(learner):
    """The last place is worth more than the first."""
    values = learner.value(np.eye(4))
    return bool(values[3] > values[0])


def found_an_arm(learner):
    """More is earned than by any arm."""
    contexts = {"contexts": 2} if type(learner.objective_) in (LinearBandit, NeuralBandit) else {}
    return bool(learner.evaluate(Bandits(3, horizon=60, spread=2.0, pays="optimal", **contexts), 200).mean > 60 / 3 + 8)


def steps_there():
    """Single steps by which one goes to and fro in the corridor."""
    s, a = torch.arange(ROWS) % 4, torch.arange(ROWS) // 4 % 2
    after = (s + 2 * a - 1).clamp(0, 3)
    fields = {
        "observation": torch.eye(4)[s],
        "action": a,
        "reward": ((s == 3) & (a == 1)).float(),
        "next_observation": torch.eye(4)[after],
        "terminated": torch.zeros(ROWS, dtype=torch.bool),
    }

    def draw(keys, rows):
        drawn = Episodes((X, np.arange(ROWS), SITE)).draw(keys, rows)["y"]
        return {name: field[drawn] for name, field in fields.items()}

    return Episodes(draw, tasks=6, shots=8, classes={"action": 2})


def learned_there(make, one=True):
    """What is learned from single steps or stretches in the corridor."""
    given = lambda: Demonstrations(corridor(), rightwards, episodes=8, stray=0.8, horizon=20, batch_size=16)
    several = lambda: Segments([corridor(), corridor()], envs=4, length=4)
    alone = lambda: Segments(corridor(), envs=4, length=4)
    return Case(
        make,
        source=lambda kind: several() if kind == "groups" else given() if one and kind == "flat" else alone(),
        settings={"optimizer": Optimizer("sgd", lr=0.5)},
        episodes=steps_there,
        learned=worth_more,
    )


def with_arms(make, **world):
    """What plays bandits."""
    return Case(make, source=lambda kind: Rollouts(Bandits(3, horizon=6, **world), envs=4), learned=found_an_arm)


OBJECTIVES = {
    "classification": Case(
        lambda net: Classification(noisy if net == "noisy" else None, hidden=(16,)),
        {"X": X, "y": LABEL},
        settings={"optimizer": ADAM},
        episodes=lambda: Episodes((X, LABEL, SITE), tasks=6, shots=8, classes=2),
    ),
    "regression": Case(
        lambda net: Regression(noisy if net == "noisy" else None, hidden=(16,)),
        {"X": X, "y": VALUE},
        settings={"optimizer": ADAM},
        episodes=lambda: Episodes((X, VALUE, SITE), tasks=6, shots=8),
    ),
    "least-squares": Case(lambda net: LeastSquares(), {"X": X, "y": VALUE}),
    "gan": Case(
        lambda net: GAN(latent=2, hidden=(32,)),
        {"X": ring(ROWS, sigma=0.05)},
        steps=75,
    ),
    "rbm": Case(lambda net: RBM(4), {"X": BITS}, settings=FAST, episodes=rows_of(BITS), strategies=ITSELF),
    "rbm, persistent chains": Case(
        lambda net: RBM(4, chains="persistent", particles=16),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
        strategies=ITSELF,
    ),
    "nce": Case(lambda net: NCE(hidden=(16,)), {"X": MIXED}, episodes=rows_of(MIXED)),
    "ica": Case(lambda net: ICA(), {"X": MIXED}, episodes=rows_of(MIXED)),
    "ica, descended": Case(lambda net: ICA(inference="gradient"), {"X": MIXED}, episodes=rows_of(MIXED)),
    "vae": Case(
        lambda net: VAE(2, encoder=noisy if net == "noisy" else None, hidden=(16,), law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
        strategies=ITSELF,
    ),
    "vae, many draws, mixed prior": Case(
        lambda net: VAE(2, hidden=(16,), prior=2, draws=3, bound="iwae", gradient="doubly", gaps=True),
        {"X": MIXED},
        settings=FAST,
        episodes=rows_of(MIXED, observed=complete(MIXED)),
    ),
    "vae, target rate": Case(
        lambda net: VAE(2, hidden=(16,), noise="shared", target_rate=0.5),
        {"X": MIXED},
        settings=FAST,
        episodes=rows_of(MIXED),
    ),
    "autoencoder": Case(
        lambda net: Autoencoder(2, encoder=noisy if net == "noisy" else None, hidden=(16,), noise=0.1, masking=0.1),
        {"X": NARROW},
        settings=FAST,
        episodes=rows_of(NARROW),
    ),
    "autoencoder, contractive": Case(
        lambda net: Autoencoder(2, hidden=(16,), codes="tanh", l1=0.01, contraction=0.01),
        {"X": NARROW},
        settings=FAST,
        episodes=rows_of(NARROW),
    ),
    "autoencoder, sparse": Case(
        lambda net: Autoencoder(8, hidden=(), codes="sigmoid", kl=0.1, target=0.2, tied=True),
        {"X": NARROW},
        settings=FAST,
        episodes=rows_of(NARROW),
    ),
    "glo": Case(lambda net: GLO(2, hidden=(16,)), {"X": NARROW}, settings=FAST),
    "vae, autoregressive decoder": Case(
        lambda net: VAE(2, hidden=(16,), decoder=MADE((16,), law="bernoulli")),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
    ),
    "hierarchical-vae": Case(
        lambda net: HierarchicalVAE((2, 1), encoder=noisy if net == "noisy" else None, hidden=(16,), law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
    ),
    "hierarchical-vae, bottom-up": Case(
        lambda net: HierarchicalVAE((2, 1), hidden=(16,), inference="bottom-up", warm_up=5, gaps=True),
        {"X": MIXED},
        settings=FAST,
        episodes=rows_of(MIXED, observed=complete(MIXED)),
    ),
    "semi-supervised-vae": Case(
        lambda net: SemiSupervisedVAE(
            2, encoder=noisy if net == "noisy" else None, hidden=(16,), noise="shared", alpha=1.0
        ),
        {"X": X, "y": FEW},
        settings=FAST,
        episodes=rows_of(X, classes=2, y=torch.as_tensor(FEW)),
    ),
    "discrete-vae": Case(
        lambda net: DiscreteVAE(2, choices=3, encoder=noisy if net == "noisy" else None, hidden=(16,), law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
        strategies=ITSELF,
    ),
    "discrete-vae, relaxed": Case(
        lambda net: DiscreteVAE(
            3, hidden=(16,), prior="learned", gradient="relaxation", cooled=0.5, cooling=50, gaps=True
        ),
        {"X": MIXED},
        settings=FAST,
        episodes=rows_of(MIXED, observed=complete(MIXED)),
    ),
    "vqvae": Case(
        lambda net: VQVAE(
            2, codes=8, width=3, encoder=noisy if net == "noisy" else None, hidden=(16,), law="bernoulli"
        ),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS),
        strategies=ITSELF,
    ),
    "vqvae, descended, with a prior": Case(
        lambda net: VQVAE(
            2,
            codes=8,
            width=3,
            hidden=(16,),
            codebook="loss",
            prior=MADE((8,), law="categorical", classes=8),
        ),
        {"X": MIXED},
        settings=FAST,
        episodes=rows_of(MIXED),
        strategies={"lbfgs": LBFGS(history=5, trials=12)},  # the loss jumps: a search of four trials may end uphill
    ),
    "dann": Case(
        lambda net: DANN(Classification(noisy if net == "noisy" else None, hidden=(16,)), strength=0.1, hidden=(16,)),
        source=lambda kind: Arrays(
            torch.as_tensor(X),
            torch.as_tensor(LABEL),
            environment=SITE,
            with_environment=True,
            grouped=kind == "groups",
            batch_size=30,
            classes=2,
        ),
        settings={"optimizer": ADAM},
    ),
    "heads": Case(
        lambda net: Heads(
            {
                "label": Classification(noisy if net == "noisy" else None, hidden=(16,)),
                "value": Regression(noisy if net == "noisy" else None, hidden=(16,)),
            }
        ),
        source=lambda kind: Arrays(
            torch.as_tensor(X),
            environment=SITE,
            grouped=kind == "groups",
            batch_size=30,
            classes={"label_y": 2},
            **TARGETS,
        ),
        settings={"optimizer": ADAM},
        episodes=lambda: Episodes(both_targets, tasks=6, shots=8, classes={"label_y": 2}),
    ),
    "dequantized": Case(
        lambda net: Dequantized(ICA(inference="gradient"), levels=8),
        {"X": np.clip(np.round(MIXED + 3), 0, 7)},
        episodes=rows_of(np.clip(np.round(MIXED + 3), 0, 7)),
    ),
    "gaussian": Case(lambda net: Gaussian(), {"X": X}),
    "independent": Case(lambda net: Independent(law="normal"), {"X": X}),
    "mixture": Case(
        lambda net: Mixture(2, law="normal", inference="gradient"),
        {"X": X},
        settings={"optimizer": ADAM},
        episodes=rows_of(X, observed=torch.as_tensor(X > -1.5)),
    ),
    "gaussian-mixture": Case(lambda net: GaussianMixture(2, tolerance=1e-4), {"X": X}),
    "class-conditional": Case(lambda net: ClassConditional(Gaussian()), {"X": X, "y": LABEL}),
    "naive-bayes": Case(lambda net: NaiveBayes(law="normal"), {"X": X, "y": LABEL}),
    "hmm": Case(
        lambda net: HMM(2, law="normal", inference="gradient"),
        source=series,
        steps=20,
        settings={"optimizer": ADAM},
        episodes=rows_of(tasks=3, shots=4, **SERIES),
    ),
    "state-space": Case(
        lambda net: StateSpace(1, inference="gradient"),
        source=series,
        steps=20,
        settings={"optimizer": ADAM},
        episodes=rows_of(tasks=3, shots=4, **SERIES),
    ),
    "fvbn": Case(
        lambda net: FVBN(law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS, observed=complete(BITS)),
        strategies=ITSELF,
        gaps=at_the_end,
    ),
    "neural-belief": Case(
        lambda net: NeuralBelief(4, law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS, observed=complete(BITS)),
        strategies=ITSELF,
        gaps=at_the_end,
    ),
    "nade": Case(
        lambda net: NADE(8, law="bernoulli"),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS, observed=complete(BITS)),
        strategies=ITSELF,
        gaps=at_the_end,
    ),
    "made": Case(
        lambda net: MADE((16,), law="bernoulli", masks=2),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS, observed=complete(BITS)),
        strategies=ITSELF,
        gaps=at_the_end,
    ),
    "made, in any order": Case(
        lambda net: MADE((16,), law="bernoulli", agnostic=True, orderings=2),
        {"X": BITS},
        settings=FAST,
        episodes=rows_of(BITS, observed=complete(BITS)),
        strategies=ITSELF,
        gaps=complete,
    ),
    "char-rnn": Case(
        lambda net: CharRNN(width=8, dropout=0.1 * (net == "noisy")),
        source=text,
        settings=FAST,
        episodes=rows_of(tasks=3, shots=4, classes={"x": 3}, **TEXT),
    ),
    "causal-transformer": Case(
        lambda net: CausalTransformer(layers=1, heads=2, width=8, dropout=0.1 * (net == "noisy")),
        source=text,
        settings=FAST,
        episodes=rows_of(tasks=3, shots=4, classes={"x": 3}, **TEXT),
    ),
    "wave-net": Case(
        lambda net: WaveNet(levels=4, width=8, layers=2, dropout=0.1 * (net == "noisy")),
        source=waves,
        settings=FAST,
        episodes=rows_of(tasks=3, shots=4, **WAVES),
        strategies={"lbfgs": LBFGS(history=2, trials=10)},  # batches differ: likewise
    ),
    "pixel-cnn": painted(lambda net: PixelCNN(layers=2, width=4, kernel=3)),
    "pixel-rnn": painted(lambda net: PixelRNN(layers=1, width=4, kernel=3)),
    "pixel-transformer": painted(
        lambda net: PixelTransformer(layers=1, heads=2, width=8, dropout=0.1 * (net == "noisy"))
    ),
    "histogram": Case(lambda net: Histogram(bins=2, tails=0.1), {"X": X[:, :2]}),
    "kernel-density": Case(lambda net: KernelDensity(bandwidth="scott"), {"X": X}),
    "probabilistic-pca": Case(lambda net: ProbabilisticPCA(2), {"X": MIXED}, gaps=complete),
    "probabilistic-pca, by em": Case(lambda net: ProbabilisticPCA(2, inference="em"), {"X": MIXED}),
    "factor-analysis": Case(lambda net: FactorAnalysis(1, tolerance=1e-6), {"X": MIXED}),
    "lda": Case(lambda net: LDA(components=2, iterations=5), {"X": np.floor(np.abs(3 * X)).astype(int) + 1}),
    "a2c": Case(
        lambda net: A2C(hidden=(16,)),
        source=lambda kind: Segments([corridor(), corridor()] if kind == "groups" else corridor(), envs=8, length=10),
        steps=60,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
    ),
    "ppo": Case(
        lambda net: PPO(hidden=(16,)),
        source=lambda kind: Segments([corridor(), corridor()] if kind == "groups" else corridor(), envs=8, length=10),
        steps=60,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
    ),
    "reps": Case(
        lambda net: REPS(hidden=(16,)),
        source=lambda kind: Segments([corridor(), corridor()] if kind == "groups" else corridor(), envs=8, length=10),
        steps=60,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
    ),
    "policy-evaluation": planned(lambda net: PolicyEvaluation(discount=0.9)),
    "policy-iteration": planned(lambda net: PolicyIteration(discount=0.9)),
    "value-iteration": planned(lambda net: ValueIteration(discount=0.9)),
    "linear-program": planned(lambda net: LinearProgram(discount=0.9)),
    "backward-induction": planned(lambda net: BackwardInduction(horizon=8)),
    "td": learned_there(lambda net: TD(discount=0.9)),
    "td, lambda": learned_there(lambda net: TD(discount=0.9, trace=0.8, target=[[0.2, 0.8]] * 4, visit="first"), False),
    "td-control": learned_there(lambda net: TDControl(target="double")),
    "td-control, sarsa": learned_there(lambda net: TDControl(target="sarsa", trace=0.5), False),
    "true-online-td": Case(
        lambda net: TrueOnlineTD(episodes=40, step=0.05),
        source=lambda kind: Rollouts(corridor(), envs=10),
        learned=worth_more,
    ),
    "epsilon-greedy": with_arms(lambda net: EpsilonGreedy()),
    "ucb": with_arms(lambda net: UCB()),
    "gradient-bandit": with_arms(lambda net: GradientBandit()),
    "thompson": with_arms(lambda net: Thompson()),
    "linear-bandit": with_arms(lambda net: LinearBandit(explore="thompson"), contexts=2),
    "neural-bandit": with_arms(lambda net: NeuralBandit(hidden=(4,)), contexts=2),
    "reinforce": Case(
        lambda net: REINFORCE(hidden=(16,)),
        source=lambda kind: Rollouts([corridor(), corridor()] if kind == "groups" else corridor(), envs=16),
        steps=20,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
    ),
    "dynamics": Case(
        lambda net: Dynamics(Regression(noisy if net == "noisy" else None, hidden=(16,))),
        source=walked,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
        episodes=few_steps,
    ),
    "mpc": Case(
        lambda net: MPC(Regression(hidden=(16,)), ahead=5, plans=12, elites=3),
        source=remembered,
        steps=80,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
        episodes=few_steps,
    ),
    "dyna": Case(
        lambda net: Dyna(DQN(hidden=(16,)), model=Regression(hidden=(16,))),
        source=remembered,
        steps=80,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
        episodes=few_steps,
    ),
    "dqn": Case(
        lambda net: DQN(
            "mlp(dropout=0.1)" if net == "noisy" else None, hidden=(16,), renew=5, discount=0.5, temperature=0.1
        ),
        source=lambda kind: (
            Rollouts([corridor(), corridor()], envs=8)
            if kind == "groups"
            else Memory(corridor(), envs=4, start=64, batch_size=32, every=8)
        ),
        steps=60,
        settings={"optimizer": Optimizer("adam", lr=0.02)},
        episodes=lambda: Episodes(corridor_steps, tasks=4, shots=8, classes={"action": 2}),
        counted=lambda: Arrays(None, **everywhere(corridor_steps), batch_size=30, classes={"action": 2}),
    ),
    "sac": Case(
        lambda net: SAC(
            "mlp(dropout=0.1)" if net == "noisy" else None, hidden=(16,), discount=0.5, rate=0.1, entropy=0.2
        ),
        source=lambda kind: (
            Rollouts([corridor(), corridor()], envs=8)
            if kind == "groups"
            else Memory(corridor(), envs=4, start=64, batch_size=32, every=8)
        ),
        steps=80,
        settings={"optimizer": Optimizer("adam", lr=0.05)},
        episodes=lambda: Episodes(corridor_steps, tasks=4, shots=8, classes={"action": 2}),
        counted=lambda: Arrays(None, **everywhere(corridor_steps), batch_size=30, classes={"action": 2}),
    ),
    "td3": Case(
        lambda net: TD3("mlp(dropout=0.1)" if net == "noisy" else None, hidden=(16,), discount=0.5, rate=0.1),
        source=lambda kind: (
            Rollouts([Target(), Target()], envs=8)
            if kind == "groups"
            else Memory(Target(), envs=4, start=64, batch_size=32, every=8, explore=0.2)
        ),
        steps=80,
        settings={"optimizer": Optimizer("adam", lr=0.05)},
        episodes=lambda: Episodes(target_steps, tasks=4, shots=8),
        counted=lambda: Arrays(None, **everywhere(target_steps), batch_size=30),
    ),
}

STRATEGIES = {
    "erm": ERM(),
    "and-mask": ANDMask(threshold=0.4),
    "and-mask, every example": ANDMask(threshold=0.05, each="example"),
    "ewc": EWC(strength=1.0),
    "laplace": Laplace(strength=1.0),
    "l2-anchor": L2Anchor(strength=0.1),
    "synaptic-intelligence": SynapticIntelligence(strength=0.1),
    "mas": MAS(strength=0.1),
    "lwf": LwF(strength=1.0),
    "replay": Replay(size=40, rows=10),
    "generative-replay": GenerativeReplay(generator=Learner(GAN(latent=2, hidden=(16,)), steps=30), size=40, rows=10),
    "agem": AGEM(size=40, rows=10),
    "maml": MAML(inner_lr=0.05),
    "l1": L1(strength=1e-3),
    "l2": L2(strength=1e-3),
    "coral": CORAL(strength=0.5),
    "mmd": MMD(strength=0.5),
    "fishr": Fishr(strength=10.0, anneal=2),
    "adversarial-training": AdversarialTraining(PGD(eps=0.05)),
    "geometric-mean": GeometricMean(threshold=0.4, fallback=True),
    "irm": IRM(strength=1.0),
    "vrex": VREx(strength=1.0),
    "group-dro": GroupDRO(rate=0.1),
    "temporal-and-mask": TemporalANDMask(threshold=0.3),
    "pc-grad": PCGrad(),
    "sand-mask": SANDMask(threshold=0.3),
    "sam": SAM(radius=0.05),
    "ema": EMA(decay=0.9),
    "swa": SWA(start=20, every=2),
    "lbfgs": LBFGS(history=5, trials=4),
    "natural-gradient": NaturalGradient(),
    "trust-region": TrustRegion(radius=0.02),
    "sgld": SGLD(temperature=0.01, draws=3, start=20, every=5),
}
# What a strategy's own documentation asks of a training.
ASKED = {"lbfgs": {"batch_size": None}}

_FILES = tempfile.TemporaryDirectory()  # until the tests end


@cache
def parquet_file():
    """The rows in a file, a few to a row group."""
    path = f"{_FILES.name}/rows.parquet"
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    table.assign(label=LABEL).to_parquet(path, row_group_size=16)
    return path


@cache
def shard():
    """The rows in a tar file."""
    path = f"{_FILES.name}/rows.tar"
    with tarfile.open(path, "w") as file:
        for i, (row, label) in enumerate(zip(X, LABEL, strict=True)):
            array = io.BytesIO()
            np.save(array, row)
            for ending, data in (("npy", array.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{i:04}.{ending}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return path


SOURCES = {
    "arrays": lambda: Arrays(torch.as_tensor(X), torch.as_tensor(LABEL), batch_size=25, classes=2),
    "arrays, grouped": lambda: Arrays(torch.as_tensor(X), environment=SITE, batch_size=25, grouped=True),
    "arrays, with environment": lambda: Arrays(
        torch.as_tensor(X), environment=SITE, batch_size=25, with_environment=True
    ),
    "arrays, held out": lambda: Arrays(torch.as_tensor(X), batch_size=25, holdout=0.25),
    "arrays, weighted": lambda: Arrays(torch.as_tensor(X), weight=torch.rand(ROWS) + 0.1, batch_size=7),
    "mapped": lambda: Mapped(Arrays(torch.as_tensor(X), batch_size=25), lambda row: row + torch.rand(row.shape)),
    "unpaired": lambda: Unpaired(Arrays(torch.as_tensor(X)), Arrays(torch.as_tensor(X[:20])), batch_size=25),
    "stream": lambda: Stream(TensorDataset(torch.as_tensor(X), torch.as_tensor(LABEL)), batch_size=25, classes=2),
    "parquet": lambda: Parquet(parquet_file(), {"x": ["x0", "x1"], "y": "label"}, batch_size=25, buffer=40, classes=2),
    "shards": lambda: Shards(shard(), {"x": "npy", "y": "cls"}, batch_size=25, buffer=40, classes=2),
    "demonstrations": lambda: Demonstrations(corridor(), rightwards, episodes=8, stray=0.2, horizon=20, batch_size=16),
    "dagger": lambda: DAgger(corridor(), rightwards, envs=3, length=5, updates_each=2, batch_size=8),
    "windows": lambda: Windows("to be or not to be", context=5, batch_size=3),
    "windows, held out": lambda: Windows(torch.arange(60) % 7, context=5, batch_size=3, holdout=0.2),
    "rollouts": lambda: Rollouts(corridor(), envs=3),
    "rollouts, grouped": lambda: Rollouts([corridor(), corridor()], envs=3),
    "tables": lambda: Tables(corridor()),
    "segments": lambda: Segments(corridor(), envs=3, length=8, passes=2, batch_size=12),
    "segments, grouped": lambda: Segments([corridor(), corridor()], envs=3, length=8),
    "replay": lambda: Memory(corridor(), envs=2, capacity=40, start=16, batch_size=8, every=3, updates_each=2),
    "episodes": lambda: Episodes(sinusoids, tasks=3, shots=4, queries=5),
    "episodes, arrays": lambda: Episodes((X, LABEL, SITE), tasks=3, shots=4, classes=2),
    "episodes, ways": lambda: Episodes((X, KIND), tasks=3, ways=5, shots=1, queries=3),
    "episodes, ragged": lambda: Episodes((X, KIND), tasks=3, ways=5, shots=(1, 4), queries=(2, 9)),
}


def missing():
    """Names in the catalogue that have no case here: a new method must join the contract."""
    known = {"objectives": set(OBJECTIVES), "strategies": {n.partition(",")[0] for n in STRATEGIES}}
    known["sources"] = {n.partition(",")[0] for n in SOURCES}
    return {f: sorted({e.name for e in entries(f)} - names) for f, names in known.items()}
