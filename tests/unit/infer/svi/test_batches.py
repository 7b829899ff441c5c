"""Batches: the same rows wherever they live, and nothing sent step by step."""

import pytest
import torch

from zoo.infer.svi import batches as module
from zoo.infer.svi.batches import Batches
from zoo.infer.svi.schedule import batch_rows


def rows_and_targets(num_rows=10):
    return torch.arange(float(num_rows)).unsqueeze(-1), torch.arange(num_rows)


def test_batches_are_the_rows_of_the_schedule():
    x, y = rows_and_targets()
    made = Batches(x, y, batch_size=4, seed=3)
    for step in range(7):
        rows = batch_rows(10, 4, step, 3)
        got_x, got_y = made[step]
        assert torch.equal(got_x[:, 0], rows.to(x.dtype))
        assert torch.equal(got_y, rows)


def test_an_epoch_sees_every_row_once():
    x, y = rows_and_targets()
    made = Batches(x, y, batch_size=4, seed=0)
    seen = torch.cat([made[step][1] for step in (3, 4, 5)])
    assert torch.equal(seen.sort().values, y)


class FakeStream:
    def wait_stream(self, other):
        pass


@pytest.fixture
def fake_cuda(monkeypatch):
    """Streams and page-locked memory that do nothing, to run the travelling path on a CPU."""
    from contextlib import nullcontext

    sent = []
    monkeypatch.setattr(module.torch.cuda, "Stream", lambda device: FakeStream())
    monkeypatch.setattr(module.torch.cuda, "current_stream", lambda device: FakeStream())
    monkeypatch.setattr(module.torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(Batches, "_travels", property(lambda self: True))
    original = Batches._send

    def send(self, step):
        sent.append(step)
        return original(self, step)

    monkeypatch.setattr(Batches, "_send", send)
    return sent


def test_rows_on_the_host_are_sent_one_step_ahead(fake_cuda):
    x, y = rows_and_targets()
    made = Batches(x, y, batch_size=4, seed=3)
    for step in range(3):
        assert torch.equal(made[step][1], batch_rows(10, 4, step, 3))
        assert fake_cuda == list(range(step + 2))
    assert torch.equal(made[7][1], batch_rows(10, 4, 7, 3))  # a resumed run jumps


@pytest.mark.parametrize(
    ("rows", "device", "streams"), [("cpu", "cuda", 1), ("meta", "cuda", 0), ("cpu", "cpu", 0)]
)
def test_only_rows_that_go_from_host_to_device_need_a_stream(monkeypatch, rows, device, streams):
    made = []
    monkeypatch.setattr(module.torch.cuda, "Stream", made.append)
    x, y = (values.to(rows) for values in rows_and_targets())
    Batches(x, y, batch_size=4, seed=3, device=torch.device(device))
    assert made == [torch.device("cuda")] * streams


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_on_the_host_arrive_on_the_device():
    x, y = rows_and_targets()
    made = Batches(x, y, batch_size=4, seed=3, device=torch.device("cuda"))
    for step in range(5):
        got_x, got_y = made[step]
        assert got_x.is_cuda
        assert torch.equal(got_y.cpu(), batch_rows(10, 4, step, 3))
