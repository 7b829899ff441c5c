import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import PriorError
from zoo.parsing.calls import MAX_DEPTH, MAX_TEXT
from zoo.priors import Prior, parse_priors

# Signatures written out here, in positional order; "real" or "positive" is what may stand there.
REAL = {
    "Normal": {"loc": "real", "scale": "positive"},
    "Laplace": {"loc": "real", "scale": "positive"},
    "Cauchy": {"loc": "real", "scale": "positive"},
    "Gumbel": {"loc": "real", "scale": "positive"},
    "StudentT": {"df": "positive", "loc": "real", "scale": "positive"},
}
POSITIVE = {
    "HalfNormal": {"scale": "positive"},
    "HalfCauchy": {"scale": "positive"},
    "Exponential": {"rate": "positive"},
    "Gamma": {"concentration": "positive", "rate": "positive"},
    "InverseGamma": {"concentration": "positive", "rate": "positive"},
    "LogNormal": {"loc": "real", "scale": "positive"},
}
GROUPS = ["auto", "input", "output", "element"]
SIZES = ["fixed", "learned", "fitted"]

magnitudes = st.floats(-300, 300).map(lambda power: 10.0**power)
positive = st.one_of(st.sampled_from([1e-300, 1e-5, 0.5, 1.0, 3.0, 1e15, 1e300]), magnitudes)
real = st.one_of(st.just(0.0), st.integers(-5, 5).map(float), positive, positive.map(lambda v: -v))


@st.composite
def plain_priors(draw, families=None, depth=MAX_DEPTH):
    """A plain prior as (name, {parameter: number or prior}); at most one parameter is a prior."""
    families = families or draw(st.sampled_from([REAL, POSITIVE]))
    name = draw(st.sampled_from(sorted(families)))
    arguments = {
        parameter: draw(positive if kind == "positive" else real)
        for parameter, kind in families[name].items()
    }
    if depth > 1 and draw(st.booleans()):
        parameter = draw(st.sampled_from(sorted(arguments)))
        allowed = POSITIVE if families[name][parameter] == "positive" else REAL | POSITIVE
        arguments[parameter] = draw(plain_priors(allowed, depth - 1))
    return name, arguments


@st.composite
def bounded_priors(draw):
    low, width = draw(st.floats(-50, 50)), draw(st.floats(1e-3, 50))
    name = draw(st.sampled_from(["Uniform", "SmoothLogUniform", "TruncatedLogUniform"]))
    return name, {"low": low, "high": low + width}


@st.composite
def structured_priors(draw):
    group = draw(st.sampled_from(GROUPS))
    if draw(st.booleans()):
        return "GroupNormalJeffreys", {"group": group}
    scale = 10.0 ** draw(st.floats(-17, 17))
    return "GroupHorseshoe", {"scale": scale, "group": group}


@st.composite
def quantizing_priors(draw):
    steps = draw(st.lists(st.floats(1e-3, 10), min_size=1, max_size=6))
    words = [0.0]
    for step in steps:
        words.append(words[-1] + step)
    return "Quantized", {"codebook": words, "size": draw(st.sampled_from(SIZES))}


priors = st.one_of(plain_priors(), bounded_priors(), structured_priors(), quantizing_priors())


def as_text(written, *, keywords):
    name, arguments = written
    values = [
        as_text(value, keywords=keywords) if isinstance(value, tuple) else str(value)
        for value in arguments.values()
    ]
    if keywords:
        values = [
            f"{parameter}={value}" for parameter, value in zip(arguments, values, strict=True)
        ]
    return f"{name}({', '.join(values)})"


def as_mapping(written):
    name, arguments = written
    return {"dist": name} | {
        parameter: as_mapping(value) if isinstance(value, tuple) else value
        for parameter, value in arguments.items()
    }


@given(priors)
def test_text_mapping_and_yaml_forms_are_the_same_prior(written):
    forms = [
        as_text(written, keywords=True),
        as_text(written, keywords=False),
        as_mapping(written),
        yaml.safe_load(yaml.safe_dump(as_mapping(written))),
        yaml.safe_load(yaml.safe_dump(as_text(written, keywords=True))),
    ]
    parsed = [Prior.parse(form) for form in forms]
    assert all(prior == parsed[0] for prior in parsed)
    assert len(set(parsed)) == 1


@given(priors)
def test_printed_prior_is_read_back_unchanged(written):
    prior = Prior.parse(as_mapping(written))
    assert Prior.parse(prior) is prior
    assert Prior.parse(str(prior)) == prior
    assert Prior.parse(prior.to_dict()) == prior
    assert Prior.parse(yaml.safe_load(yaml.safe_dump(prior.to_dict()))) == prior
    assert str(Prior.parse(str(prior))) == str(prior)


