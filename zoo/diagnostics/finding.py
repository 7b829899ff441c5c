"""Findings: the results of checks, with a level, a value, a threshold, a message and advice."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from zoo.diagnostics.uses import Use, uses_of
from zoo.errors import StoreError

Level = Literal["ok", "info", "unchecked", "warn", "fail"]

#: From harmless to serious.
LEVELS: tuple[Level, ...] = get_args(Level)
#: Levels in words, where they differ from their names.
LEVEL_WORDS: dict[Level, str] = {"unchecked": "not checked"}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Parameters
    ----------
    check
        Name of the check, ``theme.what``. Names are stable, so that runs can be compared.
    level
        ``ok``; ``info`` for numbers that are only reported; ``unchecked`` if the check could not
        run; ``warn`` if the result must be used with care; ``fail`` if it must not be used.
    value
        The value that was checked, or None.
    threshold
        The threshold of the value, or None.
    message
        One or two sentences with the numbers.
    advice
        What to do; dropped for ``ok`` and optional for ``info``.
    source
        Reference for the threshold.
    """

    check: str
    level: Level
    value: float | None
    threshold: float | None
    message: str
    advice: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level is {self.level!r}; known: {', '.join(LEVELS)}")
        for name in ("check", "message", "advice", "source"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r} instead of text")
        if not self.check or not self.message:
            raise ValueError("a finding needs the name of its check and a message")
        if self.level in ("unchecked", "warn", "fail") and not self.advice:
            raise ValueError(f"{self.check}: a finding of level {self.level!r} needs advice")
        if self.level == "ok":
            object.__setattr__(self, "advice", "")
        for name in ("value", "threshold"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))

    @property
    def uses(self) -> tuple[Use, ...]:
        """The uses of a fit that this check speaks for."""
        return uses_of(self.check)


def unchecked(check: str, reason: str, advice: str) -> Finding:
    """Return the finding that a check could not run, and what would make it possible."""
    return Finding(check, "unchecked", None, None, reason[0].upper() + reason[1:], advice)


def level_of(value: float, warn: float, fail: float = math.inf, *, judged: bool = True) -> Level:
    """Return the level of a value for which larger is worse.

    A value that is not judged gets ``info`` instead of ``warn``.
    """
    if value > fail:
        return "fail"
    poor: Level = "warn" if judged else "info"
    return poor if value > warn else "ok"


def refused_truth(reason: str, *, is_out_of_budget: bool = False) -> Finding:
    """Return the finding that there is no truth to compare a fit with."""
    advice = "Write the model in other coordinates, or compare on a smaller problem."
    if is_out_of_budget:
        advice = "Give it more time (--truth-seconds), or compare on a smaller problem."
    return unchecked("truth.accepted", f"there is no truth to compare with. {reason}", advice)


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain values; non-finite numbers become "nan", "inf" and "-inf"."""
    return {name: _encode(value) for name, value in asdict(finding).items()}


def format_number(number: float | None) -> str:
    """Format a number with three significant digits and without trailing zeros.

    >>> [format_number(x) for x in (0.12345, 1234.5, 2.0, 1e-7, float("nan"), None)]
    ['0.123', '1235', '2', '1e-07', 'nan', '–']
    """
    if number is None:
        return "–"
    if math.isfinite(number) and 1000 <= abs(number) < 1e6:
        return f"{number:.0f}"
    return f"{number:.3g}"


def format_estimate(value: float, error: float) -> str:
    """Format an estimate with the decimals that its standard error allows.

    >>> format_estimate(-123.456, 0.0312), format_estimate(-123.456, 31.2)
    ('-123.456 ± 0.031', '-123 ± 31')
    """
    if not (math.isfinite(error) and error > 0):
        return f"{value:.6g} ± {error:.2g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def format_share(share: float) -> str:
    """Format a fraction as a percentage: ``0.034`` as ``3.4 %``."""
    return f"{100 * share:.3g} %"


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool | str):
        raise ValueError(f"{name} is {value!r} instead of a number")
    return float(value)


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def finding_from_json(row: Any) -> Finding:
    """Return the finding that `finding_to_json` wrote; a `StoreError` names what is wrong."""
    known = {field.name for field in fields(Finding)}
    if not isinstance(row, Mapping) or set(row) != known:
        raise StoreError(f"a finding must have exactly the keys {', '.join(sorted(known))}: {row}")
    values = dict(row)
    try:
        for name in ("value", "threshold"):
            if values[name] in ("nan", "inf", "-inf"):
                values[name] = float(values[name])
        return Finding(**values)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a finding cannot be read: {error}") from None
