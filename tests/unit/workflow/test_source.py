import inspect
from types import SimpleNamespace

from torch import nn

import guides.mean_field
import zoo
from zoo.registry import get
from zoo.workflow.source import guide_module, guide_source, model_source, sample_code

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
    shown = guide_source("guides.mean_field")
    assert shown in inspect.getsource(guides.mean_field)
    assert "pyro.sample" in shown
    assert "pyro.sample(" in model_source(get("evidence"))


def test_a_model_that_another_method_defines_is_shown_with_it():
    shown = model_source(get("laplace"))
    assert "class LaplaceNetwork" in shown
    assert "pyro.sample(" in shown


def test_a_guide_that_samples_through_its_parts_is_shown():
    assert "class HypernetworkGuide" in guide_source("guides.hypernetwork")


def test_a_method_without_a_guide_of_its_name_shows_the_shared_one():
    laplace, plain = (
        zoo.create(name, nn.Linear(3, 1), likelihood="gaussian", num_data=5).guide(init_scale=0.1)
        for name in ("laplace", "mean_field")
    )
    assert guide_module(get("evidence"), laplace) == "guides.laplace"
    assert guide_module(get("laplace"), laplace) == "guides.laplace"
    plug_in = SimpleNamespace(name="of_a_plug_in")
    assert guide_module(plug_in, plain) is None  # composed of the guides of its slots
