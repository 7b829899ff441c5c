import textwrap

import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import nn

import zoo
from zoo.errors import ConfigError, PriorError, UnknownNameError
from zoo.network.nets import NETS, build_net
from zoo.network.nets.architectures import ACTIVATIONS
from zoo.network.nets.spec import DEFAULT_HIDDEN

IMAGE = (1, 28, 28)


def sizes(net):
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return [tuple(layer.weight.shape) for layer in layers]


@pytest.mark.parametrize(
    ("spec", "inputs", "outputs", "image", "expected"),
    [
        ("mlp", 4, 2, None, [(DEFAULT_HIDDEN, 4), (2, DEFAULT_HIDDEN)]),
        ("mlp:4-3-2", 4, 2, None, [(3, 4), (2, 3)]),
        ("mlp:4-2", 4, 2, None, [(2, 4)]),
        ("mlp:4-7-6-5-2:tanh", 4, 2, None, [(7, 4), (6, 7), (5, 6), (2, 5)]),
        ("linear", 4, 2, None, [(2, 4)]),
        ("lenet300", 784, 10, None, [(300, 784), (100, 300), (10, 100)]),
        ("lenet5", 784, 10, IMAGE, [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]),
        ("lenet5", 768, 3, (3, 16, 16), [(20, 3, 5, 5), (50, 20, 5, 5), (500, 50), (3, 500)]),
    ],
)
def test_text_builds_the_layers_it_names(spec, inputs, outputs, image, expected):
    net = build_net(spec, inputs, outputs, image)
    assert sizes(net) == expected
    assert net(torch.randn(2, inputs)).shape == (2, outputs)
    if image:
        x = torch.randn(2, *image)
        assert torch.equal(net(x), net(x.flatten(1)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_can_be_named(name):
    net = build_net(f"mlp:4-3-2:{name}", 4, 2)
    assert [type(layer) for layer in net] == [nn.Linear, ACTIVATIONS[name], nn.Linear]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("mpl:4-3-2", ["unknown network 'mpl:4-3-2'", "Known: cells:8-2-2", "mlp:64-100-10"]),
        ("", ["unknown network ''", "lenet5"]),
        ("mlp:4", ["joined by '-'", "mlp:64-100-10", "'mlp:4'"]),
        ("mlp:4-x-2", ["positive numbers joined by '-'"]),
        ("mlp:4-0-2", ["positive numbers"]),
        ("mlp:4--2", ["positive numbers"]),
        ("mlp:4-3.5-2", ["positive numbers"]),
        ("mlp:4-²-2", ["positive numbers"]),
        (f"mlp:4-{'9' * 5000}-2", ["positive numbers"]),
        ("mlp:5-3-2", ["has 5 inputs", "need 4", "mlp:4-...-2"]),
        ("mlp:4-3-7", ["has 7 outputs", "need 2", "mlp:4-...-2"]),
        ("mlp:4-3-2:tahn", ["unknown activation 'tahn'", "Did you mean 'tanh'?"]),
        ("linear:4-2", ["'linear' takes no sizes"]),
        ("lenet300:4", ["'lenet300' takes no sizes"]),
        ("lenet5", ["at least 16x16 pixels", "no image shape"]),
        ("module:", ["module:path.py:function"]),
        ("module:net.py", ["module:path.py:function"]),
        ("module:no/such.py:build", ["no file 'no/such.py'"]),
    ],
)
def test_bad_text_says_what_is_wrong(spec, parts):
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        build_net(spec, 4, 2)
    for part in parts:
        assert part in str(caught.value)


def test_small_images_are_refused_by_lenet5():
    with pytest.raises(ConfigError, match=r"at least 16x16 pixels. The data have \(1, 8, 8\)"):
        build_net("lenet5", 64, 10, (1, 8, 8))


def test_every_named_network_is_listed_with_an_example():
    with pytest.raises(UnknownNameError) as caught:
        build_net("nothing", 4, 2)
    assert all(name in str(caught.value) for name in NETS)


