"""Whether a tree still has everything that the fit has written into it."""

from functools import partial

import xarray

from zoo.diagnostics.finding import Finding, unchecked
from zoo.fit.contents import LISTED, lost_contents

COMPLETE = partial(Finding, "tree.complete")

#: Number of missing names that a message shows.
SHOWN = 4


def contents_findings(tree: xarray.DataTree) -> list[Finding]:
    """Compare a tree of this library with the list of its contents.

    Checks read what they find, so one that lost its evidence might be left out without a word.
    """
    if tree.attrs.get("creation_library") != "pyro-zoo" and LISTED not in tree.attrs:
        return []
    lost = lost_contents(tree)
    advice = "Fit again, and keep all groups of the tree."
    if lost is None:
        reason = "the tree has no list of its contents; earlier versions did not write one."
        return [unchecked("tree.complete", reason, advice)]
    if lost:
        names = ", ".join(lost[:SHOWN]) + (f" and {len(lost) - SHOWN} more" * (len(lost) > SHOWN))
        return [unchecked("tree.complete", f"the tree has lost {names}.", advice)]
    return [COMPLETE("ok", 0, 0, "The tree has everything that the fit has written.")]
