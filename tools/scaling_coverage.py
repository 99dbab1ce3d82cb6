"""How often the 95 % intervals of `scaling fit` hold the true exponents: random laws, a grid of runs, noise.

python tools/scaling_coverage.py --grids 3x3 4x4 5x5 --loss huber --noise 0.003 [--laws 200] [--draws 200]
    [--seed 0] [--exponents 0.2 0.6] [--decades 2]
"""

from __future__ import annotations

import argparse

import numpy as np

from gpt1_ds.scaling.bootstrap import draw, interval, run_weights
from gpt1_ds.scaling.fit import fit
from gpt1_ds.scaling.forms import problem


def coverage(sizes: int, budgets: int, loss: str, options: argparse.Namespace) -> tuple[float, ...]:
    """Shares of the laws whose alpha, and whose beta, lies in its interval."""
    rng = np.random.default_rng(options.seed)
    half = 10 ** (options.decades / 2)  # of N and of D, around the middle of the grid
    grid = np.meshgrid(np.geomspace(1e8 / half, 1e8 * half, sizes), np.geomspace(1e10 / half, 1e10 * half, budgets))
    n, d = (axis.ravel() for axis in grid)
    inside = []
    for law in range(options.laws):
        alpha, beta = rng.uniform(*options.exponents, 2)
        of_n, of_d = rng.uniform(0.3, 1.2, 2)  # nats in the middle of the grid
        truth = rng.uniform(1.2, 2.5) + of_n * (n / 1e8) ** -alpha + of_d * (d / 1e10) ** -beta
        posed = problem("chinchilla", n, d, truth * np.exp(options.noise * rng.standard_normal(len(n))), loss)
        optimum = fit(posed)
        samples = posed.named(draw(posed, optimum, run_weights(options.draws, len(n), seed=law)))
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
    parser.add_argument("--exponents", type=float, nargs=2, default=(0.2, 0.6), metavar=("LOW", "HIGH"))
    parser.add_argument("--decades", type=float, default=2.0, help="of N and of D")
    options = parser.parse_args()
    for loss in options.loss:
        for grid in options.grids:
            sizes, budgets = map(int, grid.split("x"))
            found = coverage(sizes, budgets, loss, options)
            print(f"{loss} {grid} noise {options.noise}: alpha {found[0]:.3f}, beta {found[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
