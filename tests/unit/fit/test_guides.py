"""Guides by name: ours, and those of plug-ins, which need no edit anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import zoo
from guides import FullRank, MeanField
from guides.base import GUIDES, Guide
from guides.slot import LocScale
from zoo.errors import ConfigError, UnknownNameError
from zoo.fit.any_model import BoundModel, model_guide
from zoo.fit.guides import build_guide, guide_text, parse_guide

ROOT = Path(zoo.__file__).parent.parent
PLUG_IN = """
from guides import MeanField

class PluggedGuide(MeanField):
    def __init__(self, model, *args, init=None, init_scale=0.1, **options):
        super().__init__(model, *args, init=init, init_scale=init_scale)
        self.options = options
"""


class AllNormalGuide(Guide):
    """Independent Normals on the real line."""

    def __init__(self, model, *, init, init_scale, widen=1):
        super().__init__()
        self.sites = list(init)
        self.parts = nn.ModuleList(LocScale(v, widen * init_scale) for v in init.values())

    def guide(self):
        for name, part in zip(self.sites, self.parts, strict=True):
            pyro.sample(name, part.normal())


@pytest.fixture
def model():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    return zoo.create("mean_field", net, likelihood="gaussian(noise=1)", num_data=5)


def test_only_guides_of_whole_models_have_names():
    assert {"MeanField", "FullRank", "AllNormalGuide"} <= set(GUIDES)
    assert not {"Composite", "Adapted", "SlotGuide", "GroupHorseshoeGuide"} & set(GUIDES)
    assert parse_guide("mean_field") == (MeanField, {})
    assert parse_guide("full_rank") == (FullRank, {})


def test_a_guide_that_was_defined_is_built_by_name_with_options(model):
    made = build_guide(model, "all_normal(widen=3)", 0.1)
    assert isinstance(made, AllNormalGuide)
    assert guide_text("all_normal(widen=3)") == "all_normal(widen=3)"
    assert torch.equal(made.medians()["0.weight"], model.net[0].weight)
    assert made.parts[0].scale.flatten()[0].item() == pytest.approx(0.3)


def test_a_named_guide_fits_any_model():
    def program():
        pyro.sample("z", dist.Normal(2.0, 1.0).expand([2]).to_event(1))

    made = model_guide(BoundModel(program, (), {}), "all_normal", 0.1)
    assert made.medians()["z"].tolist() == [2, 2]


def test_a_named_guide_trains():
    x, y = torch.randn(20, 3).numpy(), torch.randn(20).numpy()
    options = {"num_steps": 3, "num_samples": 2, "compile": "off", "progress_bar": False}
    fitted = zoo.fit("mean_field", x, y, net="mlp:3-2-1", guide="mean_field", **options)
    assert isinstance(fitted.assembly.guide, MeanField)


@pytest.mark.parametrize("guide", ["mean_field", "AutoNormal", AutoNormal])
@pytest.mark.parametrize("method", ["evidence", "hypernetwork", "darts", "swag"])
def test_methods_with_their_own_guide_take_no_other(method, guide):
    """With another one, evidence would return an untrained guide and the others would crash."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    model = zoo.create(method, net, likelihood="gaussian(noise=1)", num_data=5)
    name = guide if isinstance(guide, str) else guide.__name__
    with pytest.raises(
        ConfigError, match=f"the guide '{name}' cannot be used: {model.method.own_guide}"
    ):
        build_guide(model, guide, 0.1)


def test_a_guide_that_cannot_be_built_is_named(model):
    with pytest.raises(ConfigError, match=r"the guide 'all_normal\(widen=x\)' cannot be used"):
        build_guide(model, "all_normal(widen=x)", 0.1)


def test_unknown_guides_are_listed():
    with pytest.raises(UnknownNameError, match="Did you mean 'all_normal'"):
        parse_guide("all_norml")


def test_two_guides_cannot_share_a_name():
    with pytest.raises(ValueError, match=r"'MeanField' of .* is already defined by guides"):
        type("MeanField", (MeanField,), {})
    assert GUIDES["MeanField"] is MeanField


def test_a_plug_in_guide_is_found_by_name(tmp_path):
    (tmp_path / "plugged_guide.py").write_text(PLUG_IN)
    info = tmp_path / "plugged_guide-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-guide\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zoo.guides]\nplugged = plugged_guide\n")
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from zoo.fit.guides import parse_guide; print(parse_guide('plugged(rank=5)'))",
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [tmp_path, ROOT]))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert "plugged_guide.PluggedGuide" in found.stdout, found.stderr
    assert "{'rank': 5}" in found.stdout
