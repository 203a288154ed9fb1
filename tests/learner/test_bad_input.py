"""Bad input gets a ValueError or TypeError that says what was expected, what came, and how to mend it."""

import functools
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from weft import Classifier, Learner, Optimizer, Regressor, weave
from weft.core.catalogue import entries, find
from weft.core.source import Field, Source
from weft.objectives import GAN, Classification, Regression
from weft.sources import Arrays
from weft.strategies import EWC, MAML, ANDMask, Laplace

X, LABELS = load_iris(return_X_y=True)
Y = X @ np.array([0.5, -1.0, 0.3, 0.2])
SITE = np.arange(len(X)) % 3
ROWS, NUMBERS = torch.tensor(X, dtype=torch.float32), torch.tensor(LABELS)
HOLED = np.where(np.arange(150)[:, None] == 7, np.nan, X)
QUICK = {"hidden": (4,), "epochs": 1, "random_state": 0}


def classifier(**settings):
    return Classifier(**{**QUICK, **settings})


def regressor(**settings):
    return Regressor(**{**QUICK, **settings})


def begun(rows=slice(None), **settings):
    """A classifier that has learned its first task."""
    return classifier(**{"strategy": EWC(), **settings}).partial_fit(X[rows], LABELS[rows], task="first")


class Fleeting(Arrays):
    """A source whose rows are gone when the task has ended."""

    def once(self, state, rows):
        return iter(())


class Items(Dataset):
    """A map-style data set of whatever `make` gives."""

    def __init__(self, n, make):
        self.n, self.make = n, make

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


class Stacked(Source):
    """A user's own source: batches of so many environments with so many rows, in turn."""

    grouped, epoch = True, 4

    def __init__(self, *shapes, labels=None):
        self.shapes, self.labels = shapes, labels
        self.spec = {"x": Field((4,), torch.float32), "y": Field((), torch.int64, 3)}

    def batches(self, state):
        while True:
            groups, rows = self.shapes[min(state.step, len(self.shapes) - 1)]
            yield {"x": torch.ones(groups, rows, 4), "y": torch.zeros(groups, self.labels or rows, dtype=torch.int64)}


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(4, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x.unsqueeze(1))[0][:, -1])


