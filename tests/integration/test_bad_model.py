"""Methods, networks, priors, likelihoods and numbers that make no sense."""

import os

import pytest
import torch

NETS = """
import torch
from torch import nn

NOT_A_FUNCTION = 3


def three(num_inputs):
    return nn.Linear(num_inputs, 5)


def four(num_inputs, num_outputs, depth):
    return nn.Linear(num_inputs, num_outputs)


def normalised(num_inputs, num_outputs):
    return nn.Sequential(nn.BatchNorm1d(num_inputs), nn.Linear(num_inputs, num_outputs))


def fixed():
    return nn.Linear(4, 3)


def text():
    return "net"


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(13, 3)

    def forward(self, x):
        return self.a(x), x


class Flat(Pair):
    def forward(self, x):
        return self.a(x).sum(-1)


class Nothing(nn.Module):
    def forward(self, x):
        return x[:, :3]
"""


def fit(refused, method, *arguments):
    return refused("fit", method, *arguments, "--num-steps", "3", "--out", "run")


@pytest.mark.parametrize(
    ("net", "fragments"),
    [
        ("mlp:12-5-3", ["'mlp:12-5-3' has 12 inputs", "need 13"]),
        ("mlp:13-5-4", ["has 4 outputs", "need 3"]),
        ("mlp:13", ["like mlp:64-100-10", "'mlp:13'"]),
        ("mlp:13-0-3", ["positive numbers"]),
        ("mlp:13-x-3", ["positive numbers"]),
        ("mlp:13-5-3:rlu", ["unknown activation 'rlu'", "Did you mean 'relu'?"]),
        ("linear:3", ["'linear' takes no sizes"]),
        ("lenet5", ["'lenet5' needs images"]),
        ("resnet", ["unknown network 'resnet'", "lenet5"]),
        ("module:missing.py:three", ["there is no file 'missing.py'"]),
        ("module:nets.py:none", ["has no function 'none'", "three"]),
        ("module:nets.py:NOT_A_FUNCTION", ["has no function 'NOT_A_FUNCTION'"]),
        ("module:nets.py", ["module:path.py:function"]),
        ("module:nets.txt:three", ["'nets.txt' is not a Python module"]),
        ("module:broken.py:three", ["'broken.py' cannot be imported"]),
        ("module:nets.py:three", ["'categorical' needs a network with output shape", "(2, 5)"]),
        ("module:nets.py:four", ["but it takes depth"]),
        ("module:nets.py:fixed", ["does not accept rows of shape (13,)"]),
        ("module:nets.py:text", ["must return a torch.nn.Module", "str"]),
        ("module:nets.py:Pair", ["must return a tensor", "tuple"]),
        ("module:nets.py:Flat", ["output shape (batch, 3)", "(2,)"]),
        ("module:nets.py:Nothing", ["no slot"]),
    ],
)
def test_a_bad_network(refused, tmp_path, net, fragments):
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "nets.txt").write_text(NETS)
    (tmp_path / "broken.py").write_text("def three(:\n")
    message = fit(refused, "mean_field", "--data", "wine", "--net", net)
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("batch_size", ["1", "3", "47", "141"])
def test_a_last_batch_that_is_too_small_to_normalise(refused, tmp_path, batch_size):
    (tmp_path / "nets.py").write_text(NETS)
    net = ("--net", "module:nets.py:normalised", "--batch-size", batch_size)
    message = fit(refused, "mean_field", "--data", "wine", *net)
    assert "the last batch of an epoch, which has 1 of 142 rows" in message


