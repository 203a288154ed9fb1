"""CartPole by PPO and by DQN: seconds of training for each agent, beside stable-baselines3 and beside bare loops.

PPO learns for 100,000 steps and DQN for 50,000, by the settings of RL Baselines3 Zoo on all sides (but that PPO's clip
stays as it is, on all sides). Weft trains one agent, and 64 at once as replicas; in its own world of tensors, and in
gymnasium's ("CartPole-v1"), which is the peer's. The peer trains one agent in its best way: on as many threads as are
quickest, which is tried; and, to fill the machine, one agent on each core at the same time. The bare loops are PyTorch
over the same tensors, the best that we know to write by hand, for one agent; they look after nothing else. What each
agent has learned is told as well: the mean return of 100 fresh episodes by the best action.

    python benchmarks/agents.py [ppo dqn] [--peers PYTHON] [--out FILE] [--share SHARE] [--only TEXT]

Each contestant has a process of its own, and trains a little before its clock starts; they follow each other. What was
measured before stays in the file where it is not measured anew. A whole run takes some twenty minutes on 16 cores,
most of it DQN's 64 agents (a product of matrices for each); `--only` runs it in parts.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

STEPS = {"ppo": 100_000, "dqn": 50_000}
AGENTS, EPISODES, ASKED = 64, 100, 475.0
FASTER, PRICE = 10.0, 1.3
WARM = {"ppo": 512, "dqn": 1280}  # steps before the clock starts

Trained = dict[str, Any]
"""Seconds, and the mean return that each agent earns."""


# --- weft ---------------------------------------------------------------------------------------------------------


def weft_agents(method: str, world: str, agents: int, steps: int) -> Trained:
    """So many agents at once."""
    from weft import Learner, Optimizer
    from weft.data import CartPole
    from weft.objectives import DQN, PPO
    from weft.sources import Rollouts

    played: Any = CartPole() if world == "tensors" else "CartPole-v1"

    def trained(steps: int) -> Any:
        if method == "ppo":
            objective: Any = PPO(discount=0.98, trace=0.8)
            source = objective.plays(played, envs=8, length=32, passes=20, batch_size=256)
            settings: dict[str, Any] = {"optimizer": Optimizer("adam", lr=1e-3, eps=1e-5), "schedule": "linear"}
        else:
            objective = DQN(hidden=(256, 256))
            source = objective.plays(played, every=256, updates_each=128)
            settings = {"optimizer": Optimizer("adam", lr=2.3e-3)}
        many = {} if agents == 1 else {"replicas": agents}
        clip = {"ppo": 0.5, "dqn": 10.0}[method]
        learner = Learner(objective, env_steps=steps, clip=clip, random_state=0, device="cpu", **settings, **many)
        return learner.fit(source)

    trained(WARM[method])
    started = time.perf_counter()
    learner = trained(steps)
    seconds = time.perf_counter() - started
    told = Rollouts(CartPole(), envs=EPISODES, greedy=True).judge(learner.training_.runs[0].state)
    return {"seconds": seconds, "returns": told["return"].reshape(-1).tolist()}


# --- the peer -----------------------------------------------------------------------------------------------------


def peer(method: str, steps: int, threads: int) -> Trained:
    """One agent, on as many threads as are quickest."""
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    def trained(steps: int) -> tuple[Any, float]:
        world = make_vec_env("CartPole-v1", n_envs=8 if method == "ppo" else 1)
        if method == "ppo":
            settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
            settings |= {"learning_rate": lambda left: 1e-3 * left, "clip_range": 0.2, "ent_coef": 0.0}
            model: Any = PPO("MlpPolicy", world, device="cpu", **settings)
        else:
            settings = {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000}
            settings |= {"gamma": 0.99, "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128}
            settings |= {"exploration_fraction": 0.16, "exploration_final_eps": 0.04}
            model = DQN("MlpPolicy", world, policy_kwargs={"net_arch": [256, 256]}, device="cpu", **settings)
        started = time.perf_counter()
        model.learn(steps)
        return model, time.perf_counter() - started

    quickest: dict[int, float] = {}
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        trained(WARM[method])
        quickest[count] = trained(4 * WARM[method])[1] if threads > 1 else 0.0
    best = min(quickest, key=lambda count: quickest[count])
    torch.set_num_threads(best)
    model, seconds = trained(steps)
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", n_envs=10), EPISODES)
    return {"seconds": seconds, "returns": [float(mean)], "threads": best}


# --- by hand ------------------------------------------------------------------------------------------------------


def mlp(activation: type[nn.Module], width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(4, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, outputs)
    )


class Carts:
    """CartPoles of tensors that begin anew where they end."""

    def __init__(self, count: int) -> None:
        from weft.data import CartPole

        self.world, self.age = CartPole(), torch.zeros(count, dtype=torch.int64)
        self.position = self.fresh(count)

    def fresh(self, count: int) -> Tensor:
        return (torch.rand(count, 4, dtype=torch.float64) - 0.5) * 0.1

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What is seen after it, the reward, both ends, and what is seen at the next turn."""
        self.position, after, reward, ended = self.world.step(self.position, action)
        self.age += 1
        over, seen = ended | (self.age >= 500), after
        if bool(over.any()):
            which = over.nonzero().squeeze(-1)
            self.position[which], self.age[which] = self.fresh(len(which)), 0
            seen = self.position.float()
        return after, reward, ended, over, seen


