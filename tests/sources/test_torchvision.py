"""What torchvision's users bring: transforms, data sets, models; they work, or are refused by their names."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Classifier
from weft.core.state import State
from weft.sources import Arrays, Mapped
from weft.testing import check_source

# PyPI's build beside another torch fails by a RuntimeError, which pytest.importorskip does not take for an absence.
try:
    import torchvision
    from torchvision import transforms as v1
    from torchvision.transforms import v2
except (ImportError, RuntimeError, OSError) as error:
    pytest.skip(f"torchvision does not import: {error}", allow_module_level=True)

X = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = np.arange(24) % 2


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


TRANSFORMS = {
    "v1": lambda: v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(8, padding=2), v1.ColorJitter(0.2, 0.2)]),
    "v2": lambda: v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(8), v2.RandomErasing(0.5)]),
    "v2 image": lambda: v2.Compose([v2.ToImage(), v2.RandAugment(), v2.ToDtype(torch.float32, scale=True)]),
}


@pytest.fixture(params=TRANSFORMS)
def augment(request):
    return TRANSFORMS[request.param]()


def test_a_transform_is_drawn_for_each_row_by_its_key(augment):
    source = Mapped(Arrays(X, torch.as_tensor(Y), batch_size=12), augment)
    check_source(source, steps=3)
    same = Mapped(Arrays(X[:1].repeat(24, 1, 1, 1), batch_size=None), augment)
    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor(0))
    batch = next(same.batches(state))["x"]
    assert type(batch) is torch.Tensor
    assert len(batch.unique(dim=0)) > 6, "equal rows are drawn apart"


class Killed(Exception):  # noqa: N818
    pass


def test_it_is_resumed_and_reproduced(augment, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def stop(record):
        if record["epoch"] == 2:
            raise Killed

    def learner(**settings):
        return Classifier(net, augment=augment, epochs=4, batch_size=8, random_state=0, **settings)

    torch.manual_seed(1)
    whole = learner().fit(X, Y)
    torch.manual_seed(2)
    with pytest.raises(Killed):
        learner(folder=tmp_path, callbacks=[stop]).fit(X, Y)
    resumed = weft.load(tmp_path, module=net, augment=augment).resume(X, Y)
    for p, q in zip(resumed.objective_.parameters(), whole.objective_.parameters(), strict=True):
        assert torch.equal(p, q)
    plain = Classifier(net, epochs=4, batch_size=8, random_state=0).fit(X, Y)
    assert not torch.equal(next(plain.objective_.parameters()), next(whole.objective_.parameters()))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda: v2.MixUp(num_classes=2), r"expected MixUp to take a row of 'x', a tensor of shape \(3, 8, 8\), got:"),
        (lambda: v2.Resize(4), r"expected Resize to give 'x' of shape \(8, 3, 8, 8\)"),
        (lambda: v2.ToPILImage(), "expected ToPILImage to make a tensor of a row of 'x', got Image"),
    ],
)
def test_a_transform_that_does_not_fit_is_refused_by_its_name(transform, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Classifier(net, augment=transform(), epochs=1, batch_size=8).fit(X, Y)


# --- data sets ----------------------------------------------------------------------------------------


def pictures(transform, rows=16):
    return torchvision.datasets.FakeData(rows, (3, 8, 8), 2, transform=transform)


def test_a_data_set_of_images_with_a_transform():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = Classifier(net, epochs=2, batch_size=8, random_state=0).fit(pictures(v1.ToTensor()))
        modern = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        same = Classifier(net, epochs=2, batch_size=8, random_state=0).fit(pictures(modern))
    for p, q in zip(plain.objective_.parameters(), same.objective_.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    drawn = v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor()])
    flipped = [Classifier(net, epochs=2, batch_size=8, random_state=0).fit(pictures(drawn)) for _ in range(2)]
    first, second = (next(each.objective_.parameters()) for each in flipped)
    assert torch.equal(first, second)
    assert not torch.equal(first, next(plain.objective_.parameters()))


def test_images_that_are_no_tensors_are_told():
    with pytest.raises(TypeError, match=r"got Image: .*torchvision\.transforms\.ToTensor"):
        Classifier(net).fit(pictures(None))
    with pytest.raises(ValueError, match=r"pass X\.float"):
        Classifier(net).fit(pictures(v2.PILToTensor()))


# --- models -------------------------------------------------------------------------------------------


def test_a_model_of_torchvision_is_a_net():
    learner = Classifier(
        lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=2), epochs=1, batch_size=8, random_state=0
    )
    assert learner.fit(X, Y).predict(X[:3]).shape == (3,)


LARGE = torch.rand(4, 3, 75, 75, generator=torch.Generator().manual_seed(0))


def test_auxiliary_logits_are_refused_by_name_and_can_be_left_out():
    def model(**settings):
        return lambda: torchvision.models.googlenet(num_classes=2, init_weights=False, **settings)

    learner = Classifier(epochs=1, batch_size=4, random_state=0)
    told = r"got GoogLeNetOutputs \(logits, aux_logits2, aux_logits1\) from GoogLeNet; .* make it with aux_logits=False"
    with pytest.raises(TypeError, match=told):
        learner.set_params(net=model()).fit(LARGE, Y[:4])
    learner.set_params(net=model(aux_logits=False)).fit(LARGE, Y[:4])
    assert learner.n_steps_ == 1


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_models_with_answers_of_their_own_are_refused_by_name(kind):
    models = torchvision.models
    make = {
        "detection": lambda: models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None),
        "segmentation": lambda: models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None),
    }[kind]
    got = {"detection": "list from SSD", "segmentation": r"OrderedDict \(out\) from LRASPP"}[kind]
    with pytest.raises(TypeError, match=f"got {got}; it has losses, boxes or masks of its own"):
        Classifier(make, epochs=1).fit(LARGE, Y[:4])
