import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from zoo.errors import ConfigError, UnknownNameError
from zoo.likelihoods import (
    LIKELIHOODS,
    MAX_LOG_RATE,
    MIN_SCALE,
    Gaussian,
    default_likelihood,
    parse_likelihood,
    spell,
)

pytestmark = pytest.mark.usefixtures("double_precision")

DRAWS, ROWS = 4, 6


def outputs(width, shape=(DRAWS, ROWS)):
    return torch.randn(*shape, width)


def located(f):
    return f[..., 0].numpy()


def predicted_scale(f):
    return np.logaddexp(0, f[..., 1].numpy()) + MIN_SCALE


# text, outputs, observations, log density by scipy
DENSITIES = {
    "gaussian(noise=0.3)": (1, "real", lambda f, y: stats.norm(located(f), 0.3).logpdf(y)),
    "gaussian(noise=heteroscedastic)": (
        2,
        "real",
        lambda f, y: stats.norm(located(f), predicted_scale(f)).logpdf(y),
    ),
    "gaussian": (1, "real", lambda f, y: stats.norm(located(f), np.exp(-0.5)).logpdf(y)),
    "student_t(df=5, noise=0.3)": (1, "real", lambda f, y: stats.t(5, located(f), 0.3).logpdf(y)),
    "student_t(noise=heteroscedastic)": (
        2,
        "real",
        lambda f, y: stats.t(4, located(f), predicted_scale(f)).logpdf(y),
    ),
    "student_t": (1, "real", lambda f, y: stats.t(4, located(f), np.exp(-0.5)).logpdf(y)),
    "poisson": (1, "count", lambda f, y: stats.poisson(np.exp(located(f))).logpmf(y)),
    "bernoulli": (1, "binary", lambda f, y: stats.bernoulli(special.expit(located(f))).logpmf(y)),
    "categorical": (
        3,
        "class",
        lambda f, y: np.take_along_axis(
            special.log_softmax(f.numpy(), -1), np.broadcast_to(y, f.shape[:-1])[..., None], -1
        )[..., 0],
    ),
}


def observations(kind):
    rng = np.random.default_rng(0)
    return {
        "real": rng.normal(size=ROWS),
        "count": rng.poisson(2.0, ROWS),
        "binary": rng.integers(0, 2, ROWS),
        "class": rng.integers(0, 3, ROWS),
    }[kind]


@pytest.mark.parametrize("text", DENSITIES)
@pytest.mark.parametrize("shape", [(ROWS,), (DRAWS, ROWS)])
@torch.no_grad()
def test_density_is_the_textbook_one_for_every_draw_and_row(text, shape):
    width, kind, expected = DENSITIES[text]
    likelihood = parse_likelihood(text)
    f, y = outputs(width, shape), observations(kind)
    target = torch.tensor(y, dtype=torch.float64 if kind in ("real", "binary") else torch.int64)
    value = likelihood.distribution(f).log_prob(target)
    assert value.shape == shape
    np.testing.assert_allclose(value.numpy(), expected(f, y), rtol=1e-8)


@pytest.mark.parametrize("text", DENSITIES)
def test_width_of_the_network_is_checked_with_both_shapes_in_the_message(text):
    width = DENSITIES[text][0]
    classes = {"categorical": 3, "bernoulli": 2}.get(text)
    likelihood = parse_likelihood(text)
    assert likelihood.num_outputs(classes) == width
    likelihood.check_outputs(torch.zeros(5, width), classes)
    for wrong in (torch.zeros(5, width + 1), torch.zeros(5)):
        with pytest.raises(ConfigError, match=rf"\(batch, {width}\)\. Got \(5,"):
            likelihood.check_outputs(wrong, classes)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gaussian", "student_t"])
def test_drawn_noise_replaces_the_learned_one_draw_by_draw(name):
    likelihood = parse_likelihood(name)
    f, y = outputs(1), torch.randn(ROWS)
    noise = torch.rand(DRAWS, 1) + 0.1
    together = likelihood.distribution(f, noise).log_prob(y)
    assert together.shape == (DRAWS, ROWS)
    for k in range(DRAWS):
        alone = likelihood.distribution(f[k], noise[k]).log_prob(y)
        assert torch.allclose(together[k], alone, rtol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "student_t"])
def test_only_learned_noise_is_a_slot_and_a_parameter(name):
    learned = parse_likelihood(name)
    (slot,) = learned.slots()
    assert (slot.name, slot.layer, slot.positive) == ("noise", "likelihood", True)
    assert slot.value.item() == pytest.approx(np.exp(-0.5))
    assert [n for n, _ in learned.named_parameters()] == ["log_noise"]
    for noise in ("0.2", "heteroscedastic"):
        other = parse_likelihood(f"{name}(noise={noise})")
        assert other.slots() == []
        assert list(other.parameters()) == []


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "poisson"])
def test_likelihoods_without_a_scale_have_no_slots(name):
    assert parse_likelihood(name).slots() == []


def test_heteroscedastic_scale_never_reaches_zero():
    f = torch.tensor([[0.0, -1000.0]])
    scale = parse_likelihood("gaussian(noise=heteroscedastic)").distribution(f).stddev
    assert scale.item() == pytest.approx(MIN_SCALE)