@pytest.mark.parametrize(
    ("prior", "fragments"),
    [
        ("*.weight=Nrmal(0, 1)", ["'Nrmal'", "Did you mean 'Normal'?"]),
        ("*.weight=Normal(0, 1", ["cannot read the prior", "Normal(0, 1)"]),
        ("*.weight=Normal(0, -1)", ["scale", "-1"]),
        ("*.weight=Normal(0, nan)", ["Normal"]),
        ("*.weight=Normal(0, 1, 2)", ["Normal"]),
        ("*.weight=Normal(width=2)", ["width", "loc"]),
        ("*.weight=", ["cannot read the prior"]),
        ("*.weight=HalfNormal(1)", ["HalfNormal", "weight"]),
        ("*.weight=Bernoulli(0.5)", ["Bernoulli"]),
        ("noise=Normal(0, 1)", ["noise", "positive"]),
        ("*.wieght=Normal(0, 1)", ["'*.wieght' matches no slot", "Did you mean '*.weight'?"]),
        ("*.weight=__import__('os').system('touch owned')", ["cannot read the prior"]),
        ("*.weight=Normal(0, open('owned', 'w'))", ["'open'"]),
        ("*.weight=GroupHorseshoe(scale=0)", ["scale", "GroupHorseshoe"]),
        ("*.weight=GroupHorseshoe(group=sideways)", ["sideways", "input"]),
    ],
)
def test_a_bad_prior(refused, tmp_path, prior, fragments):
    message = fit(refused, "mean_field", "--data", "linear", "--prior", prior)
    for fragment in fragments:
        assert fragment in message
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("data", "likelihood", "fragments"),
    [
        ("wine", "gausian", ["unknown likelihood 'gausian'", "Did you mean 'gaussian'?"]),
        ("wine", "poisson", ["'poisson' is for counts", "classification"]),
        ("wine", "gaussian", ["'gaussian' is for regression", "classification"]),
        ("linear", "categorical", ["'categorical' is for classification", "regression"]),
        ("wine", "bernoulli", ["exactly two classes", "Got 3"]),
        ("linear", "gaussian(noise=-1)", ["noise of a likelihood", "-1"]),
        ("linear", "gaussian(noise=loud)", ["learned, heteroscedastic", "'loud'"]),
        ("linear", "gaussian(0.1)", ["noise=..."]),
        ("linear", "student_t(df=0)", ["df of student_t", "Got 0"]),
        ("linear", "poisson(rate=1)", ["no options"]),
        ("linear", "gaussian(noise=HalfNormal(1))", ["--prior"]),
        ("linear", "gaussian(", ["cannot read the likelihood"]),
    ],
)
def test_a_bad_likelihood(refused, data, likelihood, fragments):
    message = fit(refused, "mean_field", "--data", data, "--likelihood", likelihood)
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    ("flag", "value", "fragments"),
    [
        ("--device", "tpu9", ["unknown device 'tpu9'"]),
        ("--device", "meta", ["unknown device 'meta'", "cuda"]),
        ("--dtype", "float16", ["'dtype' is not accepted", "'float16'"]),
        ("--lr", "-0.1", ["'lr' is not accepted", "-0.1"]),
        ("--lr", "0", ["'lr' is not accepted"]),
        ("--lr", "abc", ["'lr' is not accepted", "valid number", "'abc'"]),
        ("--num-steps", "1.5", ["'num_steps' is not accepted", "valid integer", "'1.5'"]),
        ("--option", "rank", ["NAME=VALUE", "'rank'"]),
        ("--option", "rank=nan", ["'options' may hold text, numbers and lists only", "nan"]),
        ("--lr", "nan", ["'lr' is not accepted"]),
        ("--lr", "inf", ["'lr' is not accepted", "finite"]),
        ("--init-scale", "inf", ["'init_scale' is not accepted"]),
        ("--num-steps", "0", ["'num_steps' is not accepted"]),
        ("--batch-size", "0", ["'batch_size' is not accepted"]),
        ("--num-samples", "1", ["'num_samples' is not accepted"]),
        ("--num-particles", "0", ["'num_particles' is not accepted"]),
        ("--checkpoint-every", "0", ["'checkpoint_every' is not accepted"]),
        ("--seed", "-1", ["'seed' is not accepted"]),
        ("--seed", str(2**63), ["'seed' is not accepted"]),
        ("--schedule", "sawtooth", ["'schedule' is not accepted", "cosine"]),
        ("--kl-warmup", "1.5", ["'kl_warmup' is not accepted"]),
        ("--bayesian", "*.wieght", ["'*.wieght' matches no slot"]),
    ],
)
def test_a_bad_number_or_name(refused, flag, value, fragments):
    message = refused("fit", "mean_field", "--data", "wine", flag, value, "--out", "run")
    for fragment in fragments:
        assert fragment in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there(refused):
    assert "no CUDA" in fit(refused, "mean_field", "--data", "wine", "--device", "cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_cuda_device_too_many(refused):
    assert "cuda:99" in fit(refused, "mean_field", "--data", "wine", "--device", "cuda:99")


def test_an_unknown_method(refused):
    for arguments in (["show", "mean_feild"], ["fit", "mean_feild", "--data", "wine"]):
        message = refused(*arguments)
        assert "unknown method 'mean_feild'. Did you mean 'mean_field'?" in message
        assert "group_horseshoe" in message


@pytest.mark.parametrize("arguments", [["fit"], ["fit", "mean_field"], ["fit", "--data", "wine"]])
def test_too_little_is_said(refused, arguments):
    assert "name a method and data" in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["list", "nothing*"], "no method matches 'nothing*'"),
        (["list", "--task", "ranking"], "unknown task 'ranking'"),
        (["data", "whine"], "unknown data set 'whine'"),
        (["show", "mean_field", "--net", "mlp:a-b"], "like mlp:64-100-10"),
        (["show", "mean_field", "--likelihood", "none"], "unknown likelihood 'none'"),
        (["show", "mean_field", "--prior", "9.weight=Normal(0, 1)"], "matches no slot"),
    ],
)
def test_bad_questions(refused, arguments, fragment):
    assert fragment in refused(*arguments)


@pytest.mark.parametrize(
    "arguments", [["truth", "m", "--seed", "abc"], ["fit", "--nope"], ["nope"], ["predict"]]
)
def test_usage_errors_have_the_same_exit_code(zoo_here, arguments):
    outcome = zoo_here(*arguments)
    assert outcome.code == 2
    assert "Usage: " in outcome.err
    assert "Traceback" not in outcome.err


def test_a_diverging_run_says_so_and_is_not_finished(refused, tmp_path):
    for steps in ("1", "60"):
        out = f"run{steps}"
        message = refused(
            "fit", "mean_field", "--data", "wine", "--lr", "1e30", "--num-steps", steps,
            "--out", out, leaves_nothing=False,
        )  # fmt: skip
        assert "the loss is not finite at step" in message
        assert sorted(os.listdir(tmp_path / out)) == ["config.yaml", "data.json"]