@given(real)
def test_numbers_keep_every_bit(number):
    prior = Prior.parse({"dist": "Normal", "loc": number, "scale": 1})
    for source in (str(prior), prior.to_dict(), yaml.safe_load(yaml.safe_dump(prior.to_dict()))):
        assert Prior.parse(source).arguments["loc"] == number


@pytest.mark.parametrize(
    ("source", "canonical"),
    [
        ("Normal(0, 1)", "Normal(loc=0, scale=1)"),
        ("  Normal( 0,\n 1 ) ", "Normal(loc=0, scale=1)"),
        ("Normal(scale=2, loc=-1)", "Normal(loc=-1, scale=2)"),
        ("Normal(+0.5, 1_000)", "Normal(loc=0.5, scale=1000)"),
        ("StudentT(3)", "StudentT(df=3, loc=0, scale=1)"),
        ("GroupHorseshoe", "GroupHorseshoe(scale=1e-05, group=auto)"),
        ("GroupHorseshoe()", "GroupHorseshoe(scale=1e-05, group=auto)"),
        ("GroupHorseshoe(0.1, 'input')", "GroupHorseshoe(scale=0.1, group=input)"),
        ("SparseVD", "SparseVD()"),
        ("Quantized([-0.2, 0, 0.2])", "Quantized(codebook=[-0.2, 0, 0.2], size=fixed)"),
        ("Quantized((-0.2, 0, 0.2))", "Quantized(codebook=[-0.2, 0, 0.2], size=fixed)"),
        ("Normal(0, HalfCauchy(1))", "Normal(loc=0, scale=HalfCauchy(scale=1))"),
        ({"dist": "SparseVD"}, "SparseVD()"),
        ({"dist": "Normal", "loc": 0, "scale": "HalfCauchy(1)"}, str),
        ({"dist": "Normal", "loc": 0, "scale": {"dist": "HalfCauchy", "scale": 1}}, str),
    ],
)
def test_defaults_and_names_are_spelled_out(source, canonical):
    expected = "Normal(loc=0, scale=HalfCauchy(scale=1))" if canonical is str else canonical
    assert str(Prior.parse(source)) == expected


def test_number_that_yaml_reads_as_text_is_a_number():
    mapping = yaml.safe_load("{dist: HalfNormal, scale: 1e-5}")
    assert mapping["scale"] == "1e-5"
    assert Prior.parse(mapping) == Prior.parse("HalfNormal(1e-5)")


def test_negative_zero_is_zero():
    prior = Prior.parse("Normal(-0.0, 1)")
    assert Prior.parse(str(prior)) == prior == Prior.parse("Normal(0, 1)")


def nested(depth):
    text = "1"
    for _ in range(depth - 1):
        text = f"HalfNormal({text})"
    return f"Normal(0, {text})"


def nested_mapping(depth):
    scale = 1
    for _ in range(depth - 1):
        scale = {"dist": "HalfNormal", "scale": scale}
    return {"dist": "Normal", "loc": 0, "scale": scale}


@pytest.mark.parametrize("form", [nested, nested_mapping])
def test_nesting_is_limited_to_the_same_depth_in_every_form(form):
    assert str(Prior.parse(form(MAX_DEPTH))).count("(") == MAX_DEPTH
    with pytest.raises(PriorError, match=f"{MAX_DEPTH} deep"):
        Prior.parse(form(MAX_DEPTH + 1))


def test_text_inside_a_mapping_cannot_go_around_the_depth_limit():
    inner = nested(MAX_DEPTH).removeprefix("Normal(0, ")[:-1]
    assert Prior.parse(inner)
    source = {"dist": "Normal", "loc": 0, "scale": {"dist": "HalfNormal", "scale": inner}}
    with pytest.raises(PriorError, match=f"{MAX_DEPTH} deep"):
        Prior.parse(source)


def test_every_accepted_mapping_is_short_enough_to_be_written_as_text():
    words = [k / 3 for k in range(100)]
    with pytest.raises(PriorError, match=f"{MAX_TEXT} characters"):
        Prior.parse({"dist": "Quantized", "codebook": words})


def test_parse_priors_wants_a_mapping_of_patterns():
    parsed = parse_priors({"*.weight": "Normal(0, 1)", "noise": {"dist": "HalfNormal", "scale": 1}})
    assert list(parsed) == ["*.weight", "noise"]
    assert math.isclose(parsed["noise"].arguments["scale"], 1)
    with pytest.raises(PriorError, match="mapping like"):
        parse_priors("Normal(0, 1)")
