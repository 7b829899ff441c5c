"""Checks of the data of a fit: size, scale, copies, shift between the parts, and outliers.

They read the facts that the fit stored (group ``data``, see `zoo.fit.data_facts`), the spread of
outputs under the prior (group ``prior_statistics``) and the least probable rows (group ``rows``).
"""

from functools import partial

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, Level, format_number, format_share, level_of
from zoo.diagnostics.reading import Array, task_of, variable

SIZE = partial(Finding, "data.size", source="sampling error of a standard deviation")
SCALE = partial(Finding, "data.scale", source="LeCun, Bottou, Orr and Müller (1998)")
LEAK = partial(Finding, "data.leak", source="Kaufman et al. (2012)")
COPIES = partial(Finding, "data.copies", source="interval coverage")
SHIFT = partial(Finding, "data.shift", source="Massart (1990)")
OUTLIERS = partial(Finding, "data.outliers", source="interval coverage")
EXTREMES = partial(Finding, "data.extremes", source="leverage of single rows")
TAILS = partial(Finding, "data.tails", source="Gelman, Meng and Stern (1996)")

#: The relative error of a standard deviation from n rows is 1 / sqrt(2 n). Its interval of 95 %
#: (99 %) spans the factor 1.53, at which intervals are called wrong, below 11 (18) rows.
ROWS_WARN, ROWS_FAIL = 18, 11
#: Root mean square of an input or target, and prior spread against it, that priors of unit scale
#: do not expect; also the largest ratio of mean and sd of an input.
LARGE = 10.0
#: Outputs of a classifier that are certain about a class.
LARGE_LOGIT = 5.0
#: Copies are judged if there are more than this many times those expected by chance.
BY_CHANCE = 10.0
#: Share of test rows that are also training rows.
LEAK_WARN, LEAK_FAIL = 0.01, 0.20
#: Average number of copies of a row: c copies shrink sds by sqrt(c). The ratios 0.84 and 0.65 are
#: those of intervals of 95 % that cover 90 % and 80 %.
COPIES_WARN, COPIES_FAIL = 1 / 0.84**2, 1 / 0.65**2
#: p-value over all columns, and distance between distribution functions that matters.
SHIFT_P_VALUE, SHIFT_DISTANCE = 0.01, 0.1
#: Share of test rows beyond all training rows that is a failure.
OUTSIDE_FAIL = 0.5
#: p-value of the least probable row.
TAIL_P_VALUE = 0.01
#: Share of the misfit that few rows own, and how many are few. Without rows that own the share s of
#: the squared residuals the noise is sqrt(1 - s) times as large: 0.84 and 0.65 as above.
OWNED_WARN, OWNED_FAIL, FEW_ROWS = 1 - 0.84**2, 1 - 0.65**2, 0.05
#: Share of the variance of a column that its three largest deviations have.
TOP_SHARE = 0.8


def data_findings(tree: xarray.DataTree) -> list[Finding]:
    """Run the checks for which the tree has facts."""
    facts = _Facts(tree)
    if facts.number("rows") is None:
        return []
    findings = [_size(facts), _scale(tree, facts), _copies(facts)]
    if facts.number("test_rows"):
        findings += [_leak(facts), *_shift(facts)]
    return [*findings, _extremes(facts), *_outliers(tree, facts)]


class _Facts:
    def __init__(self, tree: xarray.DataTree) -> None:
        self.tree = tree

    def array(self, name: str) -> xarray.DataArray | None:
        return variable(self.tree, "data", name)

    def number(self, name: str, default: float | None = None) -> float | None:
        array = self.array(name)
        return default if array is None else float(array)

    def known(self, name: str) -> float:
        """Return a number that has a value of 0 if it is missing."""
        return self.number(name, 0.0) or 0.0

    def column(self, name: str) -> tuple[Array, list[str]]:
        array = self.array(name)
        if array is None:
            return np.zeros(0), []
        labels = [str(label) for label in array[array.dims[0]].to_numpy()]
        return array.to_numpy().astype(np.float64), labels