def test_rate_of_counts_is_bounded_and_keeps_single_precision_finite():
    f = torch.tensor([[1000.0]], dtype=torch.float32)
    fn = parse_likelihood("poisson").distribution(f)
    assert fn.rate.item() == pytest.approx(np.exp(MAX_LOG_RATE))
    assert torch.isfinite(fn.log_prob(torch.tensor([3.0])))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gausian", ["unknown likelihood 'gausian'", "Did you mean 'gaussian'?", "poisson"]),
        ("gaussian(0.1)", ["'gaussian' takes noise=...", "gaussian(0.1)"]),
        ("gaussian(sd=0.1)", ["'gaussian' takes noise=..."]),
        ("gaussian(noise=-1)", ["must be at least 1e-10", "-1"]),
        ("gaussian(noise=0)", ["must be at least 1e-10"]),
        ("gaussian(noise=none)", ["learned, heteroscedastic or a positive number", "'none'"]),
        ("gaussian(noise=HalfNormal(1))", ["numbers or names", "--prior 'noise=HalfNormal(1)'"]),
        ("gaussian(noise=[1, 2])", ["numbers or names"]),
        ("student_t(df=0)", ["df of student_t must be above 2"]),
        ("student_t(df=many)", ["df of student_t must be above 2", "'many'"]),
        ("student_t(nu=3)", ["takes df=..., noise=..."]),
        ("categorical(classes=3)", ["'categorical' takes no options"]),
        ("gaussian(", ["cannot read the likelihood", "gaussian(noise=0.1)"]),
        ("", ["cannot read the likelihood"]),
    ],
)
def test_bad_likelihood_says_what_is_accepted(text, parts):
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        parse_likelihood(text)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "classes", "match"),
    [
        ("categorical", None, "the target has none"),
        ("bernoulli", 3, "exactly two classes. Got 3"),
        ("bernoulli", None, "exactly two classes"),
    ],
)
def test_number_of_classes_must_fit(name, classes, match):
    with pytest.raises(ConfigError, match=match):
        parse_likelihood(name).num_outputs(classes)


@pytest.mark.parametrize(
    ("task", "classes", "name"),
    [
        ("regression", None, "gaussian"),
        ("classification", None, "categorical"),
        ("classification", 2, "bernoulli"),
        ("classification", 3, "categorical"),
        ("counts", None, "poisson"),
    ],
)
def test_every_task_has_a_default(task, classes, name):
    assert default_likelihood(task, classes) == name
    assert task in LIKELIHOODS[name].tasks


@torch.no_grad()
@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("gaussian", 1, {"mean": located}),
        ("student_t(noise=0.3)", 1, {"mean": located}),
        (
            "gaussian(noise=heteroscedastic)",
            2,
            {"mean": located, "log sd": lambda f: np.log(predicted_scale(f))},
        ),
        ("poisson", 1, {"log rate": located}),
        ("bernoulli", 1, {"P(yes)": lambda f: special.expit(located(f))}),
        ("categorical", 2, {"P(yes)": lambda f: special.softmax(f.numpy(), -1)[..., 1]}),
        (
            "categorical",
            3,
            {
                f"P({name})": lambda f, k=k: special.softmax(f.numpy(), -1)[..., k]
                for k, name in enumerate("abc")
            },
        ),
    ],
)
def test_functions_are_named_and_those_of_the_textbook(text, width, expected):
    f = outputs(width)
    classes = {1: ("no", "yes"), 2: ("no", "yes"), 3: tuple("abc")}[width]
    functions = parse_likelihood(text).functions(f, classes)
    assert list(functions) == list(expected)
    for name, formula in expected.items():
        np.testing.assert_allclose(functions[name].numpy(), formula(f), rtol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 3, 10])
def test_a_common_shift_of_all_logits_changes_no_function(width):
    likelihood, f = parse_likelihood("categorical"), outputs(width)
    shift = 10 * torch.randn(DRAWS, 1, 1)
    before, after = likelihood.functions(f), likelihood.functions(f + shift)
    assert list(before) == list(after)
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_one_logit_is_the_difference_of_two():
    f = outputs(2)
    both = parse_likelihood("categorical").functions(f)
    one = parse_likelihood("bernoulli").functions(f[..., 1:] - f[..., :1])
    assert list(both) == list(one) == ["P(1)"]
    torch.testing.assert_close(both["P(1)"], one["P(1)"])


def test_log_rates_that_the_likelihood_cuts_off_are_equal():
    f = torch.tensor([[MAX_LOG_RATE], [MAX_LOG_RATE + 5]])
    rates = parse_likelihood("poisson").functions(f)["log rate"]
    assert rates.tolist() == [MAX_LOG_RATE, MAX_LOG_RATE]


def test_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'ranking'.*classification, counts, regression"):
        default_likelihood("ranking")


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_name_is_spelled_as_users_write_it(name):
    assert spell(parse_likelihood(name)) == name


def test_likelihood_of_the_users_own_is_refused_with_its_name():
    class Skewed(Gaussian):
        pass

    with pytest.raises(ConfigError, match="Skewed"):
        Skewed().check_outputs(torch.zeros(5, 3), None)


def test_likelihood_follows_the_precision_of_the_network():
    likelihood = parse_likelihood("student_t").to(torch.float32)
    assert isinstance(likelihood, nn.Module)
    fn = likelihood.distribution(torch.zeros(5, 1, dtype=torch.float32))
    assert fn.log_prob(torch.zeros(5, dtype=torch.float32)).dtype == torch.float32
