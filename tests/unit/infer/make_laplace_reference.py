"""Writes laplace_reference.json by laplace-torch, when run as a program.

Weights are drawn, not trained: the curvature is defined anywhere. laplace-torch imports
torchvision, which it does not need for this; any package of that name will do.
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PRIOR_PRECISION, NOISE = 2.0, 0.5
PROBLEMS = {"classification": 3, "regression": 1}


def problem(task):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, PROBLEMS[task])).double()
    x = torch.randn(12, 2, dtype=torch.float64)
    if task == "classification":
        return net, x, torch.randint(3, (12,))
    return net, x, torch.randn(12, 1, dtype=torch.float64)


def reference(task):
    net, x, y = problem(task)
    found = {
        "x": x.tolist(),
        "y": y.reshape(-1).tolist(),
        "weights": {name: value.tolist() for name, value in net.named_parameters()},
    }
    for structure in ("full", "diag"):
        laplace = Laplace(
            net,
            task,
            subset_of_weights="all",
            hessian_structure=structure,
            prior_precision=PRIOR_PRECISION,
            **({"sigma_noise": NOISE} if task == "regression" else {}),
        )
        laplace.fit(DataLoader(TensorDataset(x, y), batch_size=5))
        found[f"{structure}_precision"] = laplace.posterior_precision.tolist()
        found[f"{structure}_log_evidence"] = float(laplace.log_marginal_likelihood().detach())
        mean, variance = laplace._glm_predictive_distribution(x)
        found[f"{structure}_mean"] = mean.detach().tolist()
        found[f"{structure}_covariance"] = variance.detach().tolist()
    return found


if __name__ == "__main__":
    values = {
        "_about": f"laplace-torch {version('laplace-torch')}, torch {torch.__version__}",
        "prior_precision": PRIOR_PRECISION,
        "noise": NOISE,
    }
    values |= {task: reference(task) for task in PROBLEMS}
    path = Path(__file__).with_name("laplace_reference.json")
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
