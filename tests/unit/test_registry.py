"""The registry: listing, look-up, and plug-ins that need no edit anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from docs.methods_table import BEGIN, END, methods_table, with_table
from zoo.errors import UnknownNameError
from zoo.network.method import Method
from zoo.registry import get, list_models, method_name, register

ROOT = Path(zoo.__file__).parent.parent

METHOD = '''
r"""A method that exists for a test only.

.. math:: w_i \\sim N(0, 4)

Use it never. Reference: none.
"""
from zoo.network.method import Method
from zoo.registry import Recipe, register

@register(priors={"*": "Normal(0, 2)"}, recipe=Recipe(), reference="A test (2026)")
class %sMethod(Method):
    """Wide normal priors."""
'''


def run(*arguments, path, cwd):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [path, ROOT]))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=cwd,
    )


def test_wildcards_and_tasks_choose_methods():
    assert list_models("*horseshoe*") == ["group_horseshoe"]
    assert "mean_field" in list_models(task="counts")
    assert list_models("nothing*") == []


def test_unknown_names_list_what_is_known():
    with pytest.raises(UnknownNameError, match="Did you mean 'mean_field'"):
        get("mean_feild")
    with pytest.raises(UnknownNameError, match="regression"):
        list_models(task="clustering")


def test_two_methods_cannot_share_a_name():
    class MeanFieldMethod(Method):
        """Pretend."""

    with pytest.raises(ValueError, match="already registered"):
        register(priors={}, recipe=get("mean_field").recipe, reference="")(MeanFieldMethod)


def test_a_class_is_registered_in_snake_case_without_its_last_word():
    assert method_name("SparseVDMethod") == "sparse_vd"
    assert method_name("GumbelSoftmaxStructureMethod") == "gumbel_softmax_structure"


def test_every_file_of_the_folder_registers_the_method_of_its_name():
    files = {p.stem for p in (ROOT / "zoo" / "models").glob("*.py")} - {"__init__"}
    assert files <= set(list_models())
    for name in files:
        assert get(name).method.__module__ == f"zoo.models.{name}"


def test_readme_table_holds_every_method():
    for name in list_models():
        assert f"| `{name}` |" in methods_table()
    text = with_table(f"before\n{BEGIN}\nthe table before\n{END}\nafter")
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "the table before" not in text
    assert with_table(text) == text


def test_a_plug_in_appears_everywhere_without_an_edit(tmp_path):
    (tmp_path / "plugged_package.py").write_text(METHOD % "Plugged")
    info = tmp_path / "plugged_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zoo.models]\nplugged = plugged_package\n")
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")

    assert "plugged" in run("-m", "zoo", "list", path=tmp_path, cwd=tmp_path).stdout
    assert (
        "for a test only" in run("-m", "zoo", "show", "plugged", path=tmp_path, cwd=tmp_path).stdout
    )
    run(str(ROOT / "docs" / "methods_table.py"), str(readme), path=tmp_path, cwd=tmp_path)
    assert "| `plugged` |" in readme.read_text()
    collected = run(
        "-m", "pytest", "--collect-only", "-q", "tests/contract", path=tmp_path, cwd=ROOT
    )
    assert "test_method_keeps_its_contract[plugged-kl_is_exact]" in collected.stdout


def test_a_file_dropped_into_the_folder_is_a_method(tmp_path):
    copy = tmp_path / "zoo"
    copy.mkdir()
    for child in (ROOT / "zoo").iterdir():
        if child.name != "models" and child.name != "__pycache__":
            (copy / child.name).symlink_to(child)
    (copy / "models").mkdir()
    for child in (ROOT / "zoo" / "models").glob("*.py"):
        (copy / "models" / child.name).symlink_to(child)
    (copy / "models" / "dropped.py").write_text(METHOD % "Dropped")
    result = run("-m", "zoo", "list", path=tmp_path, cwd=tmp_path)
    assert "dropped" in result.stdout, result.stderr
