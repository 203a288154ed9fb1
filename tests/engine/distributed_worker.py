"""What each process runs in the tests of several processes, and what one process runs beside them.

`torchrun --nproc-per-node 2 distributed_worker.py FOLDER` runs every case and writes the parameters into
FOLDER; `python distributed_worker.py FOLDER` runs trainings in which rank 1 dies or hangs.
"""

import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a script it stands in its own folder
from tests.objectives.third_party.dqn import DQN
from tests.objectives.third_party.ppo import PPO

from weft import Classifier, Learner, Optimizer, weave
from weft.attacks import PGD
from weft.core import Corpus
from weft.core.objective import Output, reduce
from weft.core.random import normal, uniform
from weft.core.strategy import Strategy
from weft.data import FiniteMDP, sinusoids
from weft.engine.distributed import agree, anywhere, start, world
from weft.engine.engine import Engine
from weft.nets import MLP
from weft.objectives import GAN, REINFORCE, Classification, Regression
from weft.sources import Arrays, Episodes, Parquet, Rollouts, Segments, batchwise
from weft.sources import Replay as Memory
from weft.strategies import (
    AGEM,
    EMA,
    EWC,
    LBFGS,
    MAML,
    SAM,
    SGLD,
    SWA,
    AdversarialTraining,
    ANDMask,
    Laplace,
    LwF,
    Replay,
    SynapticIntelligence,
    TemporalANDMask,
)

# The cases are about processes, not about whether the method is at its best there.
warnings.filterwarnings("ignore", message="expected (tasks for|the same rows at every step)")

rng = np.random.default_rng(0)
X = rng.normal(size=(41, 4))
Y = (X[:, 0] + 0.5 * X[:, 1] * X[:, 2] > 0).astype(int)
SITE = np.repeat([0, 1, 2], [24, 10, 7])  # ragged, and odd after halving
WEIGHT = rng.uniform(0.5, 2.0, size=41)
PLAIN = Optimizer("sgd", lr=0.3)
COMMON = {"epochs": 2, "batch_size": 7, "dtype": "float64", "device": "cpu", "random_state": 3}


def net(inputs, outputs):
    return MLP(inputs, outputs, hidden=(8,), dropout=0.3)


def tree(learner):
    """Everything that training changes, by name."""
    found = {}
    for i, (_, state) in enumerate(learner.training_.runs):
        for kind in ("params", "buffers"):
            found.update({f"{i}.{kind}.{name}": t for name, t in getattr(state, kind).items()})
    return found


class Judged(Classification):
    """Measures that are no means over rows: from sums, and from the rows in their order."""

    def measure(self, batch):
        logits, true = self(batch).logits, batch["y"]
        said = logits.argmax(-1)
        sums = {"hit": said * true, "said": said + true}
        order = {"first": logits[:, 0].detach()}
        return {
            **super().measure(batch),
            "f1": Corpus(sums=sums, conclude=lambda n: 2 * n["hit"] / n["said"]),
            "order": Corpus(
                rows=order, conclude=lambda r: r["first"] @ torch.arange(1.0, 1 + len(r["first"])).to(r["first"])
            ),
        }


def corpus(**settings):
    """Evaluated a few rows at a time, so that there are several parts, and unequal ones."""
    learner = Learner(Judged(hidden=(8,)), validation=0.4, memory=1, **settings, **COMMON)
    return learner.fit(X, Y)


def losses(learner):
    names = [n for n in learner.history_[-1] if n not in ("seconds", "task")]
    return {f"history.{n}": torch.as_tensor(np.asarray(learner.history_[n], dtype=float)) for n in names}


def result(learner):
    return {**tree(learner), **losses(learner)}


def classify(strategy=None, *, weight=None, environment=SITE, net=net, **settings):
    learner = Classifier(net, strategy=strategy, **{**COMMON, **settings})
    return result(learner.fit(X, Y, environment=environment, sample_weight=weight))


