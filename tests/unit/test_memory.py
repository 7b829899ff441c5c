"""The allocator's settings are changed for a while, and only where they are known."""

import pytest
import torch

from zoo.infer import memory


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