def _size(facts: _Facts) -> Finding:
    rows, test = int(facts.known("rows")), int(facts.known("test_rows"))
    level: Level = "fail" if rows < ROWS_FAIL else "warn" if rows < ROWS_WARN else "ok"
    message = f"There are {rows} training and {test} test rows."
    if level != "ok":
        message += " With so few, no check has the power to find a bad fit."
    limit = ROWS_FAIL if level == "fail" else ROWS_WARN
    return SIZE(level, rows, limit, message, "Collect more rows before you change the method.")


def _scale(tree: xarray.DataTree, facts: _Facts) -> Finding:
    means, names = facts.column("input_mean")
    sds, _ = facts.column("input_sd")
    if len(means) != len(sds):
        means, sds, names = np.zeros(0), np.zeros(0), []
    sizes = np.hypot(means, sds)
    k = int(sizes.argmax()) if len(sizes) else 0
    size = float(sizes[k]) if len(sizes) else 0.0
    offset = float(abs(means[k]) / sds[k]) if len(sizes) and sds[k] > 0 else 0.0
    target = float(np.hypot(facts.known("target_mean"), facts.known("target_sd")))
    spread = _prior_spread(tree)
    is_number = task_of(tree) == "regression"
    # Large inputs matter if outputs under the prior are too large for the target, or if the
    # intercept is lost beside them; large targets if the prior does not reach them.
    wide = np.inf if spread is None else spread / max(target if is_number else LARGE_LOGIT, 1e-300)
    inputs = min(size, max(wide, offset))
    reach = np.inf if spread is None else target / max(spread, 1e-300)
    targets = min(target, reach) if is_number else 0.0
    prior = "" if spread is None else f"; outputs under the prior are {format_number(spread)}"
    message = (
        f"The largest input, {names[k] if names else '–'}, has a mean of "
        f"{format_number(float(means[k]) if len(means) else 0)} and an sd of "
        f"{format_number(float(sds[k]) if len(sds) else 0)}; the size of the target is "
        f"{format_number(target)}{prior}."
    )
    if inputs > LARGE:
        message += " Priors and learning rates expect inputs of about 1."
        advice = "Scale your inputs: subtract the mean and divide by the standard deviation."
        return SCALE("warn", inputs, LARGE, message, advice)
    if targets > LARGE:
        message += " The prior does not expect targets of this size."
        advice = "Scale your targets: subtract the mean and divide by the standard deviation."
        return SCALE("warn", targets, LARGE, message, advice)
    return SCALE("ok", max(inputs, targets), LARGE, message)


def _prior_spread(tree: xarray.DataTree) -> float | None:
    """Return the typical size of outputs under the prior; None if it is not known."""
    spread = variable(tree, "prior_statistics", "spread")
    if spread is None:
        return None
    values = np.nan_to_num(spread.to_numpy().astype(np.float64), nan=np.inf)
    return float(np.median(values))


def _by_chance(facts: _Facts) -> bool:
    """Return whether equal rows are what discrete values lead to."""
    equal = facts.known("equal_pairs")
    return (
        equal <= facts.known("near_pairs") or equal <= BY_CHANCE * facts.known("chance_pairs")
    ) and equal > 0


def _copies(facts: _Facts) -> Finding:
    share = facts.known("copies")
    count = 1 / max(1 - share, 1e-12)
    message = f"{format_share(share)} of the training rows are copies of others, target included."
    if _by_chance(facts):
        message += " The columns have few distinct values, so this is expected."
        return COPIES("ok", 1.0, COPIES_WARN, message)
    level = level_of(count, COPIES_WARN, COPIES_FAIL)
    if share:
        message += f" Every row counts {format_number(count)} times on average."
    advice = "Remove the copies: the fit takes them for independent observations."
    limit = COPIES_FAIL if level == "fail" else COPIES_WARN
    return COPIES(level, count, limit, message, advice)


def _leak(facts: _Facts) -> Finding:
    share = facts.known("test_copies")
    message = f"{format_share(share)} of the test rows are also training rows, target included."
    if _by_chance(facts):
        message += " The columns have few distinct values, so this is expected."
        return LEAK("ok", 0.0, LEAK_WARN, message)
    level = level_of(share, LEAK_WARN, LEAK_FAIL)
    advice = "Remove copies before the data are split: the test rows are not new to this fit."
    limit = LEAK_FAIL if level == "fail" else LEAK_WARN
    return LEAK(level, share, limit, message, advice)


