"""Tasks from images: what a task changes, what it leaves, and that it depends on its number alone."""

import os

import numpy as np
import pytest

from weft.data import mnist, permuted_mnist, rotated_mnist, split_mnist

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((40, 28, 28)).astype(np.float32)
LABELS = np.arange(40) % 10
DATA = (IMAGES, LABELS)


def test_a_task_is_one_permutation_of_the_pixels_of_all_images():
    X, y, task = permuted_mnist(tasks=3, data=DATA)
    assert (X.shape, X.dtype) == ((120, 1, 28, 28), np.float32)
    np.testing.assert_array_equal(y, np.tile(LABELS, 3))
    np.testing.assert_array_equal(task, np.repeat([0, 1, 2], 40))
    orders = []
    for t in range(3):
        shown = X[task == t].reshape(40, -1)
        value = {v: i for i, v in enumerate(IMAGES[0].ravel().tolist())}
        order = [value[v] for v in shown[0].tolist()]  # read off the first image, holds for all others
        assert sorted(order) == list(range(784))
        np.testing.assert_array_equal(shown, IMAGES.reshape(40, -1)[:, order])
        orders.append(order)
    assert orders[0] != list(range(784))
    assert orders[0] != orders[1] != orders[2]


def test_train_and_test_share_permutations_and_tasks_can_be_made_alone():
    X, _, task = permuted_mnist(tasks=4, data=DATA, random_state=3)
    one, _, number = permuted_mnist("test", tasks=[2], data=DATA, random_state=3)
    np.testing.assert_array_equal(one, X[task == 2])
    assert set(number.tolist()) == {2}
    other = permuted_mnist(tasks=[2], data=DATA, random_state=4)[0]
    assert (other != one).mean() > 0.9


@pytest.mark.parametrize("size", [8, 26, 27])
def test_only_the_central_square_is_permuted(size):
    X, _, task = permuted_mnist(tasks=2, size=size, data=DATA)
    first = (28 - size) // 2
    inside = np.zeros((28, 28), bool)
    inside[first : first + size, first : first + size] = True
    for t in range(2):
        shown = X[task == t][:, 0]
        np.testing.assert_array_equal(shown[:, ~inside], IMAGES[:, ~inside])
        np.testing.assert_array_equal(np.sort(shown[:, inside]), np.sort(IMAGES[:, inside]))
        assert (shown[:, inside] != IMAGES[:, inside]).mean() > 0.9


def test_the_first_task_as_it_is_and_channels_together():
    X, _, task = permuted_mnist(tasks=2, plain_first=True, data=DATA)
    np.testing.assert_array_equal(X[task == 0][:, 0], IMAGES)
    assert (X[task == 1][:, 0] != IMAGES).mean() > 0.9
    np.testing.assert_array_equal(X[task == 1], permuted_mnist(tasks=[1], data=DATA)[0])
    coloured = np.stack([IMAGES, -IMAGES], axis=1)
    both = permuted_mnist(tasks=1, data=(coloured, LABELS))[0]
    np.testing.assert_array_equal(both[:, 0], -both[:, 1])
    np.testing.assert_array_equal(both[:, :1], permuted_mnist(tasks=1, data=DATA)[0])


def test_quarter_turns_are_exact_and_others_go_the_same_way():
    X, y, task = rotated_mnist(angles=(0, 90, 180, 270, -90, 450), data=DATA)
    np.testing.assert_array_equal(y, np.tile(LABELS, 6))
    for t, turns in enumerate((0, 1, 2, 3, 3, 1)):
        np.testing.assert_array_equal(X[task == t][:, 0], np.rot90(IMAGES, turns, axes=(1, 2)))
    smooth = np.zeros((1, 28, 28), np.float32)
    smooth[0, 8:20, 12:15] = 1.0
    smooth[0, 8:11, 12:20] = 1.0  # no symmetry
    exact = rotated_mnist(angles=(90,), data=(smooth, [0]))[0]
    nearly = rotated_mnist(angles=(89.99,), data=(smooth, [0]))[0]
    np.testing.assert_allclose(nearly, exact, atol=0.01)
    assert nearly.dtype == np.float32
    there = rotated_mnist(angles=(30,), data=(smooth, [0]))[0]
    back = rotated_mnist(angles=(-30,), data=(there, [0]))[0]
    assert np.corrcoef(back.ravel(), smooth.ravel())[0, 1] > 0.9 > np.corrcoef(there.ravel(), smooth.ravel())[0, 1]


