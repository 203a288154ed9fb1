"""What a run keeps of its tasks: lines that are unknown, replicas that have diverged, tasks without rows."""

import json
import math

import numpy as np
import pytest

from weft.report.picture import picture
from weft.report.tasks import assemble, keep, lines, tasks

ABOUT = {"task": "month", "part": "held-out", "measure": "accuracy", "direction": "max"}
TWO = {**ABOUT, "names": ["May", "June"], "rows": [5, 5]}
BEFORE = np.array([[0.1, 0.2], [0.3, 0.2]])
AFTER = [np.array([[0.9, 0.2], [0.7, 0.4]]), np.array([[0.5, 0.8], [0.5, 0.8]])]


def test_means_over_replicas_and_their_measures():
    found = assemble(TWO, BEFORE, AFTER)
    np.testing.assert_allclose(found["before"], [0.2, 0.2])
    np.testing.assert_allclose(found["matrix"], [[0.8, 0.3], [0.5, 0.8]])
    assert found["replicas"][1] == {"before": [0.3, 0.2], "matrix": [[0.7, 0.4], [0.5, 0.8]]}
    measures = {name: part["value"] for name, part in found["measures"].items()}
    assert measures == pytest.approx(
        {
            "average": 0.65,
            "forgetting_max": 0.3,
            "forgetting_learned": 0.3,
            "backward_transfer": -0.3,
            "forward_transfer": 0.1,
        }
    )
    assert found["measures"]["forgetting_max"]["replicas"] == pytest.approx([0.4, 0.2])


def test_what_is_not_known_is_null():
    diverged = [np.array([[0.9, 0.2], [math.nan, math.nan]]), AFTER[1]]
    found = assemble(TWO, BEFORE, diverged)
    np.testing.assert_allclose(found["matrix"][0], [0.9, 0.2])  # of those that there are
    assert found["replicas"][1]["matrix"][0] == [None, None]
    assert found["measures"]["forgetting_max"]["replicas"] == [pytest.approx(0.4), None]
    part = assemble(TWO, None, [None, AFTER[1]])
    assert part["before"] is None
    assert part["matrix"][0] == [None, None]
    assert part["measures"]["average"]["value"] == pytest.approx(0.65)
    assert part["measures"]["backward_transfer"]["value"] is None
    assert assemble(TWO, BEFORE, AFTER[:1])["measures"] == {}  # a task is still to come
    json.dumps([found, part], allow_nan=False)


def test_a_task_without_rows_is_left_out_of_the_measures():
    nan = math.nan
    about = {**ABOUT, "names": ["a", "b", "c"], "rows": [4, 0, 4]}
    after = [np.array([[0.9, nan, 0.1]]), np.array([[0.8, nan, 0.3]]), np.array([[0.6, nan, 0.7]])]
    found = assemble(about, np.array([[0.0, nan, 0.0]]), after)
    assert found["measures"]["average"]["value"] == pytest.approx(0.65)
    assert found["measures"]["forgetting_learned"]["value"] == pytest.approx(0.3)


def test_kept_lines_come_back_and_a_run_without_them_goes_on(tmp_path):
    assert tasks(tmp_path) is None
    assert lines(None, 2) == [None, None]
    keep(assemble(TWO, BEFORE, AFTER[:1]), tmp_path)
    assert not (tmp_path / "tasks.png").exists()  # not yet all of it
    found = tasks(tmp_path)
    (first,) = lines(found, 1)
    np.testing.assert_array_equal(first, AFTER[0])
    assert lines(found, 2)[1] is None
    keep(assemble(TWO, BEFORE, AFTER), tmp_path)
    assert (tmp_path / "tasks.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("measure", ["accuracy", "R2", "generator_loss"])
def test_any_number_of_tasks_is_drawn(tmp_path, count, measure):
    random = np.random.default_rng(0)
    about = {**ABOUT, "measure": measure, "names": [f"$t_{i}" for i in range(count)], "rows": [1] * count}
    found = assemble(about, None, [random.normal(size=(1, count)) for _ in range(count)])
    picture([], tmp_path / "tasks.png", matrix=found)
    assert (tmp_path / "tasks.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "change",
    [
        {"names": "May"},
        {"rows": [5]},
        {"matrix": [[1.0]]},
        {"matrix": [["a", "b"]]},
        {"measures": {"other": {"value": 1}}},
    ],
)
def test_a_damaged_file_is_told(tmp_path, change):
    (tmp_path / "tasks.json").write_text(json.dumps({**assemble(TWO, BEFORE, AFTER), **change}))
    with pytest.raises(ValueError, match=r"expected scores by task in .*, got a damaged or foreign file"):
        tasks(tmp_path)
