"""Whatever is written as a prior either is one or is refused with a `PriorError`."""

import builtins
import random

import pytest

from zoo.priors import Prior

VALID = [
    "Normal(0, 1)",
    "StudentT(df=3, scale=0.5)",
    "Normal(0, HalfCauchy(1))",
    "Normal(Normal(0, 1), HalfNormal(Gamma(2, 1)))",
    "GroupHorseshoe(scale=1e-5, group=input)",
    "GroupNormalJeffreys(group='output')",
    "Quantized(codebook=[-0.2, 0, 0.2])",
    "SmoothLogUniform(low=-8, high=2)",
    "Uniform(-1, 1)",
    "SparseVD",
]
# What might run, or what a parser might choke on. {x} becomes a file that must not appear.
PAYLOADS = [
    "__import__('os').system('touch {x}')",
    "Normal(__import__('os').system('touch {x}'), 1)",
    "Normal(0, open('{x}', 'w').write('1'))",
    "Normal(0, scale=exec(\"open('{x}', 'w')\"))",
    'eval(\'__import__("os").mkdir("{x}")\')',
    "Normal(0, eval)",
    "exec",
    "__import__",
    "os.system('touch {x}')",
    "(lambda: open('{x}', 'w'))()",
    "Normal(0, (lambda: 1)())",
    "Normal(lambda: 1, 1)",
    "[open('{x}', 'w') for _ in (1,)]",
    "Normal(0, [x for x in range(9)])",
    "Normal(0, sum(x for x in (1, 2)))",
    "{{k: v for k, v in ()}}",
    "f\"{{open('{x}', 'w')}}\"",
    "Normal(0, f'{{1}}')",
    "Normal(0, (scale := 1))",
    "(w := open('{x}', 'w'))",
    "Normal(0, ().__class__.__bases__[0].__subclasses__())",
    "Normal.__init__.__globals__['os']",
    "torch.load('{x}')",
    "Normal(0, 1).sample()",
    "Normal[0](0, 1)",
    "Normal(0, x[0])",
    "Normal(*(0, 1))",
    "Normal(*[0, 1])",
    "Normal(**{{'loc': 0, 'scale': 1}})",
    "Normal(0, 1, **open('{x}', 'w'))",
    "Normal(0, 1 if open('{x}', 'w') else 2)",
    "Normal(0, 1 or 2)",
    "Normal(0, 2 ** 9999999999)",
    "Normal(0, 1 + 1)",
    "Normal(0, not 1)",
    "Normal(0, ~1)",
    "Normal(0, 1 < 2)",
    "Normal(0, await x)",
    "Normal(0, (yield))",
    "Normal(0, 1); import os",
    "import os",
    "Normal(0, 1)\nopen('{x}', 'w')",
    "Normal(0, 1) # comment",
    "Normal(0, 1)(0, 1)",
    "Normal(0, 1)()",
    "Normal(0)(1)",
    "Normal(Normal)",
    "Normal(0, Normal)",
    "Normal(loc=0, loc=0, scale=1)",
    "Normal(0, 1, validate_args=False)",
    "Normal(0, 1, 2)",
    "Normal(True, 1)",
    "Normal(None, 1)",
    "Normal(..., 1)",
    "Normal(1j, 1)",
    "Normal(b'0', 1)",
    "Normal('0', '1')",
    "Normal(0, 1e999)",
    "Normal(-1e999, 1)",
    "Normal(nan, 1)",
    "Normal(0, inf)",
    "Normal(0, 0)",
    "Normal(0, 1if 1else 2)",
    "Normal(0, 0x_ff)",
    "Normal(0, 0777)",
    "Normal(0, 1__0)",
    "Normal(0, '\\x41\\d')",
    "Normal(0, 'a\\nb\\x1b[31m')",
    "Quantized([[0], [1]])",
    "Quantized([])",
    "Quantized([0, 0])",
    "Quantized([0, Normal(0, 1)])",
    "Quantized([*range(9)])",
    "MultivariateNormal(0, 1)",
    "Delta(0)",
    "TransformedDistribution(Normal(0, 1), 1)",
    "TorchDistribution(0, 0)",
    "Distribution",
    "Normal\x00(0, 1)",
    "Normal(0, '\x00')",
    "\ud800(0, 1)",
    "Normal(0, '\udfff')",
    "Ｎormal(0, 1)",
    "Normal(٣, 1)",
    "\ufeffNormal(0, 1)",
    "Normal(0, 1)\\",
    "'''",
    "",
    " ",
    "\n",
    "(" * 900,
    "[" * 900 + "]" * 900,
    "-" * 900 + "1",
    "Normal(0, " + "-" * 500 + "1)",
    "Normal(0, " + "(" * 90 + "1" + ")" * 90 + ")",
    "HalfNormal(" * 80 + "1" + ")" * 80,
    "Normal(" * 140,
    "not " * 240 + "1",
    "a" + ".a" * 490,
    "a" + "[0]" * 330,
    "a" + "()" * 490,
    "lambda:" * 140 + "1",
    "1 if 1 else " * 80 + "1",
    "x" * 999,
    "Normal(0, 1" + " " * 10**5 + ")",
    "N" * 10**6,
    "Normal(0, " + "9" * 985 + ")",
    "Normal(0, 1e-" + "9" * 900 + ")",
    "Normal(0, 0." + "0" * 900 + "1)",
    "Normal(0, '" + "x" * 900 + "')",
]
ALPHABET = (
    "()[]{}=,.:*-+_'\"\\#@!~^&|<>%;` \n\t\r\0"
    + "0123456789eEjxXNormalHf\u00e9\u03c3\ud800\U0001f600"
)


def random_text(rng):
    kind = rng.randrange(3)
    length = rng.randrange(60)
    if kind == 0:
        return "".join(rng.choices(ALPHABET, k=length))
    if kind == 1:
        return rng.randbytes(length).decode("latin-1")
    return "".join(chr(rng.randrange(0x110000)) for _ in range(length))


def mutated(text, rng):
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.randrange(6))
        text = rng.choice(
            [
                text[:at] + rng.choice(ALPHABET) + text[at:],
                text[:at] + text[end:],
                text[:at] + text[at:end] * 2 + text[end:],
                text[:at] + rng.choice(VALID) + text[end:],
                text[:at]
                + rng.choice(["**", "[0]", ".x", "1e400", "-", "()", "lambda:"])
                + text[at:],
            ]
        )
    return text


def sources(rng, sentinel):
    payloads = [payload.format(x=sentinel) if "{x}" in payload else payload for payload in PAYLOADS]
    yield from VALID
    yield from payloads
    for _ in range(2500):
        yield random_text(rng)
    for _ in range(6000):
        yield mutated(rng.choice(VALID), rng)
    for _ in range(1500):
        yield mutated(rng.choice(payloads)[:300], rng)


def test_malformed_or_malicious_text_is_refused_and_never_run(nothing_may_run, check_all, tmp_path):
    sentinel = tmp_path / "sentinel"
    for text in VALID:
        Prior.parse(text)  # whatever is imported lazily is imported now
    with nothing_may_run():
        count, refusals = check_all(sources(random.Random(0), sentinel))
    assert count >= 10_000
    assert refusals < count
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["eval", "exec", "__import__", "open", "compile"])
def test_guard_of_the_fuzz_test_notices_a_call(name, nothing_may_run):
    with nothing_may_run(), pytest.raises(AssertionError):
        getattr(builtins, name)("1", "file", "eval")
