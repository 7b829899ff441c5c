"""Whether draws are a reference posterior: published criteria, and modes that chains never left.

Draws are accepted if, for every reported quantity, the rank-normalised R-hat is below 1.01 and bulk
and tail effective sample sizes are at least 400 (Vehtari et al. 2021), if no transition after
warm-up diverged, and if E-BFMI is above 0.3 in every chain (Betancourt 2016).
"""

import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import arviz_stats
import numpy as np
import pandas as pd
import xarray
from numpy.typing import NDArray

from zoo.diagnostics.reading import labels
from zoo.diagnostics.sampling import MAX_RHAT, MIN_BFMI, MIN_ESS, mcse_sd
from zoo.fit.schema import sampling_tree

Values = Mapping[str, NDArray[Any]]
#: Maps draws by site, of shape ``(chains, draws, ...)``, to the reported quantities.
Quantities = Callable[[Values], Values]

#: Criteria of every element of a quantity: statistic, condition, limit. NaN meets none.
CRITERIA = (
    ("rhat", operator.lt, MAX_RHAT),
    ("ess_bulk", operator.ge, MIN_ESS),
    ("ess_tail", operator.ge, MIN_ESS),
)
#: Largest number of elements of a quantity named in a message, the worst first.
MAX_NAMED = 5


def summarise(reported: Values) -> xarray.Dataset:
    """Return mean, sd, their Monte Carlo errors, R-hat and ESS of every element of quantities."""
    posterior = sampling_tree(reported, {}, {})["posterior"].to_dataset()
    dims = ("chain", "draw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constant elements, which are not checked
        parts = {
            "mean": posterior.mean(dims),
            "sd": posterior.std(dims, ddof=1),
            "mcse_mean": arviz_stats.mcse(posterior, method="mean"),
            "mcse_sd": mcse_sd(posterior),
            "rhat": arviz_stats.rhat(posterior, method="rank"),
            "ess_bulk": arviz_stats.ess(posterior, method="bulk"),
            "ess_tail": arviz_stats.ess(posterior, method="tail"),
        }
    joined: xarray.Dataset = xarray.concat(
        list(parts.values()), dim=xarray.DataArray(list(parts), dims="statistic", name="statistic")
    )
    return joined


def sampler_reasons(stats: Values) -> list[str]:
    """Return what the statistics of the sampler say against the draws."""
    reasons = []
    divergences = int(stats["diverging"].sum())
    if divergences:
        reasons.append(f"{divergences} of {stats['diverging'].size} transitions diverged (limit 0)")
    if np.isnan(stats["energy"]).all():  # not reported by this engine
        return reasons
    tree = sampling_tree({}, {"energy": stats["energy"]}, {})
    lowest = float(np.min(arviz_stats.bfmi(tree)["energy"].values))
    if not lowest > MIN_BFMI:
        reasons.append(f"E-BFMI is {lowest:.2f} in one chain (limit {MIN_BFMI})")
    return reasons


def quantity_reasons(summary: xarray.Dataset) -> list[str]:
    """Return which elements of quantities miss a criterion."""
    reasons = []
    for name in summary.data_vars:
        table = summary_table(summary[[name]])
        table = table[table["sd"] > 0]  # without constants, as the diagonal of a correlation matrix
        for statistic, meets, limit in CRITERIA:
            bad = table.loc[~meets(table[statistic], limit), statistic]
            if len(bad):
                worst = bad.sort_values(ascending=meets is operator.ge)[:MAX_NAMED]
                named = ", ".join(f"{label} {value:.4g}" for label, value in worst.items())
                more = f" and {len(bad) - len(worst)} more" if len(bad) > len(worst) else ""
                reasons.append(f"{statistic} of {named}{more} (limit {limit})")
    return reasons


def summary_table(summary: xarray.Dataset) -> pd.DataFrame:
    """Return the statistics with one row per element of the quantities."""
    statistics = summary["statistic"].to_numpy().tolist()
    rows: dict[str, NDArray[Any]] = {}
    for array in summary.data_vars.values():
        elements = array.to_numpy().reshape(len(statistics), -1).T
        rows |= zip(labels(array[0]), elements, strict=True)
    return pd.DataFrame.from_dict(rows, orient="index", columns=statistics)