@torch.no_grad()
def earned(logits: Callable[[Tensor], Tensor]) -> list[float]:
    """The mean return of fresh episodes by the best action."""
    carts = Carts(EPISODES)
    going, total = torch.ones(EPISODES, dtype=torch.bool), torch.zeros(EPISODES)
    for _ in range(500):
        total += going
        carts.position, _, _, ended = carts.world.step(carts.position, logits(carts.position.float()).argmax(-1))
        going &= ~ended
    return [float(total.mean())]


def bare_ppo(steps: int) -> nn.Module:
    """PPO of one agent."""
    envs, length, passes, discount, trace = 8, 32, 20, 0.98, 0.8
    policy, critic, carts = mlp(nn.Tanh, 64, 2), mlp(nn.Tanh, 64, 1), Carts(envs)
    for net, gain in ((policy, 0.01), (critic, 1.0)):
        for layer in net[::2]:
            nn.init.orthogonal_(layer.weight, gain if layer is net[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
    params = [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(params, lr=1e-3, eps=1e-5, fused=True)
    segments, seen = steps // (envs * length), carts.position.float()
    for turn in range(segments):
        kept: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand(length, envs, 2)))
            for t in range(length):
                action = (policy(seen) + noise[t]).argmax(-1)
                after, reward, ended, over, then = carts.step(action)
                kept.append((seen, action, reward, ended, over, after))
                seen = then
            rows, action, reward, ended, over, after = (torch.stack(part) for part in zip(*kept, strict=True))
            value, beyond = critic(rows).squeeze(-1), critic(after).squeeze(-1)
            error = reward + discount * beyond * ~ended - value
            last, advantage = torch.zeros(envs), torch.empty_like(error)
            for t in reversed(range(length)):
                last = advantage[t] = error[t] + discount * trace * last * ~over[t]
            goal = (advantage + value).flatten()
            gain = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
            rows, action = rows.flatten(0, 1), action.reshape(-1, 1)
            before = policy(rows).log_softmax(-1).gather(-1, action).squeeze(-1)
        for k in range(passes):
            order = torch.randperm(envs * length)
            own, did, good, aim, was = (part[order] for part in (rows, action, gain, goal, before))
            ratio = (policy(own).log_softmax(-1).gather(-1, did).squeeze(-1) - was).exp()
            actor = -torch.minimum(ratio * good, ratio.clamp(0.8, 1.2) * good).mean()
            loss = actor + 0.5 * (critic(own).squeeze(-1) - aim).square().mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.5)
            adam.param_groups[0]["lr"] = 1e-3 * (1 - (turn * passes + k) / (segments * passes))
            adam.step()
    return policy


def bare_dqn(steps: int) -> nn.Module:
    """DQN of one agent."""
    start, every, updates, size, discount = 1000, 256, 128, 64, 0.99
    net, carts = mlp(nn.ReLU, 256, 2), Carts(1)
    slow = copy.deepcopy(net)
    params = list(net.parameters())
    adam = torch.optim.Adam(params, lr=2.3e-3, fused=True)
    memory = [torch.zeros(steps, *shape) for shape in ((4,), (), (), (4,), ())]
    turns, seen, count = (steps - start) // every, carts.position.float(), 0
    for turn in range(turns):
        share = 1.0 - (1.0 - 0.04) * min(1.0, turn / turns / 0.16)
        with torch.no_grad():
            for length, stray in ((start, 1.0), (every, share)) if turn == 0 else ((every, share),):
                even, which = torch.rand(length) < stray, torch.randint(2, (length, 1))
                for t in range(length):
                    action = which[t] if even[t] else net(seen).argmax(-1)
                    after, reward, ended, _, then = carts.step(action)
                    for part, value in zip(memory, (seen, action, reward, after, ended), strict=True):
                        part[count] = value[0]
                    seen, count = then, count + 1
        slow.load_state_dict(net.state_dict())  # renewed every 128 updates, or every 10 steps, is at each play
        for _ in range(updates):
            drawn = torch.randint(count, (size,))
            rows, action, reward, after, ended = (part[drawn] for part in memory)
            with torch.no_grad():
                aim = reward + discount * (1 - ended) * slow(after).amax(-1)
            loss = huber_loss(net(rows).gather(1, action.long().unsqueeze(1)).squeeze(1), aim)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 10.0)
            adam.step()
    return net


def bare(method: str, steps: int) -> Trained:
    """One agent by hand."""
    train = {"ppo": bare_ppo, "dqn": bare_dqn}[method]
    torch.manual_seed(0)
    train(WARM[method])
    started = time.perf_counter()
    net = train(steps)
    return {"seconds": time.perf_counter() - started, "returns": earned(net)}


# --- who is asked, and what is made of it ---------------------------------------------------------------------------

