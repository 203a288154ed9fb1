"""Tasks in sequence made of one set of images: MNIST permuted, rotated, or split into classes.

Each function gives the rows of its tasks one task after another, as `fit(X, y, task=task)` takes them. What a task
is depends on the seed and on its number alone, so that the tasks can also be made one at a time: `tasks=[3]`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.core.random import fold, key_of, permutation, unit

__all__ = ["permuted_mnist", "rotated_mnist", "split_mnist"]

Images = NDArray[np.float32]
Labels = NDArray[np.generic]
Given = tuple[ArrayLike, ArrayLike] | None


def permuted_mnist(
    part: str = "train",
    *,
    tasks: int | Sequence[int] = 3,
    size: int | None = None,
    plain_first: bool = False,
    data: Given = None,
    random_state: int = 0,
) -> tuple[Images, Labels, NDArray[np.int64]]:
    """The same digits in every task, their pixels in another order: tasks t = 0, 1, ... show

        x_t[i] = x[pi_t(i)],    pi_t a random permutation of the pixels,

    of all of them, or of those in a central square, which leaves tasks the more alike the smaller it is. The labels
    stay. A domain-incremental sequence.

    Args:
        part: `train` or `test`; both have the same permutations.
        tasks: how many, or the numbers of those wanted.
        size: the side of the central square whose pixels are permuted; None for the whole image. (The paper's figure
            3C compares squares of 8 and of 26.)
        plain_first: leave task 0 as it is.
        data: images `(n, h, w)` or `(n, channels, h, w)` and their labels, in place of MNIST.
        random_state: the seed of the permutations.

    Returns:
        X of shape (n tasks, channels, h, w) in float32; y; and the number of each row's task.

    References:
        Goodfellow et al., "An empirical investigation of catastrophic forgetting in gradient-based neural networks",
        arXiv 1312.6211; Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv
        1612.00796, section 2.1.

    Example:
        >>> images = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
        >>> X, y, task = permuted_mnist(tasks=2, size=2, data=(images, [5, 7]))
        >>> X.shape, y.tolist(), task.tolist()
        ((4, 1, 4, 4), [5, 7, 5, 7], [0, 0, 1, 1])
        >>> bool((X[0, 0, 0] == images[0, 0]).all()), sorted(X[0, 0, 1:3, 1:3].flatten().tolist())
        (True, [5.0, 6.0, 9.0, 10.0])
    """
    images, labels = _images(part, data)
    height, width = images.shape[2:]
    side = min(height, width) if size is None else size
    if not isinstance(side, int | np.integer) or not 1 <= side <= min(height, width):
        raise ValueError(f"expected size to be the side of a square in {height} x {width} images, got {size!r}")
    rows, columns = (height, width) if size is None else (int(side), int(side))
    top, left = (height - rows) // 2, (width - columns) // 2
    key, made, numbers = key_of(random_state), [], _task_numbers(tasks)
    for t in numbers:
        shown = images
        if t or not plain_first:
            order = permutation(fold(key, "permutation", t), rows * columns).numpy()
            square = images[:, :, top : top + rows, left : left + columns]
            shown = images.copy()
            shown[:, :, top : top + rows, left : left + columns] = square.reshape(*images.shape[:2], -1)[
                :, :, order
            ].reshape(square.shape)
        made.append(shown)
    return np.concatenate(made), np.tile(labels, len(numbers)), np.repeat(numbers, len(labels))


def rotated_mnist(
    part: str = "train",
    *,
    tasks: int | Sequence[int] | None = None,
    angles: Sequence[float] | None = None,
    data: Given = None,
    random_state: int = 0,
) -> tuple[Images, Labels, NDArray[np.int64]]:
    """The same digits in every task, turned by another angle; the labels stay. A domain-incremental sequence.

    Pixels between those of the image are interpolated linearly, what comes from outside is 0; turns by multiples of 90
    degrees are exact.

    Args:
        part: `train` or `test`; both have the same angles.
        tasks: how many, or the numbers of those wanted; by default one for each of the angles, or 5.
        angles: of tasks 0, 1, ..., in degrees, counter-clockwise; None draws them from [0, 180).
        data: images `(n, h, w)` or `(n, channels, h, w)` and their labels, in place of MNIST.
        random_state: the seed of the angles.

    Returns:
        X of shape (n tasks, channels, h, w) in float32; y; and the number of each row's task.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 4.

    Example:
        >>> image = np.array([[[1.0, 2.0], [3.0, 4.0]]])
        >>> X, y, task = rotated_mnist(angles=(0, 90), data=(image, [7]))
        >>> X[task == 1][0, 0].tolist()
        [[2.0, 4.0], [1.0, 3.0]]
    """
    images, labels = _images(part, data)
    given = None if angles is None else [float(angle) for angle in angles]
    if given is not None and not (given and np.isfinite(given).all()):
        raise ValueError(f"expected finite angles in degrees, one at least, got {angles!r}")
    numbers = _task_numbers((5 if given is None else len(given)) if tasks is None else tasks)
    if given is not None and max(numbers) >= len(given):
        raise ValueError(f"expected an angle for each task, got {len(given)} for task {max(numbers)}")
    key = key_of(random_state)
    made = []
    for t in numbers:
        angle = 180.0 * unit(fold(key, "angle", t), (1,)).item() if given is None else given[t]
        made.append(_turned(images, angle))
    return np.concatenate(made), np.tile(labels, len(numbers)), np.repeat(numbers, len(labels))


def _turned(images: Images, angle: float) -> Images:
    if angle % 90 == 0 and (angle % 180 == 0 or images.shape[2] == images.shape[3]):
        return np.ascontiguousarray(np.rot90(images, int(angle // 90), axes=(2, 3)))
    from scipy.ndimage import rotate

    # scipy turns from the second of the axes to the first
    return rotate(images, angle, axes=(3, 2), reshape=False, order=1)


def split_mnist(
    part: str = "train",
    *,
    scenario: str = "class",
    groups: int | Sequence[Sequence[Hashable]] = 2,
    tasks: int | Sequence[int] | None = None,
    data: Given = None,
    random_state: int | None = None,
) -> tuple[Images, Labels, NDArray[np.int64]]:
    """Each task has classes of its own: 0 and 1, then 2 and 3, and so on.

    What is asked of the learner is the scenario (see the reference):

    - `class`: y is the class. Which of all the classes is it? Nobody tells of which task it is.
    - `task`: y is the class too, but the task is told at the test, so the answer is one of its own classes:
      measure with `accuracy_matrix(..., told=True)`.
    - `domain`: y is the class's place in its task, 0 or 1: is it of the first kind or of the second?

    Args:
        part: `train` or `test`.
        scenario: `task`, `domain` or `class`.
        groups: how many classes a task has, or the classes of each task.
        tasks: how many, or the numbers of those wanted; by default all.
        data: images `(n, h, w)` or `(n, channels, h, w)` and their labels, in place of MNIST.
        random_state: the seed by which the classes are put in another order before they are grouped; None keeps theirs.

    Returns:
        X of shape (rows, channels, h, w) in float32; y; and the number of each row's task. Give `partial_fit` all
        `classes` at the first task: range(10), in the scenario `domain` range(2).

    References:
        van de Ven and Tolias, "Three scenarios for continual learning", arXiv 1904.07734; Zenke, Poole and Ganguli,
        "Continual learning through synaptic intelligence", arXiv 1703.04200, has the split.

    Example:
        >>> data = np.zeros((6, 4, 4)), np.array([0, 1, 2, 3, 1, 2])
        >>> X, y, task = split_mnist(data=data)
        >>> y.tolist(), task.tolist()
        ([0, 1, 1, 2, 3, 2], [0, 0, 0, 1, 1, 1])
        >>> split_mnist(data=data, scenario="domain")[1].tolist()
        [0, 1, 1, 0, 1, 0]
    """
    if scenario not in ("task", "domain", "class"):
        raise ValueError(f"expected scenario to be 'task', 'domain' or 'class', got {scenario!r}")
    images, labels = _images(part, data)
    split = _groups(np.unique(labels), groups, random_state)
    numbers = _task_numbers(len(split) if tasks is None else tasks)
    if max(numbers) >= len(split):
        raise ValueError(f"expected tasks among 0..{len(split) - 1}, as the classes make {len(split)}, got {tasks!r}")
    members = [np.flatnonzero(np.isin(labels, np.asarray(split[t]))) for t in numbers]
    rows = np.concatenate(members)
    y = labels[rows]
    if scenario == "domain":
        place = {label: i for group in split for i, label in enumerate(group)}
        y = np.array([place[label] for label in y.tolist()], dtype=np.int64)
    return images[rows], y, np.repeat(numbers, [len(m) for m in members])


def _groups(
    known: Labels, groups: int | Sequence[Sequence[Hashable]], random_state: int | None
) -> list[list[Hashable]]:
    """The classes of each task."""
    if not isinstance(groups, int | np.integer):
        split = [list(group) for group in groups]
        every = [label for group in split for label in group]
        if not split or not all(split) or len(set(every)) < len(every) or not set(every) <= set(known.tolist()):
            raise ValueError(f"expected groups of the classes {known.tolist()}, each class once, got {split}")
        return split
    if not 1 <= groups <= len(known):
        raise ValueError(f"expected tasks of 1 to {len(known)} classes, got groups={groups!r}")
    order = known.tolist()
    if random_state is not None:
        order = [order[i] for i in permutation(fold(key_of(random_state), "classes"), len(order)).tolist()]
    if len(order) % int(groups):
        raise ValueError(
            f"expected classes that make whole tasks, got {len(order)} classes in groups of {groups}; name the groups: "
            "groups=[[...], ...]"
        )
    return [order[i : i + int(groups)] for i in range(0, len(order), int(groups))]


def _images(part: str, data: Given) -> tuple[Images, Labels]:
    """Images (n, channels, h, w) in float32 and their labels."""
    if part not in ("train", "test"):
        raise ValueError(f"expected part to be 'train' or 'test', got {part!r}")
    if data is None:
        from weft.data.images import mnist

        data = mnist(part)
    images, labels = np.asarray(data[0], np.float32), np.asarray(data[1])
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or not images.size or labels.shape != (len(images),):
        raise ValueError(
            f"expected images of shape (n, h, w) or (n, channels, h, w) and a label for each, got shapes "
            f"{np.shape(data[0])} and {labels.shape}"
        )
    return images, labels


def _task_numbers(tasks: int | Sequence[int]) -> list[int]:
    """The tasks' numbers."""
    numbers = range(int(tasks)) if isinstance(tasks, int | np.integer) else list(tasks)
    whole = all(isinstance(t, int | np.integer) and t >= 0 for t in numbers)
    if isinstance(tasks, bool) or not len(numbers) or not whole or len(set(numbers)) < len(numbers):
        raise ValueError(f"expected tasks to be a number >= 1, or different numbers >= 0 of tasks, got {tasks!r}")
    return [int(t) for t in numbers]
