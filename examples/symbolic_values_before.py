"""A function under ``cache="symbolic values"``.

That cache reuses a program whatever its branches and broadcasts did, so that there is one compiled copy for
each shape: the results are right, at the price that the cache was to save.
"""

import speckey  # noqa: F401  # isort: skip  (makes thunder importable on torch 2.13)
import thunder
import torch

SHAPES = [(4, 8), (4, 12), (2, 20), (1, 20), (7, 31), (3, 40), (5, 48), (2, 60)]


def standardize(x, gain):
    """Long rows are centered first; ``gain`` has one number per column, or one for all."""
    if x.shape[1] > 32:
        x = x - x.mean(1, keepdim=True)
    return x * gain / x.shape[1]


def inputs():
    torch.manual_seed(0)
    for rows, columns in SHAPES:
        yield torch.randn(rows, columns), torch.randn(columns if rows > 2 else 1)


def main():
    copies = {}
    results = []
    for x, gain in inputs():
        key = (*x.shape, *gain.shape)
        if key not in copies:
            copies[key] = thunder.jit(standardize, cache="symbolic values")
        results.append(copies[key](x, gain))
    compiles = sum(thunder.cache_misses(copy) for copy in copies.values())
    return compiles, results


if __name__ == "__main__":
    print(f"{main()[0]} compiles for {len(SHAPES)} shapes")
