import pytest

from zoo.errors import ConfigError, PriorError
from zoo.parsing.calls import MAX_DEPTH, MAX_TEXT, Call, finite_number, parse_call, short


def parse(text):
    return parse_call(text, what="thing", example="f(1)", error=ConfigError)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("f", Call("f", (), ())),
        ("f()", Call("f", (), ())),
        ("f(1, -2.5, +3)", Call("f", (1.0, -2.5, 3.0), ())),
        ("f(a, 'b')", Call("f", ("a", "b"), ())),
        ("f([1, -2], (3,))", Call("f", ((1.0, -2.0), (3.0,)), ())),
        ("f(x=1, y=g)", Call("f", (), (("x", 1.0), ("y", "g")))),
        ("f(g(1), h=k())", Call("f", (Call("g", (1.0,), ()),), (("h", Call("k", (), ())),))),
    ],
)
def test_calls_are_read_as_written(text, call):
    assert parse(text) == call


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not well formed (SyntaxError)"),
        ("f(", "not well formed"),
        ("f(\0)", "not well formed"),
        ("\ud800", "not well formed"),
        ("1", "not a name with arguments"),
        ("a.b(1)", "not a name with arguments"),
        ("f(1)(2)", "not a name with arguments"),
        ("f(**x)", "'**' is not accepted"),
        ("f(*x)", "Starred is not accepted"),
        ("f(x=1, x=2)", "'x' is given twice"),
        ("f(1 + 1)", "BinOp is not accepted"),
        ("f(--1)", "UnaryOp is not accepted"),
        ("f({})", "Dict is not accepted"),
        ("f([[1]])", "List is not accepted"),
        ("f(x.y)", "Attribute is not accepted"),
        ("f(" * MAX_DEPTH + "f(1)" + ")" * MAX_DEPTH, f"nested more than {MAX_DEPTH} deep"),
        ("f" * (MAX_TEXT + 1), f"{MAX_TEXT + 1} characters, at most {MAX_TEXT}"),
    ],
)
def test_anything_else_is_refused_by_name_with_an_example(text, problem):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("cannot read the thing ")
    assert problem in message
    assert message.endswith("Write it like f(1).")
    assert len(message) < 300


def test_errors_are_of_the_class_that_was_asked_for():
    with pytest.raises(PriorError):
        parse_call("f(1 + 1)", what="prior", example="f", error=PriorError)


@pytest.mark.parametrize("value", [0, -3, 1.5, 1e-300, 10**300])
def test_finite_numbers_are_floats(value):
    assert finite_number(value, ConfigError) == float(value)
    assert type(finite_number(value, ConfigError)) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        "1",
        1j,
        [],
        float("inf"),
        float("-inf"),
        float("nan"),
        pytest.param(10**400, id="400 digits"),
        pytest.param(10**5000, id="5000 digits"),
    ],
)
def test_what_is_not_a_finite_number_is_refused(value):
    with pytest.raises(ConfigError, match="number"):
        finite_number(value, ConfigError)


def test_short_cuts_any_value_to_what_fits_in_a_message():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    assert short("a") == "'a'"
    for value in ("x" * 1000, 10**5000, nested, list(range(1000))):
        assert 0 < len(short(value)) <= 80
