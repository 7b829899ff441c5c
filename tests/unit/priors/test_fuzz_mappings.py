"""Whatever mapping is written as a prior either is one or is refused with a `PriorError`."""

import math
import random

from zoo.priors import Prior

LEAVES = [
    None, True, False, math.nan, math.inf, -math.inf, 0, -1, 1.5, 10**400, 10**5000, -(10**5000),
    1e308, 5e-324, "", "Normal", "Normal(0, 1)", "HalfCauchy(1)", "1e-5", "nan", "input", "\0",
    "\ud800", b"x", 1j, object(), Prior, Prior.parse("HalfNormal(1)"), (), {}, set(), range(3),
]  # fmt: skip


def random_value(rng, depth=0):
    kind = rng.randrange(10)
    if depth > 7 or kind < 5:
        return rng.choice(LEAVES)
    if kind < 7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return random_mapping(rng, depth + 1)


def random_mapping(rng, depth=0):
    names = ["Normal", "HalfNormal", "GroupHorseshoe", "Quantized", "StudentT", "Gamma", "Nope"]
    keys = ["loc", "scale", "df", "group", "codebook", "rate", "dist", "", 0, None, "\0"]
    mapping = {rng.choice(keys[:7] if rng.random() < 0.9 else keys): random_value(rng, depth)}
    mapping |= {rng.choice(keys[:6]): random_value(rng, depth) for _ in range(rng.randrange(3))}
    if rng.random() < 0.9:
        mapping["dist"] = rng.choice(names) if rng.random() < 0.9 else random_value(rng, depth)
    return mapping


def endless(kind):
    value = []
    for _ in range(100_000):
        value = {"dist": "HalfNormal", "scale": value} if kind is dict else [value]
    return value


def test_malformed_mapping_is_refused(nothing_may_run, check_all):
    rng = random.Random(0)
    Prior.parse({"dist": "Normal", "loc": 0, "scale": {"dist": "HalfNormal", "scale": 1}})
    itself = {"dist": "Normal", "loc": 0}
    itself["scale"] = itself
    cases = [random_value(rng) for _ in range(5000)] + [random_mapping(rng) for _ in range(10_000)]
    cases += [itself, endless(dict), endless(list), {"a": endless(list)}]
    cases = [case for case in cases if not isinstance(case, Prior | str)]
    with nothing_may_run():
        count, refusals = check_all(cases)
    assert count >= 10_000
    assert refusals < count
