import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.compress.bits import exponent_bits, layer_bits, rounded, significand_bits
from zoo.compress.loader import unpack
from zoo.compress.writing import pack


def unpacked(packed):
    stored = {"w": packed.stored} | {f"w.{k}": v for k, v in packed.extra.items()}
    return unpack("w", packed.entry, stored)


@pytest.mark.parametrize(
    ("variance", "bits"),
    # Reference values of the published rule, t(V) = #{t in 1..23 : 2 V < 2^-t}.
    [
        (1.0, 0),
        (0.25, 0),
        (0.2499, 1),
        (0.1, 2),
        (0.01, 5),
        (0.001, 8),
        (0.0001, 12),
        (1e-6, 18),
        (1e-9, 23),
    ],
)
def test_significand_bits_of_a_variance(variance, bits):
    assert significand_bits(torch.tensor(variance, dtype=torch.float64)) == bits
    assert bits == min(23, max(0, math.ceil(-math.log2(2 * variance)) - 1))


def test_bits_of_a_layer_are_the_mean_rounded_up():
    variances = torch.tensor([0.1, 0.01, 0.001])  # 2, 5 and 8 bits
    assert layer_bits(variances) == 5
    assert layer_bits(torch.tensor([0.1, 0.01])) == 4  # 3.5 rounded up
    assert layer_bits(torch.tensor([1e-6]), rule="sd") == 8  # as for a variance of 0.001


@pytest.mark.parametrize(
    ("largest", "bits"), [(0.0, 1), (0.3, 1), (0.5, 1), (1.0, 1), (2.0, 2), (5.0, 3), (100.0, 4)]
)
def test_exponent_bits_have_a_value_for_every_largest_weight(largest, bits):
    assert exponent_bits(largest) == bits


def test_rounding_is_half_up():
    weights = torch.tensor([0.125, -0.125, 0.3, -0.3, 0.0])
    assert rounded(weights, 2).tolist() == [0.25, 0.0, 0.25, -0.25, 0.0]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    bits=st.integers(0, 23),
    density=st.floats(0.0, 1.0),
    scale=st.floats(1e-4, 50.0),
)
def test_packed_weights_come_back_within_half_a_step(seed, bits, density, scale):
    generator = torch.Generator().manual_seed(seed)
    weights = scale * torch.randn(13, 11, generator=generator, dtype=torch.float64)
    weights = weights * (torch.rand(13, 11, generator=generator) < density)
    on_grid = rounded(weights, bits)
    back = unpacked(pack(on_grid, bits))
    assert back.dtype == torch.float32
    assert torch.equal(back, on_grid.float())
    # Half a step, and the rounding of a float32 where the grid is finer than that.
    tolerance = 0.5 * 2.0**-bits + 2.0**-24 * on_grid.abs()
    assert ((back.double() - weights).abs() <= tolerance).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_weights_on_no_grid_come_back_exactly(share):
    weights = torch.randn(30, 20) * (torch.rand(30, 20) >= share)
    packed = pack(weights)
    assert torch.equal(unpacked(packed), weights)
    assert packed.num_bytes <= 4 * weights.numel()


def test_grid_takes_the_bits_that_its_range_needs():
    weights = torch.linspace(-1, 1, 1000, dtype=torch.float64)[torch.randperm(1000)].reshape(
        10, 100
    )
    packed = pack(rounded(weights, 4), 4)  # 33 values: 6 bits
    assert packed.num_bytes <= math.ceil(6 * 1000 / 8)
    assert packed.entry["coding"] in ("grid", "codebook")


def test_ternary_weights_take_two_bits_at_most():
    weights = 0.2 * torch.randint(-1, 2, (50, 40)).float()
    packed = pack(weights)
    assert packed.entry["coding"] == "codebook"
    assert packed.num_bytes <= 2 * 2000 / 8 + 4 * 3
    assert torch.equal(unpacked(packed), weights)


def test_few_weights_among_zeros_take_a_bitmap():
    weights = torch.zeros(100, 80)
    weights[::10, ::8] = torch.randn(10, 10)
    packed = pack(weights)
    assert packed.num_bytes < 100 * 80 / 8 + 4 * 100
    assert torch.equal(unpacked(packed), weights)


def test_weights_come_back_in_float32_whatever_the_default_is():
    weights = torch.zeros(100, 80)
    weights[::10, ::8] = torch.randn(10, 10)
    packed = pack(weights)
    assert packed.entry["sparse"]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert unpacked(packed).dtype == torch.float32
    finally:
        torch.set_default_dtype(default)


def test_masks_take_a_bit_per_unit():
    mask = torch.rand(83) < 0.3
    packed = pack(mask)
    assert packed.num_bytes == 11
    assert torch.equal(unpacked(packed), mask)
