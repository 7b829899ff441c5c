"""Options: settings of methods and guides, for all slots or by pattern."""

import pytest
from torch import nn

import zoo
from zoo.errors import ConfigError, PriorError

BOUNDED = {"max_sd": {"0.weight": 0.2}}


def model_of(method="group_horseshoe", likelihood="gaussian(noise=0.5)", **options):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return zoo.create(method, net, likelihood=likelihood, num_data=5, **options)


def bounds(model):
    return {name: getattr(model.prior(name).settings, "max_sd", "none") for name in model.slots}


def test_one_value_is_for_every_slot_that_has_the_option():
    found = bounds(model_of(options={"max_sd": 0.3}))
    assert found == {"0.weight": 0.3, "0.bias": "none", "2.weight": 0.3, "2.bias": "none"}


def test_values_by_pattern_are_for_the_slots_that_match():
    found = bounds(model_of(options=BOUNDED))
    assert (found["0.weight"], found["2.weight"]) == (0.2, None)
    both = bounds(model_of(options={"max_sd": {"*": 0.3, "2.*": 0.1}}))
    assert (both["0.weight"], both["2.weight"]) == (0.3, 0.1)  # the last match wins


def test_only_bounded_slots_are_followed_after_an_update():
    model = model_of(options=BOUNDED)
    assert model.updated_slots == ["0.weight"]
    guide = model.guide(init_scale=0.5)
    model.method.after_update(model, guide, 0.5)
    largest = [float(guide[s].base.scale.max().detach()) for s in ("0.weight", "2.weight")]
    assert largest == pytest.approx([0.2, 0.5])
    assert model_of().updated_slots == []


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (
            "group_horseshoe",
            {"max_ds": 1},
            ["'max_ds'", "Did you mean 'max_sd'?", "Known: max_sd."],
        ),
        ("laplace", {"rank": 3}, ["'rank'", "Known: curvature."]),
        ("mean_field", {"max_sd": 1}, ["'max_sd'", "There are none."]),
    ],
)
def test_unknown_option_lists_the_known_ones(method, options, words):
    with pytest.raises(ConfigError) as caught:
        model_of(method, options=options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("group_horseshoe", {"max_sd": 0}, ["'max_sd' is not accepted", "Got 0"]),
        ("group_horseshoe", {"max_sd": {"0.weight": -1}}, ["'max_sd' is not accepted", "Got -1"]),
        ("group_horseshoe", {"max_sd": "wide"}, ["'max_sd' is not accepted", "Got 'wide'"]),
        ("hypernetwork", {"knots": 1}, ["'knots' is not accepted", "Got 1"]),
        ("laplace", {"curvature": "round"}, ["'diagonal'", "Got 'round'"]),
    ],
)
def test_bad_value_says_what_is_accepted(method, options, words):
    with pytest.raises(ConfigError) as caught:
        model_of(method, options=options)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_that_do_not_go_together_are_refused():
    model = model_of("variational_dropout", options={"p": 0.6})
    with pytest.raises(ConfigError, match=r"p < max_p.*p=0\.6, max_p=0\.5"):
        model.guide(init_scale=0.1)


def test_pattern_that_matches_nothing_names_the_option():
    with pytest.raises(PriorError, match=r"pattern of the option 'max_sd' '9\.weight'"):
        model_of(options={"max_sd": {"9.weight": 0.2}})


def test_option_of_a_swapped_prior_is_known():
    found = bounds(model_of("mean_field", priors={"0.weight": "GroupHorseshoe()"}, options=BOUNDED))
    assert found["0.weight"] == 0.2


def test_options_of_a_fit_are_stored_and_read(tmp_path):
    fitted = zoo.fit(
        "group_horseshoe",
        data="wine",
        net="mlp:13-3-3",
        options=BOUNDED,
        init_scale=0.5,
        num_steps=3,
        num_samples=2,
        compile="off",
        progress_bar=False,
        out=tmp_path / "run",
    )
    loaded = zoo.load(tmp_path / "run")
    assert loaded.config.options == fitted.config.options == BOUNDED
    assert loaded.assembly.model.prior("0.weight").settings.max_sd == 0.2
    assert float(loaded.assembly.guide["0.weight"].base.scale.max().detach()) == pytest.approx(0.2)
