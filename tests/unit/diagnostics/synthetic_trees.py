"""Trees of linear regressions whose posterior is known, for the tests of diagnostics."""

import numpy as np
import xarray
from scipy import stats

SIGMA = 0.5


class Regression:
    """Linear regression with unit Gaussian priors and known noise: everything in closed form."""

    def __init__(self, seed=0, *, rows=100, columns=3, correlation=0.0):
        self.rng = np.random.default_rng(seed)
        mixing = np.linalg.cholesky(
            (1 - correlation) * np.eye(columns) + correlation * np.ones((columns, columns))
        )
        self.x = self.rng.normal(size=(rows, columns)) @ mixing.T
        self.x_new = self.rng.normal(size=(rows, columns)) @ mixing.T
        self.weights = self.rng.normal(size=columns)
        self.y = self.x @ self.weights + SIGMA * self.rng.normal(size=rows)
        self.y_new = self.x_new @ self.weights + SIGMA * self.rng.normal(size=rows)
        self.precision = np.eye(columns) + self.x.T @ self.x / SIGMA**2
        self.covariance = np.linalg.inv(self.precision)
        self.mean = self.covariance @ self.x.T @ self.y / SIGMA**2

    @property
    def exact(self):
        return stats.multivariate_normal(self.mean, self.covariance)

    @property
    def mean_field(self):
        """The factorised Gaussian nearest to the posterior: variances 1 / precision_kk."""
        return stats.multivariate_normal(self.mean, np.diag(1 / np.diag(self.precision)))

    def fit(self, guide=None, *, draws=1000, losses=None):
        """Return the tree of a fit whose posterior approximation is `guide`."""
        guide = self.exact if guide is None else guide
        w = np.atleast_2d(guide.rvs(draws, random_state=self.rng)).reshape(draws, -1)
        prior = self.rng.normal(size=w.shape)
        log_prior = stats.norm.logpdf(w).sum(1)
        log_likelihood = stats.norm.logpdf(self.y, w @ self.x.T, SIGMA)
        if losses is None:
            losses = self.losses()
        chained = ("chain", "draw")
        groups = {
            "posterior": {"w": ((*chained, "feature"), w[None])},
            "prior": {"w": ((*chained, "feature"), prior[None])},
            "sample_stats": {
                "lp": (chained, (log_prior + log_likelihood.sum(1))[None]),
                "log_q": (chained, np.atleast_1d(guide.logpdf(w))[None]),
                "log_prior": (chained, log_prior[None]),
            },
            "log_prior": {"w": (chained, log_prior[None])},
            "log_likelihood": {"y": ((*chained, "obs_id"), log_likelihood[None])},
            "posterior_predictive": {"y": ((*chained, "obs_id"), self.replicate(w, self.x)[None])},
            "prior_predictive": {"y": ((*chained, "obs_id"), self.replicate(prior, self.x)[None])},
            "observed_data": {"y": ("obs_id", self.y)},
            "functions": {"f": ((*chained, "point", "output"), self.outputs(w)[None, ..., None])},
            "held_out": {
                "y_samples": (("draw", "row"), self.replicate(w, self.x_new)),
                "y": ("row", self.y_new),
            },
            "optimization": {"loss": (("chain", "step"), np.atleast_2d(losses))},
        }
        return tree_of(groups, task="regression", method="test", seed=0, identified="w")

    def truth(self, *, chains=4, draws=1000, kind="nuts"):
        """Return independent draws of the posterior, dressed as those of NUTS."""
        w = self.exact.rvs(chains * draws, random_state=self.rng)
        log_joint = stats.norm.logpdf(w).sum(1) + stats.norm.logpdf(
            self.y, w @ self.x.T, SIGMA
        ).sum(1)
        chained = ("chain", "draw")
        shape = (chains, draws)
        groups = {
            "posterior": {"w": ((*chained, "feature"), w.reshape(*shape, -1))},
            "functions": {
                "f": ((*chained, "point", "output"), self.outputs(w).reshape(*shape, -1, 1))
            },
            "sample_stats": {
                "lp": (chained, log_joint.reshape(shape)),
                "energy": (chained, self.rng.normal(size=shape)),
                "diverging": (chained, np.zeros(shape, bool)),
                "tree_depth": (chained, np.full(shape, 3)),
            },
        }
        return tree_of(groups, kind=kind, identified="w")

    def outputs(self, w):
        return w @ self.x[:32].T

    def replicate(self, w, x):
        return w @ x.T + SIGMA * self.rng.normal(size=(len(w), len(x)))

    def losses(self, steps=2000, scale=0.02, noise=3.0):
        """Return a loss that falls exponentially and is flat, but noisy, at the end."""
        time = np.arange(steps) / steps
        return 200 + 500 * np.exp(-time / scale) + noise * self.rng.normal(size=steps)


def tree_of(groups, **attributes):
    tree = xarray.DataTree.from_dict(
        {
            name: group if isinstance(group, xarray.Dataset) else xarray.Dataset(group)
            for name, group in groups.items()
        }
    )
    tree.attrs |= attributes
    return tree


def the(findings, check):
    """Return the one finding of a check."""
    found = [finding for finding in findings if finding.check == check]
    assert len(found) == 1, f"{check}: {[finding.check for finding in findings]}"
    return found[0]
