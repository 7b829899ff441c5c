from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.errors import ConfigError, PriorError
from zoo.fit.config import RunConfig, dump_config, make_config, read_config
from zoo.registry import get, list_models


def round_trip(config, path):
    path.write_text(dump_config(config), encoding="utf-8")
    return make_config(**read_config(path))


@pytest.mark.parametrize("name", list_models())
def test_a_resolved_configuration_repeats_itself(name, tmp_path):
    entry = get(name)
    config = make_config(method=name, data="wine").resolved(entry, likelihood="categorical")
    assert config.recipe(entry) == replace(entry.recipe, until_converged=True)
    assert (config.num_steps, config.nominal_steps) == (None, entry.recipe.num_steps)
    again = round_trip(config, tmp_path / "c.yaml")
    assert again == config
    assert again.resolved(entry) == config


def test_given_values_come_before_those_of_the_method():
    entry = get("mean_field")
    config = make_config(method="mean_field", lr=0.5, num_steps=7)
    recipe = config.recipe(entry)
    assert (recipe.lr, recipe.num_steps) == (0.5, 7)
    assert recipe.batch_size == entry.recipe.batch_size


@settings(max_examples=50)
@given(
    lr=st.floats(1e-300, 1e300),
    seed=st.integers(0, 2**63 - 1),
    data=st.text(st.characters(codec="utf-8"), min_size=1),
    ignore=st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
)
def test_any_value_survives_the_file(lr, seed, data, ignore):
    config = make_config(method="m", lr=lr, seed=seed, data=data, ignore=ignore)
    assert make_config(**yaml.safe_load(dump_config(config))) == config


def test_priors_are_stored_as_text_however_they_were_written(tmp_path):
    sources = ("Normal(0, 2)", {"dist": "Normal", "loc": 0, "scale": 2}, "Normal(loc=0,scale=2)")
    for source in sources:
        config = make_config(method="mean_field", priors={"*": source})
        assert config.priors == {"*": "Normal(loc=0, scale=2)"}
        assert round_trip(config, tmp_path / "c.yaml") == config


def test_yaml_reads_small_numbers_as_text_which_is_accepted(tmp_path):
    (tmp_path / "c.yaml").write_text("method: m\nlr: 1e-3\npriors:\n  '*': Normal(0, 1e-5)\n")
    config = make_config(**read_config(tmp_path / "c.yaml"))
    assert config.lr == 0.001
    assert config.priors == {"*": "Normal(loc=0, scale=1e-05)"}


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({}, "needs a value for 'method'"),
        ({"method": 3}, "value of 'method' is not accepted: .*Got 3"),
        ({"method": "m", "lrr": 1}, r"unknown configuration key 'lrr'\. Did you mean 'lr'\?"),
        ({"method": "m", "lr": -1}, "value of 'lr' is not accepted: .*greater than 0. Got -1"),
        ({"method": "m", "lr": float("inf")}, "finite"),
        ({"method": "m", "lr": float("nan")}, "finite"),
        ({"method": "m", "grad_clip": 0}, "'grad_clip'"),
        ({"method": "m", "num_steps": 1.5}, "'num_steps'"),
        ({"method": "m", "task": "guess"}, "value of 'task' is not accepted: .*'counts'"),
        ({"method": "m", "ignore": "a"}, "'ignore'"),
        ({"method": "m", "priors": "Normal(0, 1)"}, "'priors'"),
        ({"method": "m", "data": "x" * 500, "lr": "y" * 500}, "'lr'"),
    ],
)
def test_bad_values_are_explained_in_one_line(values, fragment):
    with pytest.raises(ConfigError, match=fragment) as caught:
        make_config(**values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_bad_prior_speaks_for_itself():
    with pytest.raises(PriorError, match="Did you mean 'Normal'"):
        make_config(method="m", priors={"*": "Nrmal(0, 1)"})


def test_a_configuration_cannot_be_changed():
    config = make_config(method="m")
    with pytest.raises(ValueError, match="frozen"):
        config.lr = 3.0
    assert RunConfig.model_config["extra"] == "forbid"


def test_code_in_yaml_is_not_run(tmp_path):
    mark = tmp_path / "owned"
    (tmp_path / "c.yaml").write_text(f"method: !!python/object/apply:os.mkdir ['{mark}']\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        read_config(tmp_path / "c.yaml")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["max_steps", "max_seconds", "nominal_steps"])
def test_a_number_of_steps_has_no_budget(name):
    with pytest.raises(ConfigError, match=f"{name} is for a run until convergence"):
        make_config(method="mean_field", num_steps=10, **{name: 20})


def test_a_budget_reaches_the_recipe():
    config = make_config(method="mean_field", max_steps=50, max_seconds=2.5, nominal_steps=40)
    recipe = config.recipe(get("mean_field"))
    assert (recipe.until_converged, recipe.num_steps) == (True, 40)
    assert (recipe.max_steps, recipe.max_seconds) == (50, 2.5)
    assert (
        not make_config(method="mean_field", num_steps=9).recipe(get("mean_field")).until_converged
    )
