"""What the fits of networks and of other Pyro models have in common: findings, verdict, report."""

from pathlib import Path

import xarray

from zoo.diagnostics import Finding, Judgement, Verdict, judge
from zoo.fit import store
from zoo.report import render_report


class Judged:
    """A fit with a tree, from which its findings, verdict and report are made."""

    def tree(self) -> xarray.DataTree:
        """Return draws, densities and predictions in ArviZ's schema."""
        raise NotImplementedError

    def judgement(self, truth: xarray.DataTree | None = None) -> Judgement:
        """Return all findings, and the uses that the fit is made for."""
        return judge(self.tree(), truth)

    def findings(self, truth: xarray.DataTree | None = None) -> list[Finding]:
        """Return the findings of all checks; with a truth also the distance from it."""
        return list(self.judgement(truth).findings)

    def verdict(self, use: str | None = None, truth: xarray.DataTree | None = None) -> Verdict:
        """Return whether the fit can be used.

        Parameters
        ----------
        use
            ``predict``, ``intervals``, ``parameters``, ``compare`` or ``compress``; by default all
            that the fit is made for. The levels of all uses are in ``Verdict.uses``.
        truth
            Draws of NUTS to compare with.
        """
        return self.judgement(truth).on(use).verdict

    def report(self, path: str | Path, truth: xarray.DataTree | None = None) -> list[Finding]:
        """Write the report as one HTML page, and return its findings."""
        judgement = self.judgement(truth)
        page = render_report(self.tree(), truth, judgement)
        with store.atomic_path(Path(path)) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="backslashreplace")
        return list(judgement.findings)
