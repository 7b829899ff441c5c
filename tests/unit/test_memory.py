"""Freed memory stays with the process during training, and goes back afterwards."""

import resource

import pytest
import torch

from zoo.infer import memory

MEGABYTES = 64
PAGES = MEGABYTES * 2**20 // resource.getpagesize()

needs_glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def faults_of_allocating(times: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.empty(MEGABYTES * 2**18).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@needs_glibc
def test_blocks_are_taken_from_the_kernel_once():
    with memory.kept_memory():
        faults_of_allocating(2)
        assert faults_of_allocating(10) < PAGES


@needs_glibc
def test_memory_goes_back_at_the_end():
    with memory.kept_memory():
        faults_of_allocating(1)
    # A machine with large pages needs few faults for many of them, but never none.
    assert faults_of_allocating(10) >= 10


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.kept_memory():
        pass
