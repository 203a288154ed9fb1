"""PPO where observations and rewards are of any scale: both are scaled by what was played so far."""

from tests.objectives.third_party.ppo import PPO

from weft.nets import Running, RunningReturn


class NormalizedPPO(PPO):
    """PPO on scaled observations and rewards; `envs` as the source has them."""

    carried = ("seen.*", "earned.*")

    def __init__(self, *, envs=8, hidden=(64, 64), discount=0.98, trace=0.8, eps=0.2, value=0.5, entropy=0.0):
        super().__init__(hidden=hidden, discount=discount, trace=trace, eps=eps, value=value, entropy=entropy)
        self.envs = envs

    def build(self, spec):
        super().build(spec)
        self.seen = Running(spec["observation"].shape)
        self.earned = RunningReturn(self.envs, discount=self.discount)

    def witness(self, batch):
        return {**self.seen.after(batch, "observation", name="seen"), **self.earned.after(batch, name="earned")}

    def _scaled(self, batch):
        scaled = {name: self.seen(batch[name]) for name in ("observation", "next_observation")}
        return {**batch, **scaled, "reward": self.earned(batch["reward"])}

    def credit(self, batch):
        return super().credit(self._scaled(batch))

    def forward(self, batch, player=""):
        return super().forward(self._scaled(batch))

    def _explained(self, batch):
        return super()._explained(self._scaled(batch))

    def sample_action(self, observation):
        return super().sample_action(self.seen(observation))

    def act(self, observation):
        return super().act(self.seen(observation))