def measured_in_parts(parts):
    learner = Classifier(net, **COMMON).fit(X, Y)
    engine, state = learner.training_.runs[0]
    batches = ({"x": torch.as_tensor(X[i::parts]), "y": torch.as_tensor(Y[i::parts])} for i in range(parts))
    return engine.measure(state, batches)


def in_sequence(strategy, **settings):
    learner = Classifier(net, strategy=strategy, **{**COMMON, **settings})
    for task, sign in (("first", 1.0), ("second", -1.0)):
        learner.partial_fit(sign * X, Y, classes=[0, 1], task=task, sample_weight=WEIGHT)
    engine, state = learner.training_.runs[0]
    if not settings:
        whole = Arrays(torch.as_tensor(X), y=torch.as_tensor(Y))
        if isinstance(strategy, EWC):
            engine.consolidate(state, whole, "in parts", rows=10)  # the last of them is one row
    found = result(learner)
    found.update(leaves(state.strategy[""], "kept"))
    return found


def leaves(tree, name):
    if not isinstance(tree, dict):
        return {name: tree}
    return {n: t for key, part in tree.items() for n, t in leaves(part, f"{name}.{key}").items()}


class Slope(Strategy):
    """A loss that needs its group whole: the squared slope of the group's mean loss along a scale of it."""

    def __init__(self, sees="whole groups"):
        self.sees = sees

    def wrap(self, loss, state):
        def steep(params, batch):
            output = loss(params, batch)
            mean = reduce(output.losses, output.weight)
            return Output(output.losses + mean.square(), weight=output.weight, buffers=output.buffers)

        return steep


class Buffers(nn.Module):
    """Buffers that a forward changes, whatever the rows are; and, with `follow`, one that follows them."""

    def __init__(self, inputs, outputs, follow=False):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.register_buffer("decay", torch.ones(3))
        self.register_buffer("turns", torch.zeros((), dtype=torch.int64))
        self.register_buffer("third", torch.full((), 1 / 3))
        self.register_buffer("mean", torch.zeros(inputs))
        self.follow = follow

    def forward(self, x):
        if self.training:
            self.decay.mul_(0.9)
            self.turns.add_(1)
            if self.follow:
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.layer(x) * self.third * self.decay.clone()[0]


class Carrying(Regression):
    """Chains that go on by draws, and a copy that follows the net slowly."""

    carried = ("chains", "slow")

    def build(self, spec):
        super().build(spec)
        self.register_buffer("chains", torch.zeros(3, 4))
        self.register_buffer("slow", torch.ones(1, 4))

    def forward(self, batch, player=""):
        output = super().forward(batch)
        if self.training:
            noise = normal(self.chains.shape, place="chains", shared=True, dtype=self.chains.dtype)
            self.chains = 0.9 * self.chains + 0.1 * self.net.weight.detach() + 0.3 * noise
            self.slow = 0.9 * self.slow + 0.1 * self.net.weight.detach()
        return replace(output, losses=output.losses + (self.chains @ self.net.weight.T).mean().square())


class Tokens(Regression):
    """Rows that count by the tokens that are drawn, some of them nothing."""

    provides = frozenset({"mass"})
    likelihood = False

    def forward(self, batch, player=""):
        kept = (uniform(batch["x"].shape, place="kept", dtype=torch.float64) < 0.4).double()
        gaps = (self.net(batch["x"]) - batch["x"]).square() * kept
        return Output(gaps.sum(1) / kept.sum(1).clamp_min(1.0) + 0.0 * batch["y"], mass=kept.sum(1))


def tokens(strategy=None, **settings):
    learner = Learner(Tokens(lambda: nn.Linear(4, 1)), strategy=strategy, **{**COMMON, **settings})
    return result(learner.fit(X, X[:, 0], environment=SITE, sample_weight=WEIGHT))


