"""Variance of the gradient when layers sample their outputs or their weights.

``python -m benchmarks.variance``. A network 64-50-50-10 with a mean-field posterior is trained on
digits; at several steps the gradient of one fixed batch is computed with 200 draws of the noise.
The table has the variance of the gradient (summed over parameters, relative to the squared norm of
its mean), the time of a step, and their product: the cost of a given precision of the gradient.
Writes ``benchmarks/results/variance.csv``.
"""

import statistics
import time
from pathlib import Path

import pandas as pd
import pyro
import torch
from torch import Tensor, nn

import zoo
import zoo.data
from benchmarks.speed import machine_line
from zoo.infer.svi.capture import CapturedObjective
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective
from zoo.network.nets import mlp
from zoo.registry import Recipe

RESULTS = Path(__file__).parent / "results"
NUM_DRAWS = 200
STEPS = (0, 300, 1000, 3000)
BATCH = 128


def gradient_statistics(objective: Objective, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the relative variance of the gradient and the seconds of a step."""
    captured = CapturedObjective(objective)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    captured.loss_and_gradients(x, y)
    draws, seconds = [], []
    for _ in range(NUM_DRAWS):
        started = time.perf_counter()
        captured.loss_and_gradients(x, y)
        seconds.append(time.perf_counter() - started)
        draws.append(nn.utils.parameters_to_vector([p.grad for p in parameters]))  # type: ignore[misc]
    gradients = torch.stack(draws)
    variance = gradients.var(0).sum()
    # The squared norm of the average is biased upwards by its variance.
    squared = gradients.mean(0).square().sum() - variance / NUM_DRAWS
    return float(variance / squared), statistics.median(seconds)


def measure(method: str) -> list[dict[str, object]]:
    """Train a method, and measure its gradients at several steps."""
    data = zoo.data.load("digits")
    x = torch.as_tensor(data.X_train, dtype=torch.float32)
    y = torch.as_tensor(data.y_train, dtype=torch.int64)
    torch.manual_seed(0)
    model = zoo.create(method, mlp([64, 50, 50, 10]), likelihood="categorical", num_data=len(x))
    guide = model.guide(init_scale=0.01)
    recipe = Recipe(num_steps=max(STEPS), batch_size=BATCH, schedule="constant", kl_warmup=0.0)
    svi = SVI(model, guide, x, y, recipe=recipe, seed=0, local=True)
    rows: list[dict[str, object]] = []

    def look(step: int) -> None:
        for local in (True, False):
            objective = Objective(model, guide, local=local).train()
            variance, seconds = gradient_statistics(objective, x[:BATCH], y[:BATCH])
            rows.append(
                {
                    "method": method,
                    "step": step,
                    "estimator": "local" if local else "weights",
                    "relative_variance": variance,
                    "milliseconds": 1e3 * seconds,
                    "variance_times_milliseconds": variance * 1e3 * seconds,
                }
            )

    look(0)
    svi.run(
        checkpoint_every=100,
        on_checkpoint=lambda s: look(s.progress.step) if s.progress.step in STEPS else None,
    )
    return rows


def main() -> None:
    torch.set_num_threads(1)
    with pyro.settings.context(module_local_params=True):
        table = pd.DataFrame([row for m in ("mean_field", "group_horseshoe") for row in measure(m)])
    table = table.drop_duplicates(["method", "step", "estimator"])
    print(table.round(3).to_string(index=False))
    RESULTS.mkdir(exist_ok=True)
    table["machine"] = machine_line()
    table.round(4).to_csv(RESULTS / "variance.csv", index=False)


if __name__ == "__main__":
    main()
