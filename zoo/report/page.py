"""The report of one fit, generated from saved trees, with the verdict first."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import xarray

from zoo.diagnostics import Judgement, judge
from zoo.diagnostics.reading import row_count, variables
from zoo.diagnostics.robustness import DENSITY, main_score, robustness_curves
from zoo.diagnostics.sensitivity import SENSITIVE, power_scaling_table
from zoo.diagnostics.uses import USE_WORDS
from zoo.report import tables
from zoo.report.compression import compression_tables
from zoo.report.figures.calibration import calibration_pictures
from zoo.report.figures.canvas import Picture
from zoo.report.figures.forest import forest_picture, parameter_rows
from zoo.report.figures.graph import graph_picture
from zoo.report.figures.predictions import prediction_pictures
from zoo.report.figures.robustness import robustness_picture
from zoo.report.figures.sensitivity import prior_picture
from zoo.report.figures.sparsity import sparsity_pictures
from zoo.report.figures.training import elbo_picture
from zoo.report.figures.truth import truth_pictures
from zoo.report.tables import Table
from zoo.report.templating import render

#: Levels of findings that are shown at the top.
SERIOUS = ("fail", "warn", "unchecked")

#: Names of the truth by the attribute ``kind``.
TRUTHS = {"nuts": "HMC (NUTS)", "exact": "the exact posterior"}

#: Settings of the configuration shown first, if present.
FACTS = {
    "method": "method",
    "guide": "guide",
    "net": "network",
    "likelihood": "likelihood",
    "data": "data",
    "target": "target",
}

T = TypeVar("T")


@dataclass
class Section:
    """A section of the page, omitted if empty; pictures and tables that are None are dropped."""

    anchor: str
    title: str
    lead: str = ""
    facts: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture | None] = ()
    tables: Sequence[Table | None] = ()
    code: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.pictures = [picture for picture in self.pictures if picture is not None]
        self.tables = [table for table in self.tables if table is not None]

    @property
    def filled(self) -> bool:
        """Whether the section has content."""
        return bool(self.facts or self.pictures or self.tables or self.code or self.notes)


def render_report(
    tree: xarray.DataTree,
    truth: xarray.DataTree | None = None,
    judgement: Judgement | None = None,
    *,
    compression: Mapping[str, Any] | None = None,
) -> str:
    """Return the report of a fit as a self-contained HTML page.

    Parameters
    ----------
    tree
        A fit in ArviZ's schema. Sections of missing groups are omitted. Root attributes:
        ``task``, ``method``, ``seed``, ``dimension``, ``identified``; JSON texts ``config``,
        ``priors``, ``metrics``, ``groups``, ``versions``; texts ``summary``, ``reference``,
        ``command``.
    truth
        The same quantities from NUTS or in closed form.
    judgement
        The findings to show, and the uses that count; by default those of
        `zoo.diagnostics.judge`.
    compression
        The measurements of ``zoo compress``, if the run was compressed.
    """
    judgement = judge(tree, truth) if judgement is None else judgement
    found, verdict = list(judgement.findings), judgement.verdict
    attributes = _Attributes(tree)
    sections = [
        _fitted(tree, attributes),
        _scores(attributes),
        Section(
            "training",
            "Training",
            pictures=[elbo_picture(tree, found)],
            tables=[tables.restart_table(tree)],
        ),
        _posterior(tree, truth),
        Section(
            "calibration",
            "Calibration",
            "Calibration of predicted probabilities and intervals on held-out rows.",
            pictures=calibration_pictures(tree),
        ),
        Section("predictions", "Predictions", pictures=prediction_pictures(tree)),
        _robustness(tree),
        Section(
            "structure",
            "Structure",
            "Posterior weights of the primitive functions of the network.",
            pictures=[graph_picture(attributes.mapping("structure").get("edges"))],
        ),
        _sparsity(attributes),
        Section(
            "compression",
            "Compression",
            "The network of posterior means before and after removing units and rounding weights "
            "to the precision given by their posterior variances. The scores are those of this "
            "single network, not of the average over the posterior.",
            tables=compression_tables(compression or {}),
        ),
        _sensitivity(tree),
        Section("checks", "All checks", tables=[tables.findings_table(found)]),
        _repeat(attributes),
    ]
    # Findings on uses that are not asked for are in the table of all checks.
    counted = [f for f in found if set(f.uses) & set(verdict.asked)]
    serious = [f for level in SERIOUS for f in counted if f.level == level]
    return render(
        "report.html",
        title=attributes.title,
        subtitle=attributes.text("summary"),
        verdict=verdict,
        uses=[(USE_WORDS[use], verdict.uses[use]) for use in verdict.asked],
        others=[
            (USE_WORDS[use], found)
            for use, found in verdict.uses.items()
            if use not in verdict.asked and found.level != "unchecked"
        ],
        serious=serious,
        counts={
            level: sum(f.level == level for f in counted) for level in (*SERIOUS, "ok", "info")
        },
        sections=[section for section in sections if section.filled],
    )


class _Attributes:
    """The root attributes of a tree; missing or unreadable ones are empty."""

    def __init__(self, tree: xarray.DataTree) -> None:
        self._values = tree.attrs
        self.config = self.mapping("config")

    def text(self, name: str) -> str:
        return str(self._values.get(name, ""))

    def parsed(self, name: str, kind: type[T]) -> T:
        try:
            value = json.loads(self._values.get(name, "null"))
        except (TypeError, ValueError):
            value = None
        return value if isinstance(value, kind) else kind()

    def mapping(self, name: str) -> dict[str, Any]:
        return self.parsed(name, dict)

    @property
    def title(self) -> str:
        method = self.text("method") or str(self.config.get("method") or "Posterior")
        return f"{method} on {self.config['data']}" if self.config.get("data") else method


def _fitted(tree: xarray.DataTree, attributes: _Attributes) -> Section:
    config = attributes.config or {"method": attributes.text("method") or None}
    facts: dict[str, Any] = {title: config.get(key) for key, title in FACTS.items()}
    facts["task"] = attributes.text("task") or None
    rows = "training rows in the tree" if facts["task"] else "observed values"
    facts[rows] = row_count(tree) or None
    facts["unknowns"] = attributes.text("dimension") or None
    if "posterior" in tree.children:
        sizes = tree["posterior"].sizes
        facts["posterior draws"] = sizes.get("chain", 1) * sizes.get("draw", 1)
        facts["sites"] = len(variables(tree, "posterior"))
    reference = attributes.text("reference")
    notes = [f"Reference: {reference}"] if reference else []
    priors = tables.prior_table(attributes.mapping("priors"))
    facts_shown = tables.plain_items(facts)
    return Section("fitted", "Model", facts=facts_shown, tables=[priors], notes=notes)


def _scores(attributes: _Attributes) -> Section:
    metrics = attributes.mapping("metrics")
    draws = attributes.config.get("num_samples")
    averaged = f"Predictions are averages over {draws} posterior draws. " if draws else ""
    scores, totals = tables.score_table(metrics), tables.total_table(metrics)
    if scores is None:
        return Section("scores", "Summary", tables=[totals])
    references = (
        " The references were fitted to the same training rows and score the test rows: the mean "
        "or the shares of the classes, a penalised linear model, and one with a kernel."
        if any(key.startswith("reference.") for key in metrics)
        else ""
    )
    return Section(
        "scores",
        "Scores",
        f"{averaged}Test rows were not used in the fit; a large gap to the training rows indicates "
        f"overfitting. Except for accuracy, lower is better.{references}",
        tables=[scores, totals],
    )


def _posterior(tree: xarray.DataTree, truth: xarray.DataTree | None) -> Section:
    kind = "" if truth is None else str(truth.attrs.get("kind", ""))
    words = TRUTHS.get(kind, "the truth")
    rows = parameter_rows(tree, truth)
    listed = [tables.parameter_table(rows)]
    pictures = [forest_picture(rows, words)]
    if truth is None:
        lead = "There is no truth to compare with; the approximation is assessed by the checks."
        return Section("posterior", "Posterior", lead, pictures=pictures, tables=listed)
    recipe = tables.mapping_table("Recipe of the truth", _Attributes(truth).mapping("recipe"))
    return Section(
        "posterior",
        f"Variational fit and {words}",
        "The truth is the posterior of the same model without a variational approximation. "
        "Outputs, log joint and identified parameters are compared. The weights of a network are "
        "not compared, because different weights can give the same function.",
        pictures=[*truth_pictures(tree, truth, words), *pictures],
        tables=[*listed, recipe],
    )


def _robustness(tree: xarray.DataTree) -> Section:
    score = main_score(tree)
    if score is None:
        return Section("robustness", "Robustness")
    attributes = tree["robustness"].attrs
    kind = "held-out" if attributes.get("held_out") else "training"
    return Section(
        "robustness",
        "Robustness",
        f"Scores on {attributes.get('rows', 'the')} {kind} rows with perturbed inputs or weights. "
        "Noise and steps are in the units of the network inputs. FGSM moves every input by one "
        "step in the direction that makes the true target less probable, averaged over draws.",
        pictures=[
            robustness_picture({"": robustness_curves(tree, name)}, name)
            for name in (score, DENSITY)
        ],
        tables=[tables.robustness_table(tree, score)],
    )


def _sparsity(attributes: _Attributes) -> Section:
    groups = attributes.mapping("groups")
    slots = {
        name: slot
        for name, slot in (groups.get("slots") or {}).items()
        if isinstance(slot, Mapping) and slot.get("groups")
    }
    if not slots:
        return Section("sparsity", "Sparsity")
    left = groups.get("weights_left_percent")
    share = "" if left is None else f"{left:.1f} % of the weights can still influence the output. "
    taken_back = ""
    if relaxed := groups.get("relaxed"):
        taken_back = (
            f" Here the threshold was relaxed by {relaxed} of {groups.get('relaxations')} steps, "
            "because pruning was too costly on the training rows."
        )
    return Section(
        "sparsity",
        "Sparsity",
        f"{share}Groups with a higher score are noisier; those above the threshold are pruned. "
        "The threshold is the method's published one or, if there is none, splits the scores of a "
        f"layer into two clusters.{taken_back}",
        pictures=sparsity_pictures(slots),
        tables=[tables.sparsity_table(slots)],
    )


def _sensitivity(tree: xarray.DataTree) -> Section:
    table = tables.power_scaling_rows(power_scaling_table(tree))
    scaled = (
        " The table shows how much predictions and scalar sites change when prior or likelihood "
        f"get slightly more weight. Values above {SENSITIVE} are relevant, unless they are noise "
        "of the re-weighting (see the check sensitivity.power_scaling)."
    )
    return Section(
        "sensitivity",
        "Prior sensitivity",
        "The influence of the prior on the posterior." + (scaled if table else ""),
        pictures=[prior_picture(tree)],
        tables=[table],
    )


def _repeat(attributes: _Attributes) -> Section:
    config = {k: v for k, v in attributes.config.items() if k != "priors"}
    return Section(
        "repeat",
        "How to reproduce this run",
        facts=tables.plain_items({"seed": attributes.text("seed") or None}),
        code=attributes.text("command"),
        tables=[
            tables.mapping_table("Configuration", config),
            tables.mapping_table("Versions", attributes.mapping("versions")),
        ],
    )