@pytest.fixture
def user_file(tmp_path):
    def write(code, name="my_net.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return path

    return write


CODE = """
    from torch import nn

    GREETING = "not a function"

    def plain():
        return nn.Linear(4, 2)

    def sized(num_inputs, num_outputs):
        return nn.Linear(num_inputs, num_outputs)

    def with_default(num_outputs, hidden=5):
        return nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, num_outputs))

    def anything(*args, **kwargs):
        return nn.Linear(4, 2)

    def images(image_shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(4 if image_shape is None else 9, 2))

    class Net(nn.Linear):
        def __init__(self, num_inputs, num_outputs):
            super().__init__(num_inputs, num_outputs)

    def greedy(num_inputs, width, depth):
        return nn.Linear(4, 2)

    def number():
        return 3

    def nothing():
        pass
"""


@pytest.mark.parametrize(
    "function", ["plain", "sized", "with_default", "anything", "images", "Net"]
)
def test_function_of_a_users_file_builds_the_network(user_file, function):
    net = build_net(f"module:{user_file(CODE)}:{function}", 4, 2)
    assert net(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("greedy", ["'greedy' may take num_inputs, num_outputs, image_shape", "width, depth"]),
        ("number", ["'number' must return a torch.nn.Module", "It returned int"]),
        ("nothing", ["must return a torch.nn.Module", "It returned NoneType"]),
        ("absent", ["no function 'absent'", "Functions: plain, sized"]),
        ("GREETING", ["no function 'GREETING'"]),
    ],
)
def test_wrong_function_of_a_users_file_is_refused(user_file, function, parts):
    with pytest.raises(ConfigError) as caught:
        build_net(f"module:{user_file(CODE)}:{function}", 4, 2)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("code", "name", "match"),
    [
        ("def build(:", "my_net.py", "cannot be imported"),
        ("import no_such_module", "my_net.py", "no_such_module"),
        ("build = undefined", "my_net.py", "undefined"),
        ("x = 1", "my_net.txt", "must end in .py"),
    ],
)
def test_users_file_that_cannot_be_imported_is_refused(user_file, code, name, match):
    with pytest.raises(ConfigError, match=match):
        build_net(f"module:{user_file(code, name)}:build", 4, 2)


class Residual(nn.Module):
    """A network that knows nothing of the zoo."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.block(h)
        return self.head(h.mean((2, 3)))


@pytest.mark.usefixtures("module_local_params")
@pytest.mark.parametrize("method", ["mean_field", "group_horseshoe"])
def test_residual_network_with_batch_norm_works_unchanged(method):
    net = Residual()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = zoo.create(method, net, likelihood="categorical", num_data=16)
    guide = model.guide(init_scale=0.01)
    assert list(model.slots) == [
        "stem.weight", "stem.bias", "block.2.weight", "block.2.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    points = [name for name, p in model.net.named_parameters() if p.requires_grad]
    assert points == ["block.0.weight", "block.0.bias"]
    elbo = TraceMeanField_ELBO()(model, guide)
    optimizer = torch.optim.Adam([p for p in elbo.parameters() if p.requires_grad], lr=0.01)
    x, y = torch.randn(16, 1, 6, 6), torch.randint(0, 3, (16,))
    for _ in range(3):
        optimizer.zero_grad()
        elbo(x, y).backward()
        optimizer.step()
    assert not torch.equal(model.net.block[0].weight, before["block.0.weight"])
    assert not torch.equal(model.net.block[0].running_mean, before["block.0.running_mean"])
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_patterns_choose_what_is_bayesian_and_the_rest_are_points():
    options = {"likelihood": "categorical", "num_data": 16}
    model = zoo.create("mean_field", Residual(), bayesian=["head.*", "block.0.weight"], **options)
    assert list(model.slots) == ["block.0.weight", "head.weight", "head.bias"]
    points = {name for name, p in model.net.named_parameters() if p.requires_grad}
    assert points == {n for n, _ in model.net.named_parameters()} - set(model.slots)
    with pytest.raises(PriorError, match="'hed\\.\\*' matches no slot"):
        zoo.create("mean_field", Residual(), bayesian=["hed.*"], **options)
