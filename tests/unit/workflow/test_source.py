import inspect
from types import SimpleNamespace

import guides.mean_field
from zoo.registry import get
from zoo.workflow.source import guide_source, model_source, sample_code

MODULE = '''"""A module."""

import pyro

SCALE = 3


def helper(x):
    return pyro.param("x", x)


@decorated(
    scale=SCALE,
)
class Model:
    """The model."""

    def forward(self):
        """Draw."""
        with pyro.plate("rows", 3):
            return pyro.sample("w", Normal(0, SCALE))  # eq. 1


def untouched():
    """Call pyro.sample("w") somewhere else."""


def model():
    pyro.sample("y", Normal(0, 1))
'''


def test_definitions_that_sample_are_kept_whole():
    found = sample_code(MODULE)
    assert found.startswith("@decorated(\n    scale=SCALE,\n)\nclass Model:\n")
    assert "# eq. 1\n\n\ndef model():" in found
    assert "helper" not in found
    assert "untouched" not in found


def test_a_module_without_sample_statements_is_shown_after_its_imports():
    assert sample_code('"""Doc."""\n\nimport os\n\nA = 1\n\n\ndef f():\n    pass\n') == (
        "A = 1\n\n\ndef f():\n    pass"
    )
    assert sample_code('"""Doc."""\n') == ""


def test_model_and_guide_of_a_method():
    entry = get("mean_field")
    assert "pyro.sample(" in model_source(entry)
    assert guide_source(entry) in inspect.getsource(guides.mean_field)
    assert "pyro.sample" in guide_source(entry)


def test_a_model_that_another_method_defines_is_shown_with_it():
    shown = model_source(get("laplace"))
    assert "class LaplaceNetwork" in shown
    assert "pyro.sample(" in shown


def test_a_guide_that_samples_through_its_parts_is_shown():
    assert "class HypernetworkGuide" in guide_source(get("hypernetwork"))


def test_a_method_without_a_guide_of_its_name():
    assert guide_source(SimpleNamespace(name="of_a_plug_in")) == ""
