"""The classifier of ``buckets_before.py`` under ``cache=SpecKeyCache()``: no padding, no mask."""

import speckey  # isort: skip  (makes thunder importable on torch 2.13)
import thunder
import torch

LENGTHS = [(3, 9), (8, 14), (5, 21), (8, 30), (1, 37), (6, 45), (8, 52), (4, 63)]
WIDTH, WORDS, CLASSES = 16, 50, 4


class Classifier(torch.nn.Module):
    """Mean of what a small network makes of each word."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        return self.out(torch.tanh(self.hidden(self.embed(tokens))).mean(1))


def batches():
    torch.manual_seed(0)
    for rows, length in LENGTHS:
        yield torch.randint(WORDS, (rows, length))


def main():
    torch.manual_seed(1)
    compiled = thunder.jit(Classifier(), cache=speckey.SpecKeyCache())
    with torch.no_grad():
        results = [compiled(tokens) for tokens in batches()]
    return thunder.cache_misses(compiled), results, compiled


if __name__ == "__main__":
    compiles, _, compiled = main()
    print(f"{compiles} compiles for {len(LENGTHS)} shapes\n")
    speckey.explain(compiled)
