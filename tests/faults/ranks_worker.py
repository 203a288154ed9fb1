"""A training over two processes of which the second dies: `python ranks_worker.py FOLDER RANK PORT DIES`."""

import os
import signal
import sys

import numpy as np
import torch

rng = np.random.default_rng(0)
X = rng.normal(size=(61, 4))
Y = (X[:, 0] > 0).astype(int)
SITE = np.arange(61) % 3
EPOCHS = 6


def learner(folder):
    from weft import Classifier
    from weft.nets import MLP
    from weft.strategies import ANDMask

    def net(inputs, outputs):
        return MLP(inputs, outputs, hidden=(8,), dropout=0.2)

    settings = {"epochs": EPOCHS, "batch_size": 7, "dtype": "float64", "random_state": 0, "device": "cpu"}
    return Classifier(net, strategy=ANDMask(threshold=0.3), folder=folder, **settings), net


def main():
    torch.set_num_threads(1)
    folder, rank, port, dies = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import weft.learner.folder

    weft.learner.folder.SECONDS = 0.0
    clf, net = learner(folder)
    if dies and rank == "1":
        from weft.engine.engine import Engine

        step = Engine.step

        def dying(self, state, batch):
            if state.step == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, state, batch)

        Engine.step = dying
    if os.path.exists(os.path.join(folder, "state.json")):
        import weft

        clf = weft.load(folder, module=net).resume(X, Y, environment=SITE)
    else:
        clf.fit(X, Y, environment=SITE)
    if rank == "0":
        np.save(os.path.join(folder, "..", "answer.npy"), clf.predict_proba(X))


if __name__ == "__main__":
    main()
