"""What the documentation shows runs, and says what is there."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from docs.methods_table import with_table
from zoo.registry import list_models

ROOT = Path(zoo.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

RUNNER = """
import sys
for path in sys.argv[1:]:
    exec(compile(open(path, encoding="utf-8").read(), path, "exec"), {"__name__": path})
"""


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_python_blocks_run(tmp_path):
    files = []
    for page in PAGES:
        for number, block in enumerate(blocks(page)):
            file = tmp_path / f"{page.stem}_{number}.py"
            file.write_text(block, encoding="utf-8")
            files.append(str(file))
    assert len(files) >= 4
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *files],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_table_is_up_to_date():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(text) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


def test_the_page_of_methods_names_the_module_of_each(tmp_path):
    (tmp_path / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    runpy.run_path(str(tmp_path / "conf.py"))
    page = (tmp_path / "methods.rst").read_text()
    for name in list_models():
        assert f".. automodule:: zoo.models.{name}\n" in page
