"""Tasks side by side: results in order, and one bar that counts the steps of all."""

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from tqdm import tqdm

from zoo.infer.tasks import running


@pytest.fixture
def positions(monkeypatch):
    """Collect where the bar stands after every report."""
    found = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(file=io.StringIO(), **options)

        def update(self, n=1):
            super().update(n)
            found.append(self.n)

    monkeypatch.setattr(running, "tqdm", Bar)
    return found


def task(report):
    report(2)
    report(5)
    return "done"


def run(executor):
    return running.run_tasks(
        [task, task], executor, length=5, unit="step", description="", progress_bar=True
    )


def test_tasks_one_after_the_other_move_the_bar_by_their_steps(positions):
    assert run("serial") == ["done", "done"]
    assert positions == [2, 5, 7, 10]


def test_the_bar_of_tasks_side_by_side_ends_at_the_sum_of_their_steps(positions):
    with ThreadPoolExecutor(2) as pool:
        assert run(pool) == ["done", "done"]
    assert positions == sorted(positions)
    assert positions[-1] == 10
