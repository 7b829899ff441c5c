import numpy as np
import pytest

from zoo.data import checksum, load
from zoo.data.split import split_rows
from zoo.errors import DataError


def test_parts_are_disjoint_and_complete():
    train, test = split_rows(103, test_fraction=0.2, seed=3)
    assert len(test) == 21
    assert sorted([*train, *test]) == list(range(103))


def test_the_split_of_a_seed_never_changes():
    train, test = split_rows(10, test_fraction=0.3, seed=0)
    assert (train.tolist(), test.tolist()) == ([8, 6, 0, 7, 4, 5, 9], [3, 2, 1])


def test_seeds_differ():
    first = split_rows(50, test_fraction=0.2, seed=0)[1]
    assert set(first) != set(split_rows(50, test_fraction=0.2, seed=1)[1])


def test_classes_keep_their_proportion():
    strata = np.repeat([0, 1, 2], [100, 50, 10])
    train, test = split_rows(160, test_fraction=0.2, seed=0, strata=strata)
    assert np.bincount(strata[test]).tolist() == [20, 10, 2]
    assert np.bincount(strata[train]).tolist() == [80, 40, 8]
    assert (np.diff(strata[train]) < 0).any(), "rows are shuffled, not sorted by class"


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_every_class_is_on_both_sides(fraction):
    strata = np.repeat([0, 1], [2, 30])
    train, test = split_rows(32, test_fraction=fraction, seed=0, strata=strata)
    assert set(strata[train]) == set(strata[test]) == {0, 1}


def test_zero_fraction_leaves_the_test_part_empty():
    train, test = split_rows(5, test_fraction=0.0, seed=0)
    assert (len(train), len(test)) == (5, 0)
    dataset = load("wine", test_fraction=0.0)
    assert dataset.X_test.shape == (0, 13)
    assert dataset.y_test.shape == (0,)


def test_a_class_with_one_row_is_named():
    with pytest.raises(DataError, match=r"at least 2 rows.*single row: 'rare'"):
        split_rows(
            4, test_fraction=0.5, seed=0, strata=np.array([0, 0, 0, 1]), names=["common", "rare"]
        )


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(DataError, match=r"test_fraction must be at least 0 and below 1; got"):
        load("wine", test_fraction=fraction)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, None])
def test_impossible_seeds_are_refused(seed):
    with pytest.raises(DataError, match=r"seed must be a whole number from 0; got"):
        load("wine", seed=seed)


def test_the_seed_decides_the_split():
    assert checksum(load("wine", seed=1)) == checksum(load("wine", seed=1))
    assert checksum(load("wine", seed=1)) != checksum(load("wine", seed=2))