CASES = {
    # shapes
    "rows without features": (lambda: classifier().fit(X[:, 0], LABELS), "Expected 2D array, got 1D array.*reshape"),
    "a tensor without features": (lambda: classifier().fit(ROWS[:, 0], LABELS), r"got 1D tensor.*X\[:, None\]"),
    "no features": (lambda: classifier().fit(ROWS[:, :0], LABELS), r"0 feature\(s\).*minimum of 1"),
    "labels in columns": (
        lambda: classifier().fit(X, np.stack([LABELS] * 2, 1)),
        r"y should be a 1d array, got .*\(150, 2\)",
    ),
    "targets in tables": (
        lambda: regressor().fit(X, np.zeros((150, 2, 2))),
        r"one axis of outputs, got .*\(2, 2\); flatten",
    ),
    "a single label": (lambda: classifier().fit(X, 1), "expected y to have 150 rows as X has, got a single value"),
    "other images at prediction": (
        lambda: classifier().fit(np.ones((6, 1, 4, 4)), [0, 1] * 3).predict(np.ones((2, 1, 5, 5))),
        r"expected rows of X of shape \(1, 4, 4\).*got \(1, 5, 5\)",
    ),
    "other features at prediction": (
        lambda: classifier().fit(X, LABELS).predict(X[:, :2]),
        "X has 2 features, but Classifier is expecting 4",
    ),
    "other features in a tensor": (
        lambda: classifier().fit(X, LABELS).predict(ROWS[:, :2]),
        "X has 2 features, but Classifier is expecting 4",
    ),
    "targets of another shape later": (
        lambda: regressor().partial_fit(X, Y).partial_fit(X, Y[:, None]),
        r"expected rows of y of shape \(\) as when training began, got \(1,\)",
    ),
    "a net with too few outputs": (
        lambda: classifier(net=nn.Linear(4, 2)).fit(X, LABELS),
        r"has shape \(2, 3\), got \(2, 2\); give its last layer 3 outputs",
    ),
    "a net with too many outputs": (
        lambda: regressor(net=nn.Linear(4, 2)).fit(X, Y),
        r"has shape \(2, 1\), got \(2, 2\); give its last layer 1 outputs",
    ),
    "a net for other rows": (
        lambda: classifier(net=nn.Linear(5, 3)).fit(X, LABELS),
        r"takes rows of shape \(4,\), got an error from Linear",
    ),
    "a net that gives a tuple": (
        lambda: classifier(net=nn.LSTM(4, 3)).fit(X, LABELS),
        "a net whose answer is a tensor, in training too, got tuple from LSTM",
    ),
    # dtypes
    "text in X": (
        lambda: classifier().fit(np.array([["a"], ["b"]]), [0, 1]),
        "expected numbers in X: encode text columns",
    ),
    "text in a table": (
        lambda: (
            classifier()
            .fit(pd.DataFrame(X, columns=list("abcd")), LABELS)
            .predict(pd.DataFrame({"a": ["u", "v"], "b": 1, "c": 2, "d": 3}))
        ),
        "could not convert string to float: 'u'.*expected numbers in X, as fit was given, got a table with others",
    ),
    "dates in a table": (
        lambda: classifier().fit(pd.DataFrame({"a": pd.to_datetime(["2020-01-01"] * 2), "b": [1, 2]}), [0, 1]),
        r"expected columns of numbers, categories or true/false, got others: 'a' has dates; leave them out with "
        r"X.drop\(columns=\['a'\]\), or mend the table",
    ),
    "complex numbers": (lambda: classifier().fit(X[:2] + 1j, [0, 1]), "Complex data not supported"),
    "a complex tensor": (lambda: classifier().fit(ROWS + 1j, LABELS), "expected a dense tensor of real numbers"),
    "a sparse tensor": (
        lambda: classifier().fit(ROWS.to_sparse(), LABELS),
        "Sparse data not supported: expected a dense",
    ),
    "integers for a net of numbers": (
        lambda: classifier().fit(ROWS.long(), LABELS),
        r"token numbers: pass X.float\(\)",
    ),
    "text to regress on": (
        lambda: regressor().fit(X, ["a"] * 150),
        "expected numbers to predict in y.*use a Classifier",
    ),
    "numbers as text": (lambda: regressor().fit(X, ["1.5"] * 150), "expected numbers to predict in y, got <U3"),
    "objects to regress on": (
        lambda: regressor().fit(X, np.array(["a"] * 150, dtype=object)),
        "expected numbers to predict",
    ),
    "dates to regress on": (
        lambda: regressor().fit(X, np.array(["2020-01-01"] * 150, dtype="datetime64[D]")),
        "expected numbers to predict in y, got datetime64",
    ),
    "an unsupported dtype": (
        lambda: classifier(dtype="float61").fit(X, LABELS),
        "got 'float61'; did you mean 'float64'",
    ),
    "a dtype of PyTorch": (lambda: classifier(dtype=torch.float64).fit(X, LABELS), "did you mean 'float64'"),
    # values
    "NaN in X": (
        lambda: classifier().fit(HOLED, LABELS),
        "X contains NaN.*first in row 7: expected finite.*impute or drop",
    ),
    "NaN in a tensor": (lambda: classifier().fit(torch.tensor(HOLED), LABELS), "X contains NaN.*first in row 7"),
    "NaN at prediction": (lambda: classifier().fit(X, LABELS).predict(HOLED), "X contains NaN.*first in row 7"),
    "NaN in y": (lambda: regressor().fit(X, HOLED[:, 1]), "y contains NaN.*first in row 7"),
    "too large for float32": (lambda: classifier().fit(X * 1e300, LABELS), "too large for dtype 'float32'.*scale"),
    "NaN among labels": (lambda: classifier().fit(X, np.where(SITE == 0, np.nan, LABELS)), "Input y contains NaN"),
    "None among labels": (
        lambda: classifier().fit(X, np.array([None, *("ab" * 74), "a"], dtype=object)),
        "expected labels of one kind, got a mixture or missing ones.*drop those rows",
    ),
    "labels of two kinds": (
        lambda: classifier().fit(X, np.array([1, *("ab" * 74), "a"], dtype=object)),
        "expected labels of one kind, got a mixture",
    ),
    "labels that are measurements": (lambda: classifier().fit(X, Y), "Unknown label type: continuous"),
    "one class only": (
        lambda: classifier().fit(X, np.zeros(150)),
        r"at least two classes, got one class only \(\[0.0\]\).*classes=",
    ),
    "no rows": (lambda: classifier().fit(X[:0], LABELS[:0]), r"0 sample\(s\).*minimum of 1 is required"),
    "no rows in a tensor": (lambda: classifier().fit(ROWS[:0], LABELS[:0]), r"0 sample\(s\).*minimum of 1 is required"),
    "an empty data set": (lambda: classifier().fit(Items(0, None)), "expected at least one row, got an empty data set"),
    "no labels": (lambda: classifier().fit(X), r"requires y to be passed.*call fit\(X, y\)"),
    "weights below zero": (lambda: classifier().fit(X, LABELS, sample_weight=SITE - 1.0), "Negative values"),
    "no weight at all": (lambda: classifier().fit(X, LABELS, sample_weight=SITE * 0.0), "(non-zero|positive)"),
    # lengths
    "fewer labels": (lambda: classifier().fit(X, LABELS[:9]), "expected y to have 150 rows as X has, got 9"),
    "fewer environments": (
        lambda: classifier(strategy=ANDMask()).fit(X, LABELS, environment=SITE[:9]),
        r"one environment for each of the 150 rows, got shape \(9,\)",
    ),
    "fewer weights": (lambda: classifier().fit(X, LABELS, sample_weight=SITE[:9]), r"\(9,\), expected \(150,\)"),
    "one task for all rows": (
        lambda: classifier().fit(X, LABELS, task="a"),
        r"one task for each of the 150 rows, got shape \(\)",
    ),
    # tasks in sequence
    "a class that was not declared": (
        lambda: begun(LABELS < 2).partial_fit(X, LABELS, task="second"),
        r"expected labels among \[0, 1\], got also \[2\]; name every class at the first partial_fit\(..., classes=",
    ),
    "one class only in the first task": (
        lambda: begun(LABELS == 0),
        r"got one class only \(\[0\]\); name all of them with partial_fit\(..., classes=...\) if the others come later",
    ),
    "other classes at the second task": (
        lambda: begun().partial_fit(X, LABELS, classes=range(4), task="second"),
        r"expected the classes that training began with, \[0, 1, 2\], got \[0, 1, 2, 3\]; name all of them",
    ),
    "a task with other columns": (
        lambda: begun().partial_fit(X[:, :3], LABELS, task="second"),
        "X has 3 features, but Classifier is expecting 4 features as input; give every task the same columns",
    ),
    "a task with other columns in a tensor": (
        lambda: begun().partial_fit(ROWS[:, :3], LABELS, task="second"),
        "X has 3 features, but Classifier is expecting 4 features as input; give every task the same columns",
    ),
    "a task with other columns in a source": (
        lambda: begun().partial_fit(Arrays(ROWS[:, :3], NUMBERS, classes=3), task="second"),
        r"expected rows of shape \(4,\) as when training began, got Arrays with \(3,\); give every task the same",
    ),
    "more classes in the second task's source": (
        lambda: begun().partial_fit(Arrays(ROWS, NUMBERS, classes=4), task="second"),
        "expected the 3 classes declared when training began, or fewer, got Arrays with 4: the head has no output",
    ),
    "a row without a task": (
        lambda: classifier().fit(X, LABELS, task=["a"] * 5 + [None] + ["b"] * 144),
        "expected a task for every row, got none in row 5; name it or drop the row",
    ),
    "a task that is not a number": (
        lambda: classifier().fit(X, LABELS, task=np.where(SITE == 1, np.nan, SITE)),
        "expected a task for every row, got none in row 1",
    ),
    "a task with rows of another shape": (
        lambda: classifier().partial_fit(X.reshape(-1, 2, 2), LABELS, task="a").partial_fit(X[:, :2, None], LABELS),
        r"expected rows of X of shape \(2, 2\) as when training began, got \(2, 1\); give X that shape, or fit anew",
    ),
    "a task with more outputs": (
        lambda: regressor().partial_fit(X, Y, task="a").partial_fit(X, np.stack([Y, Y], 1), task="b"),
        r"expected rows of y of shape \(\) as when training began, got \(2,\); give y that shape, or fit anew",
    ),
    "a task repeated where its share cannot be told": (
        lambda: begun(strategy=Laplace(penalties="latest")).partial_fit(X, LABELS, task="first"),
        "expected a new task, got 'first' again: .*penalties='per_task' replaces a task that is repeated",
    ),
    "a task without rows": (
        lambda: begun().partial_fit(X[:0], LABELS[:0], task="second"),
        r"0 sample\(s\).*minimum of 1 is required",
    ),
    "consolidation without data": (
        lambda: classifier(strategy=EWC()).partial_fit(Fleeting(ROWS, NUMBERS, classes=3), task="first"),
        "expected the task 'first' to have examples to consolidate, got none",
    ),
    "replicas of unequal length": (
        lambda: classifier(replicas={"optimizer__lr": [0.1, 0.2], "random_state": [0]}).fit(X, LABELS),
        "lists of one length in replicas.*'optimizer__lr': 2, 'random_state': 1",
    ),
    "fields of unequal length": (lambda: Arrays(ROWS, NUMBERS[:9]), "expected 150 rows in 'y' as in the others, got 9"),
    # environments, tasks, episodes, sources
    "AND-mask without environments": (
        lambda: classifier(strategy=ANDMask()).fit(X, LABELS),
        r"ANDMask\(\) compares environments, got none; call fit\(X, y, environment=",
    ),
    "a single environment": (
        lambda: classifier(strategy=ANDMask()).fit(X, LABELS, environment=["Bern"] * 150),
        r"got one only \('Bern'\); with a single environment use ERM\(\)",
    ),
    "a row without environment": (
        lambda: classifier(strategy=ANDMask()).fit(X, LABELS, environment=["a"] * 5 + [None] + ["b"] * 144),
        "expected an environment for every row, got none in row 5",
    ),
    "a single environment in a source": (
        lambda: classifier(strategy=ANDMask()).fit(Arrays(ROWS, NUMBERS, classes=3, grouped=True)),
        r"ANDMask\(\) compares environments, got one only in the batch of step 0; .*use ERM\(\)",
    ),
    "a single environment for replicas": (
        lambda: classifier(strategy=ANDMask(), replicas=2).fit(Arrays(ROWS, NUMBERS, classes=3, grouped=True)),
        r"got one only in the batch of step 0; with a single environment use ERM\(\)",
    ),
    "a batch without one environment": (
        lambda: classifier(strategy=ANDMask()).fit(Stacked((3, 8), (2, 8))),
        r"expected 3 environments in every batch, as in the first, got 2 at step 1; .*rows of weight 0",
    ),
    "environments of unequal size in a batch": (
        lambda: classifier(strategy=ANDMask()).fit(Stacked((3, 8), labels=7)),
        r"3 environments of 8 rows, as others have, got 'y' of shape \(3, 7\); pad environments of unequal size",
    ),
    "AND-mask on an ungrouped source": (
        lambda: classifier(strategy=ANDMask()).fit(Arrays(ROWS, NUMBERS, classes=3)),
        "compares environments, got Arrays without any; make it with grouped=True",
    ),
    "MAML without episodes": (
        lambda: regressor(strategy=MAML()).fit(X, Y),
        r"learns from episodes .*, got arrays; call fit\(Episodes\(...\)\)",
    ),
    "MAML on rows of a source": (
        lambda: regressor(strategy=MAML()).fit(Arrays(ROWS, ROWS[:, 0])),
        "episodes, got Arrays; wrap",
    ),
    "labels beside a source": (
        lambda: classifier().fit(Arrays(ROWS, NUMBERS, classes=3), LABELS),
        "Arrays brings its own fields, got y",
    ),
    "a share of a source": (
        lambda: classifier(validation=0.1).fit(Arrays(ROWS, NUMBERS, classes=3)),
        "expected validation to be a source, as Arrays is one, got 0.1",
    ),
    "a source that does not number classes": (
        lambda: classifier().fit(Arrays(ROWS, NUMBERS)),
        r"says how many classes y numbers.*Arrays\(x, y, classes=3\)",
    ),
    "a source of something else": (
        lambda: classifier().fit(Arrays(None, observation=ROWS)),
        r"expected batches with 'x', which Classification reads, got Arrays with \['observation'\]",
    ),
    "a loader": (
        lambda: classifier().fit(DataLoader(TensorDataset(ROWS))),
        "got DataLoader, .*pass the loader's data set",
    ),
    "a stream": (lambda: classifier().fit(Stream()), "map-style data set or a source, got Stream"),
    "a data set of triples": (lambda: classifier().fit(TensorDataset(ROWS, NUMBERS, NUMBERS)), "got 3 parts per item"),
    "labels twice": (lambda: classifier().fit(TensorDataset(ROWS, NUMBERS), LABELS), "got both; leave one out"),
    "a ragged data set": (
        lambda: classifier().fit(Items(3, lambda i: (torch.ones(i + 1), i))),
        "of one shape, got Tensor",
    ),
    "a data set of dictionaries": (lambda: classifier().fit(Items(3, lambda i: {"x": i})), "got dict.*a transform"),
    # names
    "an unknown strategy": (
        lambda: classifier(strategy="and-musk").fit(X, LABELS),
        "got 'and-musk'; did you mean 'and-mask'",
    ),
    "an unknown optimizer": (lambda: classifier(optimizer="adamm").fit(X, LABELS), "got 'adamm'; did you mean 'adam'"),
    "an unknown schedule": (lambda: classifier(schedule="cosin").fit(X, LABELS), "got 'cosin'; did you mean 'cosine'"),
    "an unknown net": (lambda: classifier(net="liner").fit(X, LABELS), "got 'liner'; did you mean 'linear'"),
    "an unknown weighting": (lambda: classifier(weighting="groups").fit(X, LABELS), "did you mean 'group'"),
    "an unknown init": (lambda: classifier(init="kept").fit(X, LABELS), "did you mean 'keep'"),
    "an unknown parameter": (lambda: Classifier(epoch=3), "got 'epoch'; did you mean 'epochs'"),
    "an unknown parameter to set": (lambda: Regressor().set_params(epoch=3), "got 'epoch'; did you mean 'epochs'"),
    "an unknown parameter of a strategy": (
        lambda: classifier(strategy=ANDMask()).set_params(strategy__treshold=0.5),
        "parameter of ANDMask.* got 'treshold'; did you mean 'threshold'",
    ),
    "a parameter of no strategy": (
        lambda: classifier().set_params(strategy__threshold=0.5),
        r"expected a strategy to set \['strategy__threshold'\] of, got None; give strategy first",
    ),
    "an unknown parameter to sweep": (
        lambda: classifier(replicas={"optimiser__lr": [0.1, 0.2]}).fit(X, LABELS),
        "got 'optimiser'; did you mean 'optimizer'",
    ),
    "players of a game of one": (
        lambda: classifier(optimizer={"generator": "adam"}).fit(X, LABELS),
        r"Classification has one player, got optimizers by player \('generator'\); pass the optimizer itself",
    ),
    "an unknown player": (
        lambda: Learner(GAN(latent=2), optimizer={"generatr": "adam"}, steps=1).fit(X),
        "player of GAN .* got 'generatr'; did you mean 'generator'",
    ),
    "a setting of an unknown player": (
        lambda: Learner(GAN(latent=2)).set_params(optimizer__generatr__lr=0.1),
        "player of GAN .* got 'generatr'; did you mean 'generator'",
    ),
    "a pattern that freezes nothing": (
        lambda: classifier(optimizer=Optimizer("adam", freeze=["net.haed.*"])).fit(X, LABELS),
        r"got 'net.haed.\*'; did you mean 'net.head",
    ),
    "a group of nothing": (
        lambda: classifier(optimizer=Optimizer("adam", groups={"net.haed.*": {"lr": 0.1}})).fit(X, LABELS),
        r"got 'net.haed.\*'; did you mean 'net.head",
    ),
    "an unknown setting of an optimizer": (
        lambda: classifier(optimizer=Optimizer("sgd", lrr=0.1)).fit(X, LABELS),
        "expected settings that 'sgd' takes, got {'lrr': 0.1}",
    ),
    # instances, classes and numbers in the wrong place
    "an optimizer's instance": (
        lambda: classifier(optimizer=torch.optim.SGD([nn.Parameter(torch.ones(1))])).fit(X, LABELS),
        r"name, class or factory, got an instance \(SGD\).*pass Optimizer\('adam', lr=...\)",
    ),
    "a number as optimizer": (
        lambda: classifier(optimizer=0.1).fit(X, LABELS),
        "class or factory, got 0.1; for example",
    ),
    "a plain module as objective": (
        lambda: Learner(nn.Linear(4, 3)).fit(X, LABELS),
        r"got Linear\(.*goes into an objective, as in Classification\(net\)",
    ),
    "an objective's class": (
        lambda: Learner(Regression).fit(X, Y),
        r"got the class Regression; make one: Regression\(\)",
    ),
    "no objective": (lambda: Learner().fit(X, Y), r"expected an objective such as Classification\(\), got None"),
    "a strategy's class": (
        lambda: classifier(strategy=ANDMask).fit(X, LABELS),
        r"got the class ANDMask; make one: ANDMask\(\)",
    ),
    "a number as strategy": (lambda: classifier(strategy=3).fit(X, LABELS), "its name or None, got 3"),
    "a number in a weave": (
        lambda: weave(ANDMask(), 3),
        r"expected strategies, such as weave\(EWC\(\), ANDMask\(\)\), got 3",
    ),
    "a number as net": (lambda: classifier(net=3).fit(X, LABELS), "nn.Module, a factory, a name or None, got 3"),
    "a factory of numbers": (
        lambda: classifier(net=lambda: 3).fit(X, LABELS),
        "factory to return an nn.Module, got int",
    ),
    "a factory that wants more": (
        lambda: classifier(net=nn.Bilinear).fit(X, LABELS),
        r"take nothing or \(inputs, outputs\), got one that takes in1_features, in2_features, out_features; wrap",
    ),
    "a number as hidden": (
        lambda: classifier(hidden=128).fit(X, LABELS),
        r"widths of layers such as \(128, 128\), got 128",
    ),
    "a number as schedule": (lambda: classifier(schedule=3).fit(X, LABELS), "a schedule's name, a function.*got 3"),
    "a scheduler that wants more": (
        lambda: classifier(schedule=torch.optim.lr_scheduler.StepLR).fit(X, LABELS),
        r"missing a required argument: 'step_size'; give the rest by functools.partial",
    ),
    "a plateau that rises": (
        lambda: classifier(schedule=functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode="max")).fit(
            X, LABELS
        ),
        "of which min is better, got mode='max'; leave mode out",
    ),
    "a plateau with several ends": (
        lambda: classifier(
            schedule=functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, min_lr=[0.1, 0.2])
        ).fit(X, LABELS),
        r"expected one min_lr for all parameters, got \[0.1, 0.2\]",
    ),
    "a function as callbacks": (lambda: classifier(callbacks=print).fit(X, LABELS), "a list of functions of a record"),
    "a word as replicas": (
        lambda: classifier(replicas="8").fit(X, LABELS),
        "or lists by parameter name such as .*, got '8'.*; write 8, without quotes",
    ),
    "no replicas": (
        lambda: classifier(replicas=0).fit(X, LABELS),
        r"expected replicas to be an integer in \[1, .*, got 0",
    ),
    "a sweep over one number": (
        lambda: classifier(replicas={"optimizer__lr": 0.1}).fit(X, LABELS),
        "expected a list of values for 'optimizer__lr' in replicas, got 0.1",
    ),
    "a sweep over words": (
        lambda: classifier(replicas={"optimizer__lr": ["a", "b"]}).fit(X, LABELS),
        "expected Optimizer's lr to be a number >= 0, got 'a'",
    ),
    "a sweep out of range": (
        lambda: classifier(strategy=ANDMask(), replicas={"strategy__threshold": [0.5, 2.0]}).fit(
            X, LABELS, environment=SITE
        ),
        r"threshold to be a number in \[0, 1\], got 2.0",
    ),
    "an unknown device": (lambda: classifier(device="gpu").fit(X, LABELS), "such as 'cpu' or 'cuda:0', got 'gpu'"),
    "an unknown seed": (lambda: classifier(random_state="a").fit(X, LABELS), "a RandomState or None, got 'a'"),
    # parameters out of range
    "epochs and steps": (
        lambda: classifier(steps=3).fit(X, LABELS),
        r"one of epochs, steps and env_steps, got epochs=1 and steps=3; leave one out",
    ),
    "two as validation": (
        lambda: classifier(validation=2).fit(X, LABELS),
        r"in \(0, 1\), a pair \(X, y\), X alone, a data set, a source, a world or None, got 2",
    ),
    "rows as validation": (
        lambda: classifier(validation=X).fit(X, LABELS),
        r"expected validation=\(X, y\) for Classification, which learns from y beside the rows, got rows alone "
        r"\(ndarray\); give them together, or a share",
    ),
    "true as validation": (lambda: classifier(validation=True).fit(X, LABELS), "a number in .* got True"),
    "more than everything for validation": (
        lambda: classifier(validation=1.5).fit(X, LABELS),
        r"in \(0, 1\), .* got 1.5",
    ),
    "nothing left for validation": (
        lambda: classifier(validation=0.1).fit(X[[0, 50]], LABELS[[0, 50]]),
        r"expected rows in the validation part, got none; with so few rows pass validation=\(X, y\)",
    ),
    "validation with new labels": (
        lambda: classifier(validation=(X, LABELS + 1)).fit(X, LABELS),
        r"expected labels among \[0, 1, 2\], got also \[3\]",
    ),
    "a threshold beyond one": (
        lambda: classifier(strategy=ANDMask(threshold=2.0)).fit(X, LABELS, environment=SITE),
        r"expected ANDMask's threshold to be a number in \[0, 1\], got 2.0",
    ),
    "less than no epochs": (
        lambda: classifier(epochs=-1).fit(X, LABELS),
        "epochs to be an integer >= 0 or None, got -1",
    ),
    "half an epoch": (lambda: classifier(epochs=0.5).fit(X, LABELS), "epochs to be an integer >= 0 or None, got 0.5"),
    "an empty batch": (
        lambda: classifier(batch_size=0).fit(X, LABELS),
        "batch_size to be an integer >= 1 or None, got 0",
    ),
    "no accumulation": (lambda: classifier(accumulate=0).fit(X, LABELS), "accumulate to be an integer >= 1, got 0"),
    "no patience": (lambda: classifier(patience=0).fit(X, LABELS), "patience to be an integer >= 1 or None, got 0"),
    "a norm below zero": (
        lambda: classifier(clip=-1.0).fit(X, LABELS),
        "clip to be a number > 0 or None, got -1.0",
    ),
    "no noise": (lambda: Learner(Regression(noise=0.0)).fit(X, Y), "noise to be a number > 0, got 0.0"),
    "weights of unknown labels": (
        lambda: classifier(class_weight={9: 2.0}).fit(X, LABELS),
        r"labels among \[0, 1, 2\], got also \[9\]",
    ),
    "unknown class weights": (lambda: classifier(class_weight="even").fit(X, LABELS), "'balanced' or None, got 'even'"),
    "too few class weights": (
        lambda: classifier(class_weight=[1, 2]).fit(X, LABELS),
        "expected 3 class weights, one per class",
    ),
    "class weights below zero": (
        lambda: classifier(class_weight={0: -1.0}).fit(X, LABELS),
        "finite class weights >= 0",
    ),
    "everything frozen": (
        lambda: classifier(optimizer=Optimizer("adam", freeze="*")).fit(X, LABELS),
        "got every parameter frozen",
    ),
    "hidden randomness": (
        lambda: classifier(net=Recurrent()).fit(X, LABELS),
        "got 'net.body' .LSTM with dropout=0.5., which draws inside its kernel; set dropout=0",
    ),
    # going on
    "an unknown label later": (
        lambda: classifier().partial_fit(X, LABELS).partial_fit(X, LABELS + 1),
        r"expected labels among \[0, 1, 2\], got also \[3\]; name every class at the first partial_fit",
    ),
    "labels of another kind later": (
        lambda: classifier().partial_fit(X, LABELS).partial_fit(X, np.array(list("abc"))[LABELS]),
        r"expected labels among \[0, 1, 2\], got also \['a', 'b', 'c'\]",
    ),
    "other classes later": (
        lambda: classifier().partial_fit(X, LABELS).partial_fit(X, LABELS, classes=range(5)),
        r"classes that training began with, \[0, 1, 2\], got \[0, 1, 2, 3, 4\]",
    ),
    "a number as classes": (
        lambda: classifier().partial_fit(X, LABELS, classes=3),
        r"every label, such as range\(10\), got 3",
    ),
    "other replicas later": (
        lambda: classifier(warm_start=True, replicas=2).fit(X, LABELS).set_params(replicas=3).fit(X, LABELS),
        "expected the 2 replicas that training began with, got 3; fit anew",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_its_reason(case):
    act, message = CASES[case]
    with pytest.raises((ValueError, TypeError)) as refusal:
        act()
    assert re.search(message, str(refusal.value), re.DOTALL), str(refusal.value)


@pytest.mark.parametrize("name", [entry.name for entry in entries("strategies")])
def test_whatever_compares_environments_refuses_one(name):
    strategy = find("strategies", name)
    if strategy.sight.episodic or not strategy.sight.grouped:
        return
    with pytest.raises(ValueError, match=r"compares environments, got one only.*use ERM\(\)"):
        classifier(strategy=strategy).fit(Arrays(ROWS, NUMBERS, classes=3, grouped=True))


def test_an_environment_that_batches_lack_is_told():
    """It counts for nothing where it is absent, and the user hears of it once."""
    site = np.where(np.arange(150) < 3, "small", np.where(np.arange(150) % 2, "a", "b"))
    learner = classifier(strategy=ANDMask(), batch_size=10)
    with pytest.warns(
        UserWarning, match=r"fewer rows than the 8 batches of a pass in 'small' \(3\).*larger batch_size"
    ):
        learner.fit(X, LABELS, environment=site)
    learner.set_params(batch_size=None).fit(X, LABELS, environment=site)  # warnings are errors here


def test_prediction_before_training():
    for learner in (Classifier(), Regressor(), Learner(Classification())):
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            learner.predict(X)


def test_a_diverged_training_says_where_and_what_to_do():
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+.*lower the learning rate, clip the gradient"):
        regressor(optimizer=Optimizer("sgd", lr=1e12), epochs=20).fit(X, 100 * Y)


def test_a_refused_fit_leaves_the_users_arrays_alone():
    rows = HOLED.copy()
    with pytest.raises(ValueError, match="NaN"):
        classifier().fit(rows, LABELS)
    np.testing.assert_array_equal(rows, HOLED)


def test_tasks_with_other_classes_learn_where_these_are_declared():
    two = LABELS < 2
    learner = classifier(strategy=EWC())
    learner.partial_fit(X[two], LABELS[two], classes=range(3), task="first")
    learner.partial_fit(X[~two], LABELS[~two], task="second")
    assert learner.predict_proba(X).shape == (150, 3)  # nobody tells of which task a row is
    assert learner.tasks_ == ["first", "second"]
    whole = classifier(strategy=EWC()).fit(X, LABELS, task=LABELS)  # the table has them all
    assert whole.classes_.tolist() == [0, 1, 2]


def test_a_task_repeated_replaces_what_it_left():
    learner = begun(strategy=EWC(strength=10.0)).partial_fit(X, LABELS, task="first")
    (kept,) = learner.training_.runs[0][1].strategy[""]["tasks"].values()
    reached = learner.training_.runs[0][1].params
    assert learner.tasks_ == ["first"]
    assert all(torch.equal(kept["anchor"][name], reached[name]) for name in reached)
