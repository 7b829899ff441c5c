"""Runs the zoo on an accelerator, and prints what happened as JSON.

Without an argument the accelerator does not exist: a device registered by name, under
`FakeTensorMode`, has shapes, types and devices but no numbers. A tensor made on the CPU by mistake
meets one of the device and raises; a value read back (``.item()``) has no number to give and
raises. With the argument ``cuda`` the same programs run on a real device, where PyTorch is told to
raise when it has to wait. Both change the process for good, which is why the tests run this in one
of its own.
"""

import contextlib
import json
import sys
import warnings

import pyro
import pyro.poutine as poutine
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import zoo
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.objective import Objective
from zoo.registry import list_models

warnings.simplefilter("ignore")  # seeding a device without a generator
REAL = sys.argv[1:] == ["cuda"]
if not REAL:
    _setup_privateuseone_for_python_backend("npy")
DEVICE = torch.device("cuda:0" if REAL else "npy:0")


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )


class StrayTensor(nn.Module):
    """Control: adds a tensor of the default device."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x) + torch.ones(2)


class ReadsBack(nn.Module):
    """Control: looks at a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        f = self.linear(x)
        return f if f.sum().item() > 0 else -f


def moved(objective):
    """Put tensors of the device in the place of all parameters and buffers."""
    if REAL:
        return objective.to(DEVICE)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    return objective._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=DEVICE))


@contextlib.contextmanager
def never_waiting():
    """Let a real device raise where the CPU has to wait for it, as a fake one always does."""
    if not REAL:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def everything(method, net, local):
    """Run a step, a prediction and a gradient of the log joint; return the devices of all."""
    model = zoo.create(method, net, likelihood="categorical", num_data=10)
    objective = Objective(model, model.guide(init_scale=0.1), local=local, validate=False)
    inputs = 3 if isinstance(net, StrayTensor | ReadsBack) or net[0].__class__ is nn.Linear else 16
    fake = contextlib.nullcontext() if REAL else FakeTensorMode()
    with fake, pyro.settings.context(module_local_params=True):
        moved(objective).train()
        x = torch.randn(8, inputs, device=DEVICE)
        y = torch.randint(2, (8,), device=DEVICE)
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trained, fused=REAL)
        with never_waiting():
            objective(x, y).backward()
            optimizer.step()
        objective.eval()  # as a training loop leaves it
        draws = draw_posterior(model, objective.guide, 5, seed=0)
        outputs = network_outputs(model, draws.slots, x)
        sites = {name: value[0].requires_grad_() for name, value in draws.sites.items()}
        with pyro.validation_enabled(False):
            log_joint = (
                poutine.trace(poutine.condition(model, data=sites)).get_trace(x, y).log_prob_sum()
            )
        gradients = torch.autograd.grad(log_joint, list(sites.values()))
        tensors = [outputs, *gradients, *(p.grad for p in trained)]
        return sorted({str(tensor.device) for tensor in tensors})


def outcome(*arguments):
    try:
        return everything(*arguments)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        # Pyro wraps what a model raises, and cannot construct every class: then it is a TypeError.
        return f"{type(error).__name__}: {error}"


def main():
    results = {}
    for method in list_models():
        for name, net in (("mlp", mlp()), ("convolutional", convolutional())):
            for local in (False, True):
                key = f"{method}, {name}, {'local' if local else 'weights'}"
                results[key] = outcome(method, net, local)
    results["stray tensor"] = outcome("mean_field", StrayTensor(), False)
    results["reads back"] = outcome("mean_field", ReadsBack(), False)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
