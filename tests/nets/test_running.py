"""Running statistics: numpy's over everything played, carried, and changed by nothing but play."""

import numpy as np
import pytest
import torch
from tests.objectives.third_party.normalized import NormalizedPPO
from tests.objectives.third_party.ppo import PPO

import weft
from weft import Learner
from weft.core import Objective, Output
from weft.core.random import categorical
from weft.data import CartPole
from weft.nets import MLP, Running, RunningReturn
from weft.sources import DAgger, Replay, Rollouts, Segments

DISCOUNT = 0.9


class Watcher(Objective):
    """A policy that learns nothing much, and writes down all that it is shown to learn from."""

    on_policy = False
    fields = ("observation", "action", "reward", "terminated", "truncated")
    carried = ("seen.*", "earned.*")
    progress = ("return", "max")
    shown = None

    def __init__(self, *, envs=4):
        super().__init__()
        self.envs = envs

    def build(self, spec):
        self.net = MLP(spec["observation"].shape[0], spec["action"].classes, hidden=(8,))
        self.seen = Running(spec["observation"].shape)
        self.earned = RunningReturn(self.envs, discount=DISCOUNT)

    def witness(self, batch):
        if self.shown is not None:
            self.shown.append({name: value.detach().clone() for name, value in batch.items()})
        return {**self.seen.after(batch, "observation", name="seen"), **self.earned.after(batch, name="earned")}

    def forward(self, batch, player=""):
        logits = self.net(self.seen(batch["observation"])).log_softmax(-1)
        return Output(-logits.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1))

    def sample_action(self, observation):
        return categorical(self.net(self.seen(observation)), place="action")

    def act(self, observation):
        return self.net(self.seen(observation)).argmax(-1)