def test_angles_are_drawn_by_seed_and_number():
    X, _, task = rotated_mnist(data=DATA, random_state=1)
    assert sorted(set(task.tolist())) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(rotated_mnist("test", tasks=[3], data=DATA, random_state=1)[0], X[task == 3])
    assert (rotated_mnist(tasks=[3], data=DATA, random_state=2)[0] != X[task == 3]).mean() > 0.9


def test_tasks_of_classes():
    X, y, task = split_mnist(data=DATA)
    assert set(task.tolist()) == set(range(5))
    np.testing.assert_array_equal(task, y // 2)
    for x, label in zip(X, y, strict=True):
        assert (IMAGES[label == LABELS] == x[0]).all((1, 2)).any()
    told = split_mnist(data=DATA, scenario="task")
    np.testing.assert_array_equal(told[1], y)
    domain = split_mnist(data=DATA, scenario="domain")
    np.testing.assert_array_equal(domain[1], y % 2)
    np.testing.assert_array_equal(domain[0], X)
    some = split_mnist(data=DATA, groups=[[3, 1, 4], [9]], scenario="domain")
    assert set(some[1][some[2] == 0].tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(some[0][(some[1] == 0) & (some[2] == 0)][:, 0], IMAGES[LABELS == 3])
    one = split_mnist(data=DATA, tasks=[4])
    np.testing.assert_array_equal(one[0], X[task == 4])


def test_classes_in_another_order():
    y, task = split_mnist(data=DATA, groups=5, random_state=0)[1:]
    pairs = [set(y[task == t].tolist()) for t in range(2)]
    assert pairs[0] | pairs[1] == set(range(10))
    assert pairs[0] != set(range(5))
    names = np.array(["a", "b", "c", "d"])[LABELS % 4]
    assert set(split_mnist(data=(IMAGES, names), tasks=1)[1].tolist()) == {"a", "b"}


def test_real_digits():
    if not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set")  # where it is, the digits must be there
    images, digits = mnist("test", download=False)
    X, y, task = permuted_mnist("test", tasks=2, size=8, plain_first=True)
    assert X.shape == (20_000, 1, 28, 28)
    np.testing.assert_array_equal(X[:10_000], images)
    np.testing.assert_array_equal(X[10_000:, :, :10], images[:, :, :10])
    np.testing.assert_array_equal(y[task == 1], digits)
    np.testing.assert_allclose(rotated_mnist("test", angles=(45,))[0].mean(), images.mean(), rtol=0.02)
    y, task = split_mnist("test")[1:]
    assert np.bincount(task).tolist() == [2115, 2042, 1874, 1986, 1983]


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (permuted_mnist, {"part": "valid"}, "expected part to be 'train' or 'test', got 'valid'"),
        (permuted_mnist, {"tasks": 0}, "expected tasks to be a number >= 1, or different numbers >= 0"),
        (permuted_mnist, {"tasks": [1, 1]}, "different numbers"),
        (permuted_mnist, {"tasks": True}, "got True"),
        (permuted_mnist, {"size": 29}, "the side of a square in 28 x 28 images, got 29"),
        (permuted_mnist, {"size": 8.0}, "got 8.0"),
        (permuted_mnist, {"data": (IMAGES[0], LABELS)}, r"expected images of shape \(n, h, w\)"),
        (permuted_mnist, {"data": (IMAGES, LABELS[:3])}, r"a label for each, got shapes \(40, 28, 28\) and \(3,\)"),
        (rotated_mnist, {"angles": ()}, "expected finite angles"),
        (rotated_mnist, {"angles": (0, np.nan)}, "expected finite angles"),
        (rotated_mnist, {"angles": (0, 45), "tasks": 3}, "expected an angle for each task, got 2 for task 2"),
        (split_mnist, {"scenario": "classes"}, "expected scenario to be 'task', 'domain' or 'class', got 'classes'"),
        (split_mnist, {"groups": 3}, "10 classes in groups of 3; name the groups"),
        (split_mnist, {"groups": 11}, "expected tasks of 1 to 10 classes"),
        (split_mnist, {"groups": [[0, 1], [1, 2]]}, "each class once"),
        (split_mnist, {"groups": [[0, 10]]}, "expected groups of the classes"),
        (split_mnist, {"tasks": 6}, "expected tasks among 0..4"),
    ],
)
def test_bad_input(make, wrong, message):
    with pytest.raises(ValueError, match=message):
        make(**{"data": DATA, **wrong})
