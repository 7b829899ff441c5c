"""The allocator's settings are changed for a while, and only where they are known."""

from pathlib import Path

import pytest
import torch

import zoo
from zoo.infer.svi import memory
from zoo.infer.svi.history import History
from zoo.infer.svi.loop import SVI
from zoo.network.nets import mlp
from zoo.registry import Recipe

STATM = Path("/proc/self/statm")
PAGE = 4096


def resident_bytes():
    return PAGE * int(STATM.read_text().split()[1])


class Library:
    """Notes what is asked of the C library."""

    def __init__(self):
        self.calls = []

    def mallopt(self, name, value):
        self.calls.append((name, value))

    def malloc_trim(self, kept):
        self.calls.append(("trim", kept))


def test_settings_go_back_at_the_end_even_after_an_error(monkeypatch):
    library = Library()
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    manager = memory.kept_memory()
    manager.__enter__()
    kept = dict(library.calls)
    with pytest.raises(ZeroDivisionError):
        manager.gen.throw(ZeroDivisionError())
    usual = dict(library.calls)
    assert kept[memory.MMAP_THRESHOLD] > usual[memory.MMAP_THRESHOLD]
    assert kept[memory.TRIM_THRESHOLD] > usual[memory.TRIM_THRESHOLD]
    assert library.calls[-1] == ("trim", 0)


def test_this_process_computes_inside():
    with memory.kept_memory():
        assert float(torch.ones(2**20).sum()) == 2**20


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.kept_memory():
        pass


@pytest.mark.skipif(not STATM.exists(), reason="needs the process file system of Linux")
@pytest.mark.parametrize("method", ["sparse_vd", "group_normal_jeffreys"])
def test_a_run_does_not_grow_with_its_steps(method):
    """Losses that were tensors of their own tore holes: half a block was lost per step."""
    x, y = torch.randn(1000, 784), torch.randint(10, (1000,))
    net = mlp([784, 300, 100, 10])
    model = zoo.create(method, net, likelihood="categorical", num_data=len(x))
    recipe = Recipe(num_steps=300, batch_size=128, lr=1e-3)
    guide = model.guide(init_scale=0.01)
    svi = SVI(model, guide, x, y, recipe=recipe, seed=0, local=True, mode="replay")
    sizes = []
    svi.run(
        progress_bar=False,
        checkpoint_every=100,
        on_checkpoint=lambda _: sizes.append(resident_bytes()),
    )
    block = 4 * 300 * 784
    assert sizes[2] - sizes[0] < 40 * block  # 200 steps


def test_a_history_keeps_what_is_appended():
    history = History(5, torch.tensor([1.0, 2.0]))
    history.append(torch.tensor(3.0))
    assert len(history) == 3
    assert history.all().tolist() == [1.0, 2.0, 3.0]
    assert history.last(2).tolist() == [2.0, 3.0]
    assert History(5).all().tolist() == []
