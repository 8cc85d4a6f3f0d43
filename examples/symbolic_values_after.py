"""The function of ``symbolic_values_before.py`` under ``cache=SpecKeyCache()``: one compiled copy, right everywhere."""

import speckey  # isort: skip  (makes thunder importable on torch 2.13)
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


compiled = thunder.jit(standardize, cache=speckey.SpecKeyCache())


def main():
    before = thunder.cache_misses(compiled)
    results = [compiled(x, gain) for x, gain in inputs()]
    return thunder.cache_misses(compiled) - before, results


if __name__ == "__main__":
    print(f"{main()[0]} compiles for {len(SHAPES)} shapes\n")
    speckey.explain(compiled)
