"""`Fit`: the fitted posterior that `zoo.fit` and `zoo.load` return."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import xarray

from zoo.compress.compression import Compression, compress_fit
from zoo.data import Dataset
from zoo.errors import StoreError
from zoo.fit.result import Fitted
from zoo.fit.schema import read_tree
from zoo.fit.store import POSTERIOR, RunDirectory
from zoo.fit.stored import write_inputs
from zoo.fit.tree import fit_tree
from zoo.robustness.curves import robustness_of
from zoo.truth.of_fit import truth_of
from zoo.workflow.judged import Judged
from zoo.workflow.outputs import write_outputs


class Fit(Judged, Fitted):
    """A fitted posterior, with its diagnostics, compression and storage.

    A fit that was loaded from disk has no data: pass them as ``dataset`` to methods that need them.
    """

    @classmethod
    def of(cls, fitted: Fitted, **changed: Any) -> "Fit":
        """Return a fitted posterior as a `Fit`."""
        values = {field.name: getattr(fitted, field.name) for field in fields(Fitted)}
        return cls(**(values | changed))

    def tree(self, dataset: Dataset | None = None) -> xarray.DataTree:
        """Return draws, densities, predictions and scores in ArviZ's schema.

        For a fit that was loaded from disk this is the stored tree.
        """
        dataset = dataset or self.dataset
        if dataset is None:
            assert self.path is not None
            return read_tree(self.path / POSTERIOR)
        groups = self.groups(dataset)
        return fit_tree(self, dataset, self.metrics(dataset, groups), groups)

    def save(self, out: str | Path) -> "Fit":
        """Write a fit that was made in memory to a run directory, for `zoo.load`."""
        return save(self, out)

    def compress(self, dataset: Dataset | None = None, **options: Any) -> Compression:
        """Prune and round the network according to the posterior, and measure the result.

        Options are ``threshold``, ``tolerance`` and ``bits``, as for `zoo.compress.compress_fit`.
        """
        return compress_fit(self, dataset, **options)

    def robustness(self, dataset: Dataset | None = None, **options: Any) -> xarray.Dataset:
        """Score the fit under noise on inputs and weights, FGSM, and deletion of weights.

        Options are as for `zoo.robustness.curves.robustness_of`.
        """
        return robustness_of(self, self.data(dataset), **options)

    def truth(self, dataset: Dataset | None = None, **options: Any) -> xarray.DataTree:
        """Sample the same model on the same data by NUTS, for small problems.

        Options are those of `zoo.truth`. Draws that do not meet its criteria raise a `TruthError`.
        """
        return truth_of(self, self.data(dataset), **options)[1]


def save(fitted: Fitted, out: str | Path) -> Fit:
    """Write a fit that was made in memory to a run directory.

    Parameters
    ----------
    fitted
        What `zoo.fit` returned.
    out
        The directory; it must not exist, or be empty.
    """
    if fitted.dataset is None:
        raise StoreError(
            f"this fit was loaded from {str(fitted.path)!r} and does not hold its data; "
            "copy that directory instead."
        )
    directory = RunDirectory.new(out)
    write_inputs(directory, fitted.config, fitted.dataset)
    write_outputs(fitted, directory, fitted.dataset)
    return Fit.of(fitted, path=directory.path)
