"""On a GPU: PPO on CartPole, play and updates recorded as one CUDA graph, for one agent and for 2,048 as replicas.

    python benchmarks/agents_gpu.py [--out FILE]

The settings are PureJaxRL's: 4 episodes side by side, segments of 128 steps, 4 passes in 4 parts, 64-64 tanh nets, Adam
at 2.5e-4 falling linearly; 500,000 steps are 976 segments. What is timed are whole segments with their updates, some of
them; seconds are for all 976. Beside it the same loop by hand in PyTorch for one agent, over the same tensors, on the
CPU and eager on the GPU: the faster is the "one PyTorch agent" of PureJaxRL's published comparison (2,048 agents in
half its time, on other machines, and its PyTorch agent plays gymnasium's world, which costs more).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from harness import engine_of
from torch import Tensor, nn

from weft.core.optimizer import Optimizer
from weft.core.random import fold, key_of
from weft.data import CartPole
from weft.engine.capture import Captured
from weft.objectives import PPO
from weft.sources import Segments
from weft.strategies import ERM

ENVS, LENGTH, PASSES, PARTS, RATE, SEGMENTS = 4, 128, 4, 4, 2.5e-4, 976
AGENTS = (1, 64, 2048)
UPDATES = PASSES * PARTS


def weft(agents: int, capture: bool = True) -> Callable[[], None]:
    """A segment and its updates."""
    source = Segments(CartPole(), envs=ENVS, length=LENGTH, passes=PASSES, batch_size=ENVS * LENGTH // PARTS)
    replicas = None if agents == 1 else agents
    options: dict[str, Any] = {"clip": 0.5, "schedule": "linear", "total": SEGMENTS * UPDATES, "replicas": replicas}
    adam = Optimizer("adam", lr=RATE, eps=1e-5)
    objective = PPO(entropy_weight=0.01)
    engine, state = engine_of(objective, ERM(), source, adam, device="cuda", capture=capture, **options)
    stream, recorder = engine.batches(source, state), Captured(engine, state)

    def eager() -> None:
        for _ in range(UPDATES):
            engine.step(state, next(stream))

    def recorded() -> None:
        if recorder.round(source, UPDATES) is None:
            eager()

    for _ in range(5):
        (recorded if capture else eager)()
    if capture and not recorder.rounds:
        raise RuntimeError("expected a round that is recorded, got one that is played by the host")
    return recorded if capture else eager


def bare(device: str) -> Callable[[], None]:
    """The same by hand."""

    def mlp(outputs: int) -> nn.Sequential:
        layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
        return nn.Sequential(*layers).to(device)

    policy, critic, world = mlp(2), mlp(1), CartPole()
    params = [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(params, lr=RATE, eps=1e-5, fused=True)
    key = key_of(torch.zeros((), dtype=torch.int64, device=device))
    keys = fold(key.unsqueeze(-1), torch.arange(ENVS, device=device))
    held: dict[str, Tensor] = {"position": world.reset(keys)[0], "age": torch.zeros(ENVS, device=device)}

    def segment() -> None:
        kept: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand(LENGTH, ENVS, 2, device=device)))
            fresh = (torch.rand(LENGTH, ENVS, 4, device=device, dtype=held["position"].dtype) - 0.5) * 0.1
            for t in range(LENGTH):
                seen = held["position"].float()
                action = (policy(seen) + noise[t]).argmax(-1)
                position, after, reward, ended = world.step(held["position"], action)
                age = held["age"] + 1
                over = ended | (age >= 500)
                kept.append((seen, action, reward, ended, over, after))
                held["position"] = torch.where(over.unsqueeze(-1), fresh[t], position)
                held["age"] = torch.where(over, 0.0, age)
            rows, action, reward, ended, over, after = (torch.stack(part) for part in zip(*kept, strict=True))
            value, beyond = critic(rows).squeeze(-1), critic(after).squeeze(-1)
            error = reward + 0.99 * beyond * ~ended - value
            last, advantage = torch.zeros(ENVS, device=device), torch.empty_like(error)
            for t in reversed(range(LENGTH)):
                last = advantage[t] = error[t] + 0.99 * 0.95 * last * ~over[t]
            goal = (advantage + value).flatten()
            gain = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
            rows, action = rows.flatten(0, 1), action.reshape(-1, 1)
            before = policy(rows).log_softmax(-1).gather(-1, action).squeeze(-1)
        for _ in range(PASSES):
            for order in torch.randperm(ENVS * LENGTH, device=device).chunk(PARTS):
                own, did, good, aim, was = (part[order] for part in (rows, action, gain, goal, before))
                logs = policy(own).log_softmax(-1)
                ratio = (logs.gather(-1, did).squeeze(-1) - was).exp()
                actor = -torch.minimum(ratio * good, ratio.clamp(0.8, 1.2) * good).mean()
                entropy = -(logs.exp() * logs).sum(-1).mean()
                loss = actor + 0.5 * (critic(own).squeeze(-1) - aim).square().mean() - 0.01 * entropy
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                adam.step()

    for _ in range(3):
        segment()
    return segment


def seconds(segment: Callable[[], None], times: int, rounds: int = 5) -> float:
    """For all segments of a training, by the median of some."""
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            segment()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - started) / times)
    return sorted(taken)[rounds // 2] * SEGMENTS


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "agents_gpu.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    taken = {"by hand, one agent, CPU": seconds(bare("cpu"), 3), "by hand, one agent, GPU": seconds(bare("cuda"), 3)}
    taken["weft, one agent, step by step"] = seconds(weft(1, capture=False), 1)
    for agents in AGENTS:
        taken[f"weft, {agents:,} agents, recorded"] = seconds(weft(agents), 5 if agents < 100 else 2)
        print(f"{agents} agents: {taken[f'weft, {agents:,} agents, recorded']:.2f} s", flush=True)
    one = min(value for name, value in taken.items() if name.startswith("by hand"))
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": "python benchmarks/agents_gpu.py",
        "env_steps an agent": SEGMENTS * ENVS * LENGTH,
        "seconds": taken,
        "milliseconds an agent": {f"{n:,}": 1000 * taken[f"weft, {n:,} agents, recorded"] / n for n in AGENTS},
        "2,048 agents / one PyTorch agent": taken["weft, 2,048 agents, recorded"] / one,
        "published by PureJaxRL": 0.5,
        "one agent recorded / step by step": taken["weft, 1 agents, recorded"] / taken["weft, one agent, step by step"],
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
    }
    print(json.dumps(record, indent=1))
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
