"""Rows go to a device only if half of its free memory is enough."""

import pytest
import torch

from zoo.fit import result


@pytest.mark.parametrize(("num_bytes", "outgrow"), [(499, False), (500, False), (501, True)])
def test_rows_may_take_half_of_what_is_free(monkeypatch, num_bytes, outgrow):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 10_000))
    assert result._outgrow(num_bytes, torch.device("cuda")) is outgrow


def test_rows_on_the_host_need_no_room():
    assert not result._outgrow(10**15, torch.device("cpu"))
