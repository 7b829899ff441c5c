"""Confusion matrices of labels and verdicts, with intervals."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.verdict_kinds.running import KEYS

LEVELS = ("ok", "unchecked", "info", "warn", "fail", "error")
LABELS = ("good", "bad", "unknown")
#: What is asked for: label, what is counted, which verdicts count, and the limit.
TARGETS = (
    ("good", "ok", ("ok",), 0.90, "at least"),
    ("good", "fail", ("fail", "error"), 0.02, "at most"),
    ("bad", "not ok", tuple(level for level in LEVELS if level != "ok"), 0.95, "at least"),
    ("bad", "fail", ("fail", "error"), 0.85, "at least"),
    ("unknown", "not ok", tuple(level for level in LEVELS if level != "ok"), 1.0, "at least"),
)
#: How far kinds that were kept out may be from the targets.
SLACK = 0.10


def wilson(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a proportion.

    >>> low, high = wilson(9, 10)
    >>> round(low, 3), round(high, 3)
    (0.596, 0.982)
    """
    if total == 0:
        return 0.0, 1.0
    z = float(stats.norm.isf((1 - confidence) / 2))
    share = count / total
    center = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(0.0, center - half), min(1.0, center + half)


def judged_rows(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return the rows with a label and a verdict for a use, or overall."""
    label, level = table[f"label_{key}"], table[f"verdict_{key}"]
    return table[(label != "") & (level != "")]


def confusion(table: pd.DataFrame) -> pd.DataFrame:
    """Count verdicts by use and label."""
    rows = []
    for key in KEYS:
        chosen = judged_rows(table, key)
        for label in LABELS:
            found = chosen[chosen[f"label_{key}"] == label][f"verdict_{key}"]
            if len(found):
                counts = {level: int((found == level).sum()) for level in LEVELS}
                rows.append({"use": key, "label": label, "fits": len(found), **counts})
    return pd.DataFrame(rows)


def rates(table: pd.DataFrame, *, kept: bool) -> pd.DataFrame:
    """Return the rates that have targets, with 95 % intervals; a kept part has some slack."""
    rows = []
    for key in KEYS:
        chosen = judged_rows(table, key)
        for label, what, levels, limit, side in TARGETS:
            found = chosen[chosen[f"label_{key}"] == label][f"verdict_{key}"]
            if not len(found):
                continue
            count = int(found.isin(levels).sum())
            low, high = wilson(count, len(found))
            if kept:
                limit = max(0.0, limit - SLACK) if side == "at least" else limit + SLACK
            share = count / len(found)
            is_met = share >= limit if side == "at least" else share <= limit
            rows.append(
                {
                    "use": key,
                    "label": label,
                    "counted": what,
                    "fits": len(found),
                    "rate": percent(share),
                    "95 % interval": f"{percent(low)} to {percent(high)}",
                    "target": f"{side} {percent(limit)}",
                    "": "met" if is_met else "missed",
                }
            )
    return pd.DataFrame(rows)


def by_kind(table: pd.DataFrame, key: str = "overall") -> pd.DataFrame:
    """Count verdicts by kind, with the interval of the rate that its label asks for."""
    chosen, rows = judged_rows(table, key), []
    for (kind, label), group in chosen.groupby(["kind", f"label_{key}"], sort=False):
        levels = group[f"verdict_{key}"]
        right = levels == "ok" if label == "good" else levels != "ok"
        low, high = wilson(int(right.sum()), len(right))
        counts = {level: int((levels == level).sum()) for level in LEVELS}
        wanted = "ok" if label == "good" else "not ok"
        rate = f"{percent(float(np.mean(right)))} {wanted} ({percent(low)} to {percent(high)})"
        causes = most_common(group[f"failed_{key}"]) or most_common(group[f"warned_{key}"])
        rows.append({"kind": kind, "label": label, **counts, "rate": rate, "checks": causes})
    order = {label: place for place, label in enumerate(LABELS)}
    return pd.DataFrame(rows).sort_values(
        "label", key=lambda column: column.map(order), kind="stable"
    )


def most_common(texts: Iterable[str], number: int = 2) -> str:
    """Return the names that occur in most texts."""
    names = pd.Series([name for text in texts for name in str(text).split()], dtype=str)
    return " ".join(names.value_counts().index[:number])


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.0f} %"
