"""Executors by name: as many processes as there is use for."""

import pytest

from zoo.infer.tasks import executor
from zoo.infer.tasks.executor import Processes, SerialExecutor, make_executor


@pytest.mark.parametrize(
    ("cores", "num_tasks", "kind"),
    [(1, 8, SerialExecutor), (8, 1, SerialExecutor), (2, 2, Processes), (8, 3, Processes)],
)
def test_by_default_there_are_processes_where_two_can_run_side_by_side(
    monkeypatch, cores, num_tasks, kind
):
    monkeypatch.setattr(executor, "available_cores", lambda: cores)
    with make_executor(None, num_tasks) as made:
        assert type(made) is kind
