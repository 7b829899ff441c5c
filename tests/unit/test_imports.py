"""No module imports itself, however long the way."""

import graphlib
import subprocess
import sys

import grimp
import pytest


def imports():
    graph = grimp.build_graph("zoo", "guides", exclude_type_checking_imports=True)
    return {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}


def test_there_is_no_import_cycle():
    try:
        graphlib.TopologicalSorter(imports()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_the_walk_sees_a_cycle():
    found = imports()
    found["zoo.errors"] = {"zoo.workflow.fitting"}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(found).prepare()


@pytest.mark.parametrize("room", ["fit", "truth", "compress"])
def test_functions_keep_their_names_beside_packages(room):
    code = f"import zoo; import zoo.{room}; assert callable(zoo.{room}), zoo.{room}"
    subprocess.run([sys.executable, "-c", code], check=True)
