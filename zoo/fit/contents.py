"""The list of what a fit has written into its tree, by which a loss is noticed."""

import json

import xarray

#: Root attribute with the list.
LISTED = "contents"


def contents_of(tree: xarray.DataTree) -> set[str]:
    """Return the names of groups, variables and root attributes of a tree."""
    found = {f"attribute {name}" for name in tree.attrs if name != LISTED}
    for name, group in tree.children.items():
        found |= {name, *(f"{name}/{variable}" for variable in group.data_vars)}
        found |= {f"{name}, attribute {attribute}" for attribute in group.attrs}
    return found


def list_contents(tree: xarray.DataTree) -> None:
    """Write the list of all contents."""
    tree.attrs[LISTED] = json.dumps(sorted(contents_of(tree)))


def lost_contents(tree: xarray.DataTree) -> list[str] | None:
    """Return what is in the list and no longer in the tree; None if there is no list."""
    try:
        listed = set(json.loads(tree.attrs[LISTED]))
    except (KeyError, TypeError, ValueError):
        return None
    return sorted(listed - contents_of(tree))
