"""How often the 95 % intervals of `scaling fit` hold the true exponents: random laws, a grid of runs, noise.

python tools/scaling_coverage.py --grids 3x3 4x4 5x5 --loss huber --noise 0.003 [--laws 200] [--draws 200]
"""

from __future__ import annotations

import argparse

import numpy as np

from gpt1_ds.scaling.bootstrap import draw, interval, run_weights
from gpt1_ds.scaling.fit import fit
from gpt1_ds.scaling.forms import problem


def coverage(sizes: int, budgets: int, loss: str, noise: float, laws: int, draws: int, seed: int) -> tuple[float, ...]:
    """Shares of the laws whose alpha, and whose beta, lies in its interval."""
    rng = np.random.default_rng(seed)
    grid = np.meshgrid(np.geomspace(1e7, 1e9, sizes), np.geomspace(1e9, 1e11, budgets))
    n, d = (axis.ravel() for axis in grid)
    inside = []
    for law in range(laws):
        alpha, beta = rng.uniform(0.2, 0.6, 2)
        of_n, of_d = rng.uniform(0.3, 1.2, 2)  # nats in the middle of the grid
        truth = rng.uniform(1.2, 2.5) + of_n * (n / 1e8) ** -alpha + of_d * (d / 1e10) ** -beta
        posed = problem("chinchilla", n, d, truth * np.exp(noise * rng.standard_normal(len(n))), loss)
        optimum = fit(posed)
        samples = posed.named(draw(posed, optimum, run_weights(draws, len(n), seed=law)))
        bounds = (interval(samples["alpha"]), interval(samples["beta"]))
        inside.append([low <= true <= high for true, (low, high) in zip((alpha, beta), bounds, strict=True)])
    return tuple(float(share) for share in np.mean(inside, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grids", nargs="+", default=["5x5"], metavar="NxD")
    parser.add_argument("--loss", nargs="+", default=["huber"], choices=("huber", "l2"))
    parser.add_argument("--noise", type=float, default=0.003)
    parser.add_argument("--laws", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for loss in options.loss:
        for grid in options.grids:
            sizes, budgets = map(int, grid.split("x"))
            found = coverage(sizes, budgets, loss, options.noise, options.laws, options.draws, options.seed)
            print(f"{loss} {grid} noise {options.noise}: alpha {found[0]:.3f}, beta {found[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