WORLDS = ("tensors", "gymnasium")
CORES = len(os.sched_getaffinity(0))
MANY = f"weft, {AGENTS} agents"
PEER, EVERY_CORE = "stable-baselines3", "stable-baselines3, one on each core"
CONTESTANTS: dict[str, Callable[[str, int], Trained]] = {
    "bare loop, tensors": bare,
    "weft, one agent, tensors": lambda method, steps: weft_agents(method, "tensors", 1, steps),
    "weft, one agent, gymnasium": lambda method, steps: weft_agents(method, "gymnasium", 1, steps),
    PEER: lambda method, steps: peer(method, steps, CORES),
    f"{MANY}, tensors": lambda method, steps: weft_agents(method, "tensors", AGENTS, steps),
    f"{MANY}, gymnasium": lambda method, steps: weft_agents(method, "gymnasium", AGENTS, steps),
    EVERY_CORE: lambda method, steps: peer(method, steps, 1),
}
SIDES = (
    *((f"{MANY}, {world}", PEER, "at least", FASTER) for world in WORLDS),
    ("weft, one agent, tensors", "bare loop, tensors", "at most", PRICE),
    *((f"weft, one agent, {world}", PEER, "", None) for world in WORLDS),
    *((f"{MANY}, {world}", EVERY_CORE, "", None) for world in WORLDS),
)


def asked(name: str, method: str, steps: int, python: str) -> Trained:
    """A contestant in its own process, or in one on each core; the seconds are those of an agent."""
    from run import SETTINGS

    together, agents = (CORES if name == EVERY_CORE else 1), (AGENTS if name.startswith(MANY) else 1)
    threads = CORES if name == PEER or name.startswith(MANY) else 1
    command = [python, "-W", "ignore", __file__, method, "--child", name, "--steps", str(steps)]
    told = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": str(threads)}
    running = [subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True) for _ in range(together)]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        return {"failed": f"ended with {[process.returncode for process in running]}"}
    each = [json.loads(text.strip().splitlines()[-1]) for text in said]
    whole, returns = max(one["seconds"] for one in each), [value for one in each for value in one["returns"]]
    solved = sum(value >= ASKED for value in returns) / len(returns)
    line = {"seconds an agent": whole / (together * agents), "seconds": whole, "agents": together * agents}
    line |= {"threads": each[0].get("threads", threads), "return": statistics.mean(returns), "solved": solved}
    return {**line, "world": "tensors" if "tensors" in name else "gymnasium", "env_steps": steps}


def judged(lines: dict[str, Trained]) -> list[dict[str, Any]]:
    """The comparisons whose both sides were measured."""
    rows = []
    for ours, other, how, bound in SIDES:
        mine, theirs = (lines.get(name, {}).get("seconds an agent") for name in (ours, other))
        if mine and theirs and lines[ours]["env_steps"] == lines[other]["env_steps"]:
            ratio = mine / theirs if how == "at most" else theirs / mine
            met = None if bound is None else ratio <= bound if how == "at most" else ratio >= bound
            unit = "of its time" if how == "at most" else "as fast"
            target = f"{how} {bound:g}" if bound else ""
            rows.append({"ours": ours, "beside": other, "ratio": ratio, "unit": unit, "target": target, "met": met})
    return rows


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["ppo", "dqn"])
    parser.add_argument("--peers", default=sys.executable, help="the Python of the peers' environment")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps, for a trial")
    parser.add_argument("--only", default="", help="contestants whose name holds this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agents.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        print(json.dumps(CONTESTANTS[given.child](given.methods[0], given.steps)))
        return
    if unknown := sorted(set(given.methods) - set(STEPS)):
        parser.error(f"expected methods among {', '.join(STEPS)}, got {', '.join(unknown)}")
    kept = json.loads(given.out.read_text())["methods"] if given.out.exists() else {}
    about = {"machine": platform.processor() or "cpu", "cores": CORES, "python": platform.python_version()}
    about |= {"command": "python benchmarks/agents.py", "versions": versions(given.peers)}
    for method in given.methods:
        lines = kept.setdefault(method, {"lines": {}})["lines"]
        for name in CONTESTANTS:
            if given.only in name:
                python = given.peers if "baselines" in name else sys.executable
                lines[name] = asked(name, method, round(given.share * STEPS[method]), python)
                print(method, name, lines[name], flush=True)
                kept[method]["comparisons"] = judged(lines)
                date = datetime.now(UTC).isoformat(timespec="seconds")
                given.out.write_text(json.dumps({"date": date, **about, "methods": kept}, indent=1) + "\n")
        for row in kept[method].get("comparisons", []):
            print(method, row, flush=True)


def versions(python: str) -> dict[str, str]:
    """Of the peer and its world, where it lives, and of torch on both sides."""
    code = "import gymnasium, stable_baselines3, torch; print(stable_baselines3.__version__, gymnasium.__version__, "
    code += "torch.__version__)"
    found = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    names = ("stable-baselines3", "gymnasium", "torch beside it")
    return {"torch": torch.__version__, **dict(zip(names, found.stdout.split(), strict=False))}


if __name__ == "__main__":
    main()
