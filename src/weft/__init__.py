"""weft weaves any learning objective with any learning strategy.

scikit-learn's manners, nothing new to learn:

>>> import numpy as np
>>> from sklearn.datasets import load_digits
>>> from sklearn.model_selection import train_test_split
>>> from weft import Classifier, Learner, Regressor, weave
>>> X, y = load_digits(return_X_y=True)
>>> X, X_test, y, y_test = train_test_split(X / 16, y, random_state=0)
>>> bool(Classifier(epochs=20, random_state=0).fit(X, y).score(X_test, y_test) > 0.95)
True

Your own `nn.Module`, on data from several environments:

>>> from torch import nn
>>> from weft.strategies import ANDMask, EWC, MAML
>>> site = np.arange(len(X)) % 4
>>> my_net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
>>> clf = Classifier(my_net, strategy=ANDMask(threshold=1.0), epochs=2, validation=0.1, random_state=0)
>>> len(clf.fit(X, y, environment=site).history_)
2

Tasks in sequence:

>>> tasks = {"may": (X[:600], y[:600]), "june": (X[600:], y[600:])}
>>> clf = Classifier(strategy=EWC(strength=1e3), epochs=2, random_state=0)
>>> for month, (X_t, y_t) in tasks.items():
...     clf = clf.partial_fit(X_t, y_t, classes=range(10), task=month)
>>> clf.tasks_
['may', 'june']

Strategies compose, and replicas train at once: seeds, or a sweep in which the best on validation answers.

>>> both = weave(EWC(strength=1e3), ANDMask(threshold=0.8))
>>> month = np.arange(len(X)) // 900
>>> clf = Classifier(strategy=both, replicas=8, epochs=1, random_state=0).fit(X, y, environment=site, task=month)
>>> len(clf.seeds_)
8
>>> sweep = {"optimizer__lr": [1e-3, 3e-3, 1e-2], "strategy__threshold": [0.5, 0.8, 1.0]}
>>> clf = Classifier(strategy=ANDMask(), replicas=sweep, validation=0.2, epochs=1, random_state=0)
>>> clf.fit(X, y, environment=site).best_replica_ in (0, 1, 2)
True

A game, a policy, a few-shot learner:

>>> from weft.data import ring, sinusoids
>>> from weft.objectives import GAN, REINFORCE, Regression
>>> from weft.sources import Episodes, Rollouts
>>> Learner(GAN(latent=2), steps=20, replicas=8, random_state=0).fit(ring(1_000)).sample(1_000).shape
(1000, 2)
>>> policy = Learner(REINFORCE(), steps=2, random_state=0).fit(Rollouts("CartPole-v1", envs=8))
>>> policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
True
>>> my_net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 1))
>>> few = Learner(Regression(my_net), strategy=MAML(inner_lr=0.01, inner_steps=1), steps=20, random_state=0)
>>> few = few.fit(Episodes(sinusoids))
>>> X_support, y_support, X_query = [[0.0], [1.0]], [[0.0], [0.8]], [[0.5]]
>>> few.adapt(X_support, y_support).predict(X_query).shape
(1, 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.core.optimizer import Optimizer
    from weft.core.weave import weave
    from weft.learner.estimator import Learner
    from weft.learner.loading import load
    from weft.learner.presets import Classifier, Regressor

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = flat(__name__, __file__)
