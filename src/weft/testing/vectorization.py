"""Which layers are vectorized over groups and over replicas, found by trying."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["LAYERS", "vectorization_table"]


class _Recurrent(nn.Module):
    def __init__(self, cell: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cell = cell(1, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.unsqueeze(-1))[0][:, -1])


class _Tokens(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 4)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.lift(x.unsqueeze(-1))).mean(1))


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((x > 0).long()).mean(1))


def _image(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, (2, 2, 2)), *layers, nn.Flatten(), nn.LazyLinear(2))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(8, 2),
    "Bilinear": lambda: _Pairs(),
    "Conv1d": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2), nn.Flatten(), nn.LazyLinear(2)),
    "Conv2d": lambda: _image(nn.Conv2d(2, 3, 2, padding=1)),
    "ConvTranspose2d": lambda: _image(nn.ConvTranspose2d(2, 3, 2)),
    "MaxPool2d": lambda: _image(nn.MaxPool2d(2)),
    "AvgPool2d": lambda: _image(nn.AvgPool2d(2)),
    "AdaptiveAvgPool2d": lambda: _image(nn.AdaptiveAvgPool2d(1)),
    "Upsample": lambda: _image(nn.Upsample(scale_factor=2)),
    "BatchNorm1d": lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    "BatchNorm2d": lambda: _image(nn.BatchNorm2d(2)),
    "LayerNorm": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)),
    "GroupNorm": lambda: _image(nn.GroupNorm(1, 2)),
    "InstanceNorm2d": lambda: _image(nn.InstanceNorm2d(2, affine=True)),
    "RMSNorm": lambda: nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 2)),
    "Dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2)),
    "Dropout2d": lambda: _image(nn.Dropout2d(0.5)),
    "AlphaDropout": lambda: nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(8, 2)),
    "Embedding": _Embedded,
    "PReLU": lambda: nn.Sequential(nn.PReLU(), nn.Linear(8, 2)),
    "Softmax": lambda: nn.Sequential(nn.Softmax(-1), nn.Linear(8, 2)),
    "MultiheadAttention": lambda: _Tokens(_Self(4)),
    "TransformerEncoderLayer": lambda: _Tokens(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
    "RNN": lambda: _Recurrent(nn.RNN),
    "GRU": lambda: _Recurrent(nn.GRU),
    "LSTM": lambda: _Recurrent(nn.LSTM),
    "spectral_norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)), nn.Linear(4, 2)),
    "weight_norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), nn.Linear(4, 2)),
}


class _Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :4], x[:, 4:])


class _Self(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def vectorization_table() -> list[dict[str, str]]:
    """For each layer: over groups and over replicas, `vectorized`, `loop` or the reason of a refusal."""
    from weft.engine import VectorizationWarning
    from weft.learner import Classifier
    from weft.strategies import ANDMask

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 8, generator=generator)
    y = (x[:, 0] > 0).long()
    rows = []
    for name, make in LAYERS.items():
        row = {"layer": name}
        groups = Classifier(make, strategy=ANDMask(threshold=0.5), epochs=1, batch_size=None, random_state=0)
        replicas = Classifier(make, replicas=2, epochs=1, batch_size=None, random_state=0)
        for kind, learner in (("groups", groups), ("replicas", replicas)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    learner.fit(x, y, environment=[0, 1, 2] * 4)
                    looped = any(issubclass(w.category, VectorizationWarning) for w in caught)
                    row[kind] = "loop" if looped else "vectorized"
                except ValueError as error:
                    row[kind] = f"refused: {error}"
        rows.append(row)
    return rows
