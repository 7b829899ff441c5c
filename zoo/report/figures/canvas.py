"""Convert matplotlib figures to inline SVG in the colours of the page: light, dark and print.

A figure consists of panels of equal width, which the page places side by side if there is room and
below each other on a phone. matplotlib draws in the colours of the light page; then every colour
is replaced by its CSS variable.
"""

import hashlib
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours by role; the stylesheet defines the corresponding variables.
INK, DIM, GRID = "#1c2431", "#5b6676", "#d9dee6"
FIT, TRUTH, BAND = "#0b6bcc", "#c4500b", "#8b96a4"
VARIABLES = {
    INK: "--ink",
    DIM: "--dim",
    GRID: "--line",
    FIT: "--fit",
    TRUTH: "--truth",
    BAND: "--band",
}

#: Size of a panel in points, 72 to the inch.
WIDTH, HEIGHT = 420.0, 250.0

#: Longest name shown in a figure.
MAX_NAME = 28

STYLE: dict[str, Any] = {
    "axes.edgecolor": BAND,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": DIM,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "font.size": 10.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "pyro-zoo",
    # Dollar signs in names of sites and columns are not formulas.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": BAND,
    "xtick.labelcolor": DIM,
    "ytick.color": BAND,
    "ytick.labelcolor": DIM,
}


@dataclass(frozen=True)
class Picture:
    """A figure: panels, and a caption that explains how to read them."""

    panels: Sequence[Markup]
    caption: str


def short(name: str, length: int = MAX_NAME) -> str:
    """Shorten a name for a figure: one line, visible characters, limited length.

    >>> short("a" * 50, 9)
    'aaaa…aaaa'
    """
    name = _visible(name)
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _visible(text: str) -> str:
    """Replace control characters and lone surrogates, which are invalid in XML."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in text)


def panel(paint: "Callable[[Axes], None]", *, alt: str, height: float = HEIGHT) -> Markup:
    """Return what `paint` draws as an SVG element; `alt` describes it for screen readers."""
    # Importing matplotlib takes half a second, and most commands do not plot.
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    content = io.StringIO()
    with rc_context(STYLE), warnings.catch_warnings():
        # The font is chosen by the browser, not by matplotlib.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        paint(figure.subplots())
        # `savefig` would draw everything twice.
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
    return _inline(content.getvalue(), alt)


def _inline(text: str, alt: str) -> Markup:
    """Convert an SVG document to an element of an HTML page."""
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var({name})")
    root = ElementTree.fromstring(text)
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        element.attrib = {
            key.rpartition("}")[2]: _prefixed(key.rpartition("}")[2], value, prefix)
            for key, value in element.attrib.items()
        }
        if element.tag == "g" and not element.get("clip-path"):
            # matplotlib gives every group an id that is never referenced.
            element.attrib.pop("id", None)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": _visible(alt)}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _prefixed(key: str, value: str, prefix: str) -> str:
    """Make the ids of a figure unique on the page."""
    if key == "id":
        return prefix + value
    if key == "href":
        return value.replace("#", f"#{prefix}")
    if key in ("clip-path", "style"):
        return value.replace("url(#", f"url(#{prefix}")
    if key == "d":
        return re.sub(r"\s+", " ", value).strip()
    return value