def _shift(facts: _Facts) -> list[Finding]:
    distances, names = facts.column("shift")
    outside, _ = facts.column("outside")
    rows, _ = facts.column("compared_rows")
    test_rows = facts.known("compared_test_rows")
    if not (len(distances) == len(outside) == len(rows) > 0 and test_rows):
        return []
    # The Kolmogorov distance has this error with probability 1 - p, for all columns together.
    root = np.log(2 * len(distances) / SHIFT_P_VALUE) / 2
    bound = distances - np.sqrt(root * (1 / rows + 1 / test_rows))
    beyond = (bound > SHIFT_DISTANCE) & (outside > OUTSIDE_FAIL)
    k = int(np.where(beyond, 1 + outside, bound).argmax())
    value = float(bound[k])
    level: Level = "fail" if beyond[k] else "warn" if value > SHIFT_DISTANCE else "ok"
    message = (
        f"Of {len(names)} comparisons of training and test inputs, {names[k]} differs most: the "
        f"distribution functions are {format_number(float(distances[k]))} apart, at least "
        f"{format_number(max(value, 0.0))} beyond chance, and {format_share(float(outside[k]))} of "
        "the test rows lie beyond all training rows."
    )
    advice = (
        "Split the rows at random, or train on rows like those to be predicted: the test rows come "
        "from elsewhere."
    )
    return [SHIFT(level, value, SHIFT_DISTANCE, message, advice)]


def _outliers(tree: xarray.DataTree, facts: _Facts) -> list[Finding]:
    found = [
        variable(tree, "rows", name)
        for name in ("smallest", "smallest_replicated", "log_likelihood")
    ]
    observed, replicated, rows = (
        None if array is None else array.to_numpy().astype(np.float64) for array in found
    )
    if observed is None or replicated is None or rows is None:
        return []
    if not (np.isfinite(rows).all() and np.isfinite(replicated).all()):
        message = "Some training rows have a likelihood of zero."
        return [OUTLIERS("fail", None, None, message, "Look for network outputs that overflow.")]
    p_value = float((1 + (replicated <= observed).sum()) / (1 + replicated.size))
    improbable = rows < np.median(replicated)
    number = int(improbable.sum())
    # Each row of a correct model has half a nat of misfit on average: its squared residual over
    # twice the variance.
    owned = float((rows.mean() - rows[improbable]).sum() / (0.5 * len(rows)))
    beyond = p_value < TAIL_P_VALUE
    words = (
        f"The least probable training row has a log likelihood of "
        f"{format_number(float(np.median(observed)))} (replicated data: "
        f"{format_number(float(np.median(replicated)))}, p = {format_number(p_value)})."
    )
    if beyond and number > FEW_ROWS * len(rows):
        words += f" This holds for {number} rows, so it is the noise that does not fit."
        number, owned = 0, 0.0
    advice = (
        "Look at these rows; if they are right, use a likelihood with heavier tails (student_t)."
        if task_of(tree) == "regression"
        else "Look at these rows: correct or remove them."
    )
    tails = TAILS("warn" if beyond else "ok", p_value, TAIL_P_VALUE, words, advice)
    owned = owned if beyond else 0.0
    level = level_of(owned, OWNED_WARN, OWNED_FAIL)
    limit = OWNED_FAIL if level == "fail" else OWNED_WARN
    message = (
        f"{number if beyond else 0} of {len(rows)} training rows are less probable than the "
        f"likelihood allows and own {format_share(min(owned, 1.0))} of the misfit."
    )
    return [OUTLIERS(level, owned, limit, message, advice), tails]


def _extremes(facts: _Facts) -> Finding:
    top, where = _top(facts)
    message = f"Three rows have {format_share(top)} of the variance of {where}."
    advice = "Look at these rows: correct or remove them, or transform the column."
    return EXTREMES(level_of(top, TOP_SHARE), top, TOP_SHARE, message, advice)


def _top(facts: _Facts) -> tuple[float, str]:
    """Return the largest share of a column's variance that three rows have, and the column."""
    shares, names = facts.column("input_top_share")
    found = [*zip(shares.tolist(), names, strict=True)]
    return max([*found, (facts.known("target_top_share"), "the target")])