SOURCES = {
    "segments": lambda: Segments(CartPole(), envs=4, length=12, passes=2),
    "rollouts": lambda: Rollouts(CartPole(), envs=4, horizon=30),
    "replay": lambda: Replay(CartPole(), envs=4, start=40, every=3, batch_size=16),
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def learner(**settings):
    return Learner(Watcher(), **{"steps": 8, "every": 1, "random_state": 0, "dtype": "float64", **settings})


def buffers_of(learner):
    return learner.training_.runs[0].state.buffers


def everything(played):
    """By numpy: all observations, and the discounted return after each step."""
    observations, returns, last = [], [], np.zeros(4)
    for batch in played:
        mask = batch.get("mask", torch.ones_like(batch["reward"])).numpy() > 0
        observations.append(batch["observation"].numpy()[mask])
        over = (batch["terminated"] | batch["truncated"]).numpy()
        for t in range(mask.shape[1]):
            last = np.where(mask[:, t], batch["reward"][:, t].numpy() + DISCOUNT * last, last)
            returns += last[mask[:, t]].tolist()
            last = np.where(over[:, t], 0.0, last)
    return np.concatenate(observations), np.array(returns), last


def test_statistics_are_numpys_over_everything_played(source, monkeypatch):
    played = []
    monkeypatch.setattr(Watcher, "shown", played)
    trained = learner().fit(source)
    found = buffers_of(trained)
    observations, returns, last = everything(played)
    assert found["seen.count"] == len(observations) == len(returns) == found["earned.count"]
    assert len(observations) == pytest.approx(trained.history_["env_steps"][-1])
    np.testing.assert_allclose(found["seen.mean"], observations.mean(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["seen.squares"] / found["seen.count"], observations.var(0), rtol=1e-10)
    np.testing.assert_allclose(found["earned.squares"] / found["earned.count"], returns.var(), rtol=1e-10)
    np.testing.assert_allclose(found["earned.last"], last, rtol=1e-12)
    module = trained.module()
    x = torch.as_tensor(observations[:5])
    wanted = (observations[:5] - observations.mean(0)) / np.sqrt(observations.var(0) + 1e-8)
    np.testing.assert_allclose(module.seen(x), wanted.clip(-10, 10), rtol=1e-9)
    np.testing.assert_allclose(
        module.earned(torch.ones(1, dtype=torch.float64)), 1 / np.sqrt(returns.var() + 1e-8), rtol=1e-9
    )


def test_an_episode_that_goes_on_is_not_begun_anew_at_a_segment():
    whole, short = (
        buffers_of(learner(steps=n).fit(Segments(CartPole(), envs=4, length=length)))["earned.last"]
        for n, length in ((1, 6), (6, 1))
    )
    exact = 10 * (1 - DISCOUNT**6)  # no CartPole falls sooner
    np.testing.assert_allclose(whole, exact)
    np.testing.assert_allclose(short, exact)


def test_replicas_have_those_of_single_runs(source):
    both = learner(replicas=2).fit(source)
    for k in range(2):
        one = learner(random_state=k).fit(source)
        own = buffers_of(both.replica(k))
        for name, value in buffers_of(one).items():
            torch.testing.assert_close(own[name], value, rtol=1e-10, atol=1e-12)


class Killed(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_resumed_run_is_the_uninterrupted_one(source, replicas, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def stop(record):
        if record["step"] == 6:
            raise Killed

    whole = learner(replicas=replicas).fit(source)
    with pytest.raises(Killed):
        learner(replicas=replicas, folder=tmp_path, callbacks=[stop]).fit(source)
    resumed = weft.load(tmp_path, objective=Watcher(), callbacks=[]).resume(source)
    for name, value in buffers_of(whole).items():
        assert torch.equal(buffers_of(resumed)[name], value), name
    for p, q in zip(resumed.objective_.parameters(), whole.objective_.parameters(), strict=True):
        assert torch.equal(p, q)


def test_looks_do_not_change_them(source):
    plain = learner().fit(source)
    watched = learner(validation=Rollouts(CartPole(), envs=4, greedy=True)).fit(source)
    for name, value in buffers_of(plain).items():
        assert torch.equal(buffers_of(watched)[name], value), name
    before = {name: value.clone() for name, value in buffers_of(plain).items()}
    plain.module().act(torch.ones(3, 4, dtype=torch.float64))
    for name, value in before.items():
        assert torch.equal(buffers_of(plain)[name], value), name
    batch = next(source.once(plain.training_.runs[0].state, 5))
    assert batch["observation"].shape[-1] == 4
    for name, value in before.items():
        assert torch.equal(buffers_of(plain)[name], value), name


def test_worlds_as_groups_are_witnessed_together():
    worlds = [CartPole(), CartPole()]
    settings = {"steps": 2, "random_state": 0, "strategy": "and-mask"}
    found = Learner(Watcher(envs=8), **settings).fit(Segments(worlds, envs=4, length=6))
    assert buffers_of(found)["seen.count"] == buffers_of(found)["earned.count"] == 2 * 2 * 4 * 6
    assert buffers_of(found)["earned.last"].shape == (8,)
    with pytest.raises(ValueError, match=r"of 4 rows that are played on, .*got \(8, 6\); say envs as the source does"):
        Learner(Watcher(), **settings).fit(Segments(worlds, envs=4, length=6))


def test_an_expert_s_world_is_witnessed_too():
    class Labelled(Watcher):
        fields = ("observation", "action")

    def expert(observation):
        return (observation.sum(-1) > 0).long()

    found = Learner(Labelled(), steps=6, random_state=0).fit(
        DAgger(CartPole(), expert, envs=4, length=5, updates_each=2)
    )
    state = found.training_.runs[0].state
    assert state.buffers["seen.count"] == 60
    source = DAgger(CartPole(), expert, envs=4, length=5)
    state.source = source.init(state)
    next(source.once(state, 5))  # there is nothing yet: what the expert does, without a trace
    assert state.buffers["seen.count"] == 60
    assert state.source["filled"] == 0
    assert not state.source["memory"]["observation"].any()
    assert not state.source["0"]["steps"].any()


# --- the modules --------------------------------------------------------------------------------------


def taken(module, buffers, name="m"):
    module.load_state_dict({key.removeprefix(f"{name}."): value for key, value in buffers.items()})


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e-3])
def test_parts_make_a_whole_in_single_precision(scale):
    rng = np.random.default_rng(0)
    x = (5.0 + rng.normal(size=(3000, 2))) * scale
    module, rest = Running((2,)), torch.as_tensor(x, dtype=torch.float32)
    for part in rest.split([1, 2, 500, 1500, 997]):
        taken(module, module.after({"x": part.unsqueeze(0)}, "x", name="m"))
    np.testing.assert_allclose(module.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(module.variance, x.var(0), rtol=1e-3)


def test_before_anything_is_witnessed_rows_are_clipped_alone():
    assert Running((1,))(torch.tensor([[3.0], [-50.0]])).flatten().tolist() == [3.0, -10.0]
    assert Running((1,), clip=None)(torch.tensor([[-50.0]])).item() == pytest.approx(-50.0)
    assert RunningReturn(1)(torch.tensor([3.0])).item() == pytest.approx(3.0)


def test_what_never_changes_is_nothing():
    module = Running((1,))
    taken(module, module.after({"x": torch.full((2, 5, 1), 7.0)}, "x", name="m"))
    assert module(torch.tensor([[7.0], [8.0]])).flatten().tolist() == [0.0, 10.0]


def test_what_comes_after_the_end_does_not_count():
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    x = torch.tensor([[[1.0], [3.0], [1000.0]]])
    module = Running((1,))
    taken(module, module.after({"x": x, "mask": mask}, "x", name="m"))
    assert (module.count.item(), module.mean.item(), module.variance.item()) == (2, 2.0, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Running((0,)), "shape to be the shape of a row"),
        (lambda: Running((2,), clip=0.0), "clip to be a number > 0"),
        (lambda: Running((2,), eps=-1.0), "eps to be a number > 0"),
        (lambda: RunningReturn(0), "envs to be an integer >= 1"),
        (lambda: RunningReturn(2, discount=1.5), r"discount to be a number in \[0, 1\]"),
        (lambda: Running((2,)).after({"x": torch.zeros(3, 4, 5)}, "x", name="m"), r"rows of shape \(2,\), got"),
        (lambda: Running((2,)).after({"x": torch.zeros(2)}, "x", name="m"), r"rows of shape \(2,\), got"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_as_many_rows_as_are_played():
    with pytest.raises(ValueError, match=r"'reward' of 4 rows .* got \(8, 12\); say envs as the source does"):
        learner().fit(Segments(CartPole(), envs=8, length=12))


# --- what it is for -----------------------------------------------------------------------------------


class Far(CartPole):
    """CartPole on a scale of 10,000, from there on, with its rewards in thousandths."""

    def reset(self, keys):
        position, seen = super().reset(keys)
        return position, 1e4 * (1.0 + seen)

    def step(self, position, action, keys=None):
        position, seen, reward, over = super().step(position, action, keys)
        return position, 1e4 * (1.0 + seen), reward * 1e-3, over


@pytest.mark.turns("src/weft/nets/running.py", "tests/objectives/third_party/normalized.py")
def test_ppo_learns_on_another_scale_with_it_and_not_without():
    lengths = {}
    for kind in (PPO, NormalizedPPO):
        source = Segments(Far(), envs=8, length=32, passes=4, batch_size=64)
        trained = Learner(kind(), env_steps=20_000, every=100, replicas=2, random_state=0).fit(source)
        lengths[kind] = trained.history_["length"][-1]
    assert (lengths[PPO] < 90).all()
    assert (lengths[NormalizedPPO] > 130).all()
