"""A VAE on the CPU beside pythae and a bare loop: an epoch, the importance-weighted estimate, and 16 seeds at once.

20,000 binary images of 28 x 28 (MNIST of WEFT_DATA, cut at one half; else random ones), 784-512-16 and back with ReLU
(pythae's default nets), batches of 100, Adam. Weft's epoch is a whole `Learner.fit`; pythae's is its trainer's
`train_step`, without what it prepares and writes around it. The bare loop is plain PyTorch with the fused Adam: the
bound of arithmetic.

The estimate is log p of 100 images by 200 draws each: `log_prob(X, draws=200)` beside pythae's `get_nll`, the draws of
an image in one batch, and a bare pass over all. Sixteen seeds (of 2,000 images) stand beside one: on two cores they are
bound by arithmetic, and the ratio is told, not judged.
"""

from __future__ import annotations

import math
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, mlp, mnist, serve, timed
from torch import Tensor

ROWS, FEW, BATCH, WIDTH, LATENT, ASKED, DRAWS, SEEDS = 20_000, 2000, 100, 512, 16, 100, 200, 16


def images(rows: int) -> Tensor:
    return (mnist()[0][:rows] > 0.5).float()


def weft(rows: int, replicas: int | None = None, estimate: bool = False) -> Turn:
    from weft import Learner, Optimizer
    from weft.objectives import VAE

    X = images(rows)

    def epoch() -> Learner:
        model = VAE(LATENT, encoder=mlp(784, WIDTH, 2 * LATENT), decoder=mlp(LATENT, WIDTH, 784), law="bernoulli")
        told: dict[str, Any] = {"optimizer": Optimizer("adam", lr=1e-3), "replicas": replicas, "device": "cpu"}
        return Learner(model, epochs=1, batch_size=BATCH, random_state=0, **told).fit(X)

    if not estimate:
        return timed(epoch)
    learner = epoch()
    return timed(lambda: learner.log_prob(X[:ASKED], draws=DRAWS), times=3)


def bare(estimate: bool = False) -> Turn:
    X = images(ROWS)
    encoder, decoder = mlp(784, WIDTH, 2 * LATENT), mlp(LATENT, WIDTH, 784)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=True)

    def epoch() -> None:
        for rows in torch.randperm(ROWS).split(BATCH):
            x = X[rows]
            mean, log_scale = encoder(x).chunk(2, -1)
            z = mean + log_scale.exp() * torch.randn_like(mean)
            rate = (0.5 * (mean**2 + torch.expm1(2 * log_scale)) - log_scale).sum(-1)
            told = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="none").sum(-1)
            optimizer.zero_grad()
            (told + rate).mean().backward()
            optimizer.step()

    @torch.no_grad()
    def estimated() -> Tensor:
        x = X[:ASKED]
        mean, log_scale = encoder(x).chunk(2, -1)
        noise = torch.randn(ASKED, DRAWS, LATENT)
        z = mean.unsqueeze(1) + log_scale.exp().unsqueeze(1) * noise
        seen = x.unsqueeze(1).expand(-1, DRAWS, -1)
        given = -F.binary_cross_entropy_with_logits(decoder(z), seen, reduction="none").sum(-1)
        logs = given - 0.5 * (z**2).sum(-1) + (0.5 * noise**2 + log_scale.unsqueeze(1)).sum(-1)
        return logs.logsumexp(-1) - math.log(DRAWS)

    return timed(estimated, times=3) if estimate else timed(epoch)


def pythae(estimate: bool = False) -> Turn:
    from pythae.data.datasets import BaseDataset
    from pythae.models import VAE, VAEConfig
    from pythae.trainers import BaseTrainer, BaseTrainerConfig

    X = images(ROWS)
    model = VAE(VAEConfig(input_dim=(784,), latent_dim=LATENT, reconstruction_loss="bce"))
    if estimate:
        model.eval()

        @torch.no_grad()
        def estimated() -> None:
            model.get_nll(X[:ASKED], n_samples=DRAWS, batch_size=DRAWS)

        return timed(estimated, times=3)
    config = BaseTrainerConfig(
        output_dir=tempfile.mkdtemp(), num_epochs=1, per_device_train_batch_size=BATCH, learning_rate=1e-3, no_cuda=True
    )
    trainer = BaseTrainer(model, BaseDataset(X, torch.zeros(ROWS)), training_config=config)
    trainer.prepare_training()
    return timed(lambda: trainer.train_step(1))


CONTESTANTS = {
    "weft, epoch": lambda: weft(ROWS),
    "bare loop, epoch": bare,
    "pythae, epoch": pythae,
    "weft, estimate": lambda: weft(FEW, estimate=True),
    "bare pass, estimate": lambda: bare(estimate=True),
    "pythae, estimate": lambda: pythae(estimate=True),
    "weft, 16 seeds": lambda: weft(FEW, replicas=SEEDS),
    "weft, one seed": lambda: weft(FEW),
}
PEERS = {"pythae, epoch", "pythae, estimate"}
ROUNDS = 5
COMPARISONS = [
    Comparison("weft, epoch", "pythae, epoch", faster=2.0),
    Comparison("weft, epoch", "bare loop, epoch"),
    Comparison("weft, estimate", "pythae, estimate", faster=5.0),
    Comparison("weft, estimate", "bare pass, estimate"),
    Comparison("weft, 16 seeds", "weft, one seed"),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
