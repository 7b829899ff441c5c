"""Rows go to a device only if half of its free memory is enough."""

import pytest
import torch

from zoo.fit.result import outgrow


@pytest.mark.parametrize(("num_bytes", "too_many"), [(499, False), (500, False), (501, True)])
def test_rows_may_take_half_of_what_is_free(monkeypatch, num_bytes, too_many):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 10_000))
    assert outgrow(num_bytes, torch.device("cuda")) is too_many


def test_rows_on_the_host_need_no_room():
    assert not outgrow(10**15, torch.device("cpu"))