class Odd(nn.Module):
    """Drops weights of as many outputs as there are rows, and has time first, with as many times."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner, self.out = nn.Linear(inputs, 7, bias=False), nn.Linear(7, outputs)

    def forward(self, x):
        times = (x @ F.dropout(self.inner.weight, 0.4, self.training).T).T[:, :, None].expand(-1, -1, 3)
        return self.out(F.dropout(times, 0.4, self.training).mean(-1).T)


def few_shots(**settings):
    source = Episodes(sinusoids, tasks=5, shots=3, queries=4)
    learner = Learner(Regression(hidden=(8,)), strategy=MAML(inner_lr=0.05, inner_steps=2), steps=4)
    return result(learner.set_params(dtype="float64", random_state=1, device="cpu", **settings).fit(source))


def game(**settings):
    learner = Learner(GAN(latent=2, hidden=(8,), critic_steps=2), **{**COMMON, "epochs": None, "steps": 5, **settings})
    return result(learner.fit(X))


def moves_of():
    moves = torch.tensor([[[0.2, 0.8], [0.9, 0.1]], [[0.5, 0.5], [0.1, 0.9]]])
    return FiniteMDP(moves, torch.tensor([[0.0, 1.0], [0.5, 0.0]]), horizon=3)


def play():
    source = Rollouts(moves_of(), envs=5)
    learner = Learner(REINFORCE(hidden=(8,)), steps=4, dtype="float64", random_state=0, device="cpu")
    return result(learner.fit(source))


def remember(**settings):
    """A memory of steps, drawn by priority; a slow copy follows."""
    source = Memory(moves_of(), envs=2, capacity=60, start=20, batch_size=9, every=3, updates_each=2, **settings)
    learner = Learner(DQN(hidden=(8,), renew=3), steps=7, dtype="float64", random_state=0, device="cpu")
    return result(learner.fit(source))


def segments():
    source = Segments(moves_of(), envs=3, length=5, passes=2, batch_size=5)
    learner = Learner(PPO(hidden=(8,)), steps=8, dtype="float64", random_state=0, device="cpu")
    return result(learner.fit(source))


def from_file(**settings):
    """Rows that each process reads from a file of its own, a few row groups at a time."""
    with tempfile.TemporaryDirectory() as folder:
        table = pd.DataFrame(X, columns=["a", "b", "c", "d"]).assign(y=Y)
        table.to_parquet(f"{folder}/rows.parquet", row_group_size=6)
        columns = {"x": ["a", "b", "c", "d"], "y": "y"}
        source = Parquet(f"{folder}/rows.parquet", columns, batch_size=7, buffer=12, classes=2)
        common = {name: value for name, value in COMMON.items() if name != "batch_size"}
        return result(Learner(Classification(net), **common, **settings).fit(source))


@batchwise
def noisy(batch):
    return {**batch, "x": batch["x"] + normal(batch["x"].shape, place="noise", dtype=torch.float64)}


ATTACK = PGD(eps=0.1, steps=2, start="random")
CASES = {
    "erm, dropout, odd batches": lambda: classify(environment=None, clip=0.3),
    "erm, weighted, accumulated": lambda: classify(environment=None, weight=WEIGHT, accumulate=3),
    "erm, batches of one row": lambda: classify(environment=None, epochs=1, batch_size=1),
    "erm, validation, early stopping": lambda: classify(environment=None, epochs=6, validation=0.3, patience=1),
    "erm, draws of weights and time first": lambda: classify(environment=None, net=Odd),
    "mask, draws of weights and time first": lambda: classify(ANDMask(threshold=0.3), net=Odd),
    "erm, augmented": lambda: classify(environment=None, augment=lambda row: row + torch.randn(4)),
    "mask, augmented by the batch": lambda: classify(ANDMask(threshold=0.3), augment=noisy),
    "measured in one part": lambda: measured_in_parts(1),
    "measured in two parts": lambda: measured_in_parts(2),
    "measured in five parts": lambda: measured_in_parts(5),
    "mask, ragged environments": lambda: classify(ANDMask(threshold=0.3)),
    "mask, weighted": lambda: classify(ANDMask(threshold=1.0), weight=WEIGHT),
    "mask, environments alike": lambda: classify(ANDMask(threshold=0.3), weighting="group"),
    "mask, every example": lambda: classify(ANDMask(threshold=0.1, each="example"), environment=None),
    "mask, every example of environments": lambda: classify(
        weave(AdversarialTraining(ATTACK), ANDMask(threshold=0.1, each="example")), weight=WEIGHT
    ),
    "mask over steps": lambda: classify(TemporalANDMask(threshold=0.3), environment=None, weight=WEIGHT),
    "tasks, true fisher": lambda: in_sequence(EWC(strength=5.0)),
    "tasks, sampled fisher": lambda: in_sequence(EWC(strength=5.0, fisher="sampled")),
    "tasks, kronecker": lambda: in_sequence(Laplace(strength=5.0, curvature="kronecker")),
    "tasks, low rank": lambda: in_sequence(Laplace(strength=5.0, curvature="low_rank", rank=3, penalties="per_task")),
    "tasks, full": lambda: in_sequence(Laplace(strength=5.0, curvature="full")),
    "tasks, path": lambda: in_sequence(SynapticIntelligence()),
    "tasks, distilled": lambda: in_sequence(LwF()),
    "tasks, replay": lambda: in_sequence(Replay(size=20, rows=8)),
    "tasks, projected": lambda: in_sequence(AGEM(size=20, rows=8)),
    "episodes": few_shots,
    "episodes, replicas": lambda: few_shots(replicas=2),
    "game": game,
    "game, replicas": lambda: game(replicas=2),
    "adversarial": lambda: classify(AdversarialTraining(ATTACK), environment=None),
    "woven": lambda: classify(weave(AdversarialTraining(ATTACK), EWC(strength=1.0), ANDMask(threshold=0.3))),
    "replicas": lambda: classify(environment=None, replicas=2, validation=0.3),
    "mask, replicas": lambda: classify(
        ANDMask(), weight=WEIGHT, replicas={"strategy__threshold": [0.3, 1.0], "random_state": [1, 2]}
    ),
    "mask, every example, replicas": lambda: classify(ANDMask(threshold=0.1, each="example"), replicas=2),
    "tasks, replicas": lambda: in_sequence(EWC(strength=5.0), replicas=2),
    "whole groups, mean": lambda: classify(Slope()),
    "whole groups, each": lambda: classify(weave(Slope(), ANDMask(threshold=0.3)), weight=WEIGHT),
    "buffers": lambda: result(Classifier(Buffers, **COMMON).fit(X, Y, sample_weight=WEIGHT)),
    "buffers of groups": lambda: result(
        Classifier(Buffers, strategy=ANDMask(threshold=0.3), **COMMON).fit(X, Y, environment=SITE)
    ),
    "carried": lambda: result(
        Learner(Carrying(lambda: nn.Linear(4, 1)), accumulate=2, **COMMON).fit(X, X[:, 0], sample_weight=WEIGHT)
    ),
    "carried of groups, replicas": lambda: result(
        Learner(Carrying(lambda: nn.Linear(4, 1)), strategy=ANDMask(threshold=0.3), replicas=2, **COMMON).fit(
            X, X[:, 0], environment=SITE
        )
    ),
    "a corpus": lambda: losses(corpus()),
    "a corpus, replicas": lambda: losses(corpus(replicas=2)),
    "mass": lambda: tokens(accumulate=2, validation=0.3),
    "mass of groups": lambda: tokens(ANDMask(threshold=0.3)),
    "mass of groups alike, replicas": lambda: tokens(
        weave(ANDMask(threshold=0.3), SAM(radius=0.1)), weighting="group", replicas=2
    ),
    "mass of examples": lambda: tokens(ANDMask(threshold=0.1, each="example")),
    "ended by a callback": lambda: classify(environment=None, callbacks=[lambda record: record["epoch"] == 1]),
    "rollouts": play,
    "segments": segments,
    "a memory of steps": remember,
    "a memory of steps, by priority": lambda: remember(priority=0.6),
    "rows of a file": from_file,
    "rows of a file, replicas": lambda: from_file(replicas=2),
    "sharpness": lambda: classify(SAM(radius=0.2), environment=None),
    "sharpness under a mask": lambda: classify(weave(ANDMask(threshold=0.3), SAM(radius=0.2)), weight=WEIGHT),
    "sharpness, replicas": lambda: classify(
        SAM(), environment=None, replicas={"strategy__radius": [0.1, 0.3], "random_state": [1, 2]}
    ),
    "langevin": lambda: classify(SGLD(temperature=0.5), environment=None, optimizer=PLAIN),
    "quasi-newton": lambda: classify(LBFGS(history=3), environment=None, optimizer=PLAIN),
    "quasi-newton of environments, replicas": lambda: classify(
        weave(ANDMask(threshold=0.0), LBFGS(history=3)), weighting="group", optimizer=PLAIN, replicas=2
    ),
    "averages": lambda: classify(weave(EMA(decay=0.7), SWA(start=3)), environment=None, validation=0.3, patience=1),
}


class Coupled(Regression):
    decomposable = False


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def refusals():
    """The messages of what must not be shared."""
    rank = world()[0]
    normed = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    untracked = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2))
    centred = nn.Sequential(nn.Linear(4, 6), Centred(), nn.Linear(6, 2))
    tries = {
        "batch statistics": lambda: Classifier(normed, **COMMON).fit(X, Y),
        "statistics of no buffer": lambda: Classifier(untracked, **COMMON).fit(X, Y),
        "examples": lambda: Classifier(untracked, strategy=ANDMask(each="example"), **COMMON).fit(X, Y),
        "rows mixed": lambda: Classifier(centred, **COMMON).fit(X, Y),
        "rows mixed, replicas": lambda: Classifier(centred, **COMMON, replicas=2, strategy=ANDMask()).fit(
            X, Y, environment=SITE
        ),
        "buffers": lambda: Classifier(lambda i, o: Buffers(i, o, follow=True), **COMMON).fit(X, Y),
        "coupled": lambda: Learner(Coupled("linear"), **COMMON).fit(X, X[:, 0]),
        "seeds": lambda: Classifier(**{**COMMON, "random_state": rank}).fit(X, Y),
        "data": lambda: Classifier(**COMMON).fit(X[rank:], Y[rank:]),
    }
    for name, attempt in tries.items():
        try:
            attempt()
        except ValueError as error:
            yield f"{name}: {error}"


def everything(folder):
    """Every case on this rank, written to the folder."""
    rank, _ = start()
    # Said of strategies that do nothing here: the cases are small, and ask whether ranks agree.
    warnings.filterwarnings("ignore", message="expected (tasks|the same rows at every step) for")
    for i, (_, case) in enumerate(CASES.items()):
        save_file({n: t.contiguous() for n, t in case().items()}, folder / f"{i}-{rank}.safetensors")
    said = [*refusals(), f"agreed on {agree(rank + 5)}", f"anywhere {anywhere(rank == 1)} {anywhere(False)}"]
    (folder / f"said-{rank}.txt").write_text("\n".join(said))
    torch.distributed.destroy_process_group()  # as at the exit
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"threads-{rank}.txt").write_text("\n".join(names))


def cut_short(how):
    """A training in whose fifth step rank 1 dies or hangs."""
    rank, _ = start()

    step = Engine.step

    def cut(self, state, batch):
        if rank == 1 and state.step == 4:
            if how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return step(self, state, batch)

    Engine.step = cut
    Classifier(steps=50, batch_size=8, device="cpu", random_state=0).fit(X, Y)


def lose(folder):
    """Both trainings, each on two processes forked from this one; rank 0's exit status and errors to the folder."""
    children = {}
    for how in ("die", "hang"):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                os.dup2(os.open(folder / f"{how}-{rank}.txt", os.O_CREAT | os.O_WRONLY), 2)
                return cut_short(how)
            children[how, rank] = pid
    for how in ("die", "hang"):
        status = os.waitstatus_to_exitcode(os.waitpid(children[how, 0], 0)[1])
        (folder / f"{how}-status.txt").write_text(str(status))
    os.kill(children["hang", 1], signal.SIGKILL)
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    (everything if "RANK" in os.environ else lose)(Path(sys.argv[1]))
