"""Freed memory stays with the process during training, and goes back afterwards."""

import subprocess
import sys

import pytest

from zoo.infer import memory

needs_glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")

#: Prints the page faults of ten allocations of 64 MB; a process of its own has no other history.
SCRIPT = """
import resource
import torch
from zoo.infer.memory import kept_memory

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.empty(2**24).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory():
    faults(2)
    inside = faults(10)
print(inside, faults(10), 2**26 // resource.getpagesize())
"""


@needs_glibc
def test_blocks_are_taken_from_the_kernel_once_and_go_back_at_the_end():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    inside, afterwards, pages = map(int, done.stdout.split())
    assert inside < pages
    assert afterwards > inside


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.kept_memory():
        pass
