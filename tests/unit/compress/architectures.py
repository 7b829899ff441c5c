"""Networks for the tests of compression, each with the shape of its rows."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.network.nets import lenet5, mlp


class Residual(nn.Module):
    """Two residual blocks with batch normalisation, written with functions and in-place sums."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.first = nn.Conv2d(6, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.second = nn.Conv2d(5, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 4, 1, stride=2)
        self.third = nn.Conv2d(6, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.stem(x.view(x.size(0), 1, 8, 8)))
        x = x + self.second(F.relu(self.norm(self.first(x))))
        y = F.relu(self.third(x))
        y += self.down(x)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Conv2d(1, 6, 1)
        self.depth = nn.Conv2d(6, 6, 3, groups=6)
        self.mix = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = torch.tanh(self.point(x.reshape(-1, 1, 8, 8)))
        return self.head(self.mix(F.silu(self.depth(x))).flatten(1))


class Grouped(nn.Module):
    """A convolution in two groups, whose units cannot be removed one by one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.head = nn.Linear(6 * 16, 3)

    def forward(self, x):
        x = F.relu(self.first(x.reshape(-1, 1, 8, 8)))
        return self.head(F.relu(self.grouped(x)).flatten(1))


class Branches(nn.Module):
    """Concatenation, a gate, a slice of units, a skip from the input and a scale per unit."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(12, 5), nn.Linear(12, 7)
        self.gate = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        both = torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], dim=1)
        gated = both * torch.sigmoid(self.gate(x)) * self.scale + 0.5 * x
        return F.log_softmax(self.head(gated[:, 2:]), dim=-1)


class Generator(nn.Module):
    """Units that become the channels of a map, layer normalisation, pooling with padding."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 3 * 16)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        maps = F.elu(self.first(x)).unflatten(1, (3, 4, 4))
        maps = F.avg_pool2d(F.gelu(self.conv(F.max_pool2d(maps, 3, 1, 1))), 2, 2, 1)
        return self.head(F.dropout(self.norm(maps.mean((2, 3))), 0.5, self.training))


class Sequence1d(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, padding="same")
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8 * 4, 2)

    def forward(self, x):
        x = F.max_pool1d(F.leaky_relu(self.norm(self.conv(x))), 2)
        return self.head(torch.flatten(x, 1))


def conv_norm():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3, stride=2),
        nn.BatchNorm2d(4, affine=False),
        nn.ELU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(16, 10),
        nn.BatchNorm1d(10),
        nn.Tanh(),
        nn.Linear(10, 3),
    )


ARCHITECTURES = {
    "mlp": (lambda: mlp([12, 9, 7, 3]), (12,)),
    "linear": (lambda: mlp([12, 3]), (12,)),
    "softplus": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Softplus(), nn.Linear(9, 3)), (12,)),
    "lenet5": (lambda: lenet5((1, 16, 16), 3), (256,)),
    "conv_norm": (conv_norm, (64,)),
    "residual": (Residual, (64,)),
    "depthwise": (Depthwise, (64,)),
    "grouped": (Grouped, (64,)),
    "branches": (Branches, (12,)),
    "generator": (Generator, (12,)),
    "sequence": (Sequence1d, (3, 8)),
}


def build(name):
    """Return a network in double precision at test time, its function, and its row shape."""
    torch.manual_seed(0)
    make, shape = ARCHITECTURES[name]
    net = make().double().eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)

    def forward(values, x):
        return torch.func.functional_call(net, values, (x,))

    return net, forward, shape


def masked_values(net, density, generator):
    """Draw the weights of a network, with rows and columns of them set to zero."""
    values = {}
    for name, parameter in net.named_parameters():
        value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if value.dim() > 1:
            value /= value[0].numel() ** 0.5
            for dim in (0, 1):
                shape = [-1 if d == dim else 1 for d in range(value.dim())]
                keep = torch.rand(value.shape[dim], generator=generator) < density
                value = value * keep.reshape(shape)
        values[name] = value
    return values
