"""How the outputs of many draws are computed: in one call or draw by draw, recorded or compiled."""

import pytest
import torch
from torch import nn

import zoo
from zoo.infer.predict import outputs


def model_of(net, **options):
    return zoo.create("mean_field", net, likelihood="gaussian(noise=1)", num_data=10, **options)


class Recorder:
    """Stands for the recording of calls, and for a clock by which each call takes some seconds."""

    def __init__(self, monkeypatch, seconds):
        self.backends, self.now = [], 100.0

        def clock():
            self.now += seconds
            return self.now

        monkeypatch.setattr(outputs.time, "perf_counter", clock)
        monkeypatch.setattr(outputs, "record", self.record)

    def record(self, call, values, rows, *, backend):
        self.backends.append(backend)
        return lambda values, rows: torch.full((1,), 7.0)


@pytest.mark.parametrize(("seconds", "backend"), [(0.59, "replay"), (0.61, "inductor")])
def test_calls_are_compiled_if_they_take_longer_than_half_a_minute(monkeypatch, seconds, backend):
    recorder = Recorder(monkeypatch, seconds)
    outputs._captured(lambda v, r: r, {}, torch.zeros(3, 1), "inductor", 50)
    assert recorder.backends == [backend]


def test_calls_are_compiled_only_if_asked_to(monkeypatch):
    recorder = Recorder(monkeypatch, 1000.0)
    outputs._captured(lambda v, r: r, {}, torch.zeros(3, 1), "auto", 50)
    assert recorder.backends == ["replay"]


@pytest.mark.parametrize(("mode", "calls", "number"), [("off", 50, 0), ("auto", 49, 0)])
def test_few_calls_are_not_recorded(monkeypatch, mode, calls, number):
    recorder = Recorder(monkeypatch, 1.0)
    outputs._captured(lambda v, r: r, {}, torch.zeros(3, 1), mode, calls)
    assert len(recorder.backends) == number


def test_a_chunk_of_another_size_runs_as_it_is(monkeypatch):
    Recorder(monkeypatch, 1.0)
    call = outputs._captured(lambda v, r: r, {}, torch.zeros(3, 1), "auto", 50)
    assert call({}, torch.ones(3, 1)).tolist() == [7.0]
    assert call({}, torch.ones(2, 1)).tolist() == [[1.0], [1.0]]


def test_width_counts_the_numbers_of_one_row_in_all_layers():
    model = model_of(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    # The sequence hands the last output on and counts it again.
    assert outputs._width(model, torch.zeros(4, 3)) == 5 + 5 + 2 + 2


@pytest.mark.parametrize(("number", "chunk"), [(1, 1), (3, 3), (7, 7)])
def test_draws_of_one_chunk_fit_the_bound_of_memory(monkeypatch, number, chunk):
    model = model_of(nn.Sequential(nn.Linear(3, 2, bias=False)))
    x = torch.zeros(4, 3)
    numbers = 6 + 4 * (2 + 2)  # weights of a draw, and what four rows leave behind
    monkeypatch.setattr(outputs, "CHUNK_BYTES", number * numbers * x.element_size())
    sizes = []
    vmap = torch.vmap

    def spied(function, **options):
        sizes.append(options.get("chunk_size"))
        return vmap(function, **options)

    monkeypatch.setattr(torch, "vmap", spied)
    outputs.network_outputs(model, {"0.weight": torch.randn(8, 2, 3)}, x, mode="off")
    assert sizes == [None, chunk]


def test_convolutions_run_draw_by_draw_unless_draws_share_them_and_rows_are_few():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 1))
    model = model_of(net, bayesian=["2.*"])
    shared, own = {"2.weight": torch.zeros(5, 1, 2)}, {"0.weight": torch.zeros(5, 2, 1, 3, 3)}
    rows = torch.zeros(outputs.FEW_ROWS + 1, 1, 3, 3)
    assert not outputs._loop_is_faster(model, shared, rows[:-1])
    assert outputs._loop_is_faster(model, shared, rows)
    assert outputs._loop_is_faster(model, own, rows[:-1])


def test_large_networks_run_draw_by_draw(monkeypatch):
    model = model_of(nn.Sequential(nn.Linear(3, 2)))
    monkeypatch.setattr(outputs, "LARGE_NETWORK", 8)
    assert not outputs._loop_is_faster(model, {}, torch.zeros(1, 3))
    monkeypatch.setattr(outputs, "LARGE_NETWORK", 7)
    assert outputs._loop_is_faster(model, {}, torch.zeros(1, 3))


def test_channels_of_a_convolution_are_stored_last():
    value = torch.randn(2, 3, 4, 5, 6)
    stored = outputs._channels_last(value)
    assert torch.equal(stored, value)
    assert stored[0].is_contiguous(memory_format=torch.channels_last)
    matrix = torch.randn(2, 3, 4)
    assert outputs._channels_last(matrix) is matrix
