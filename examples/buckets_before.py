"""A text classifier under thunder's default cache.

A program is compiled for each shape, so that sentences are padded to the next multiple of 16, and batches to 8:
some compiles for the buckets, and work on padding at every call.
"""

import speckey  # noqa: F401  # isort: skip  (makes thunder importable on torch 2.13)
import thunder
import torch

LENGTHS = [(3, 9), (8, 14), (5, 21), (8, 30), (1, 37), (6, 45), (8, 52), (4, 63)]
WIDTH, WORDS, CLASSES = 16, 50, 4


class Classifier(torch.nn.Module):
    """Mean of what a small network makes of each word; the mask has ones for words, zeros for padding."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, mask):
        x = torch.tanh(self.hidden(self.embed(tokens))) * mask.unsqueeze(2)
        return self.out(x.sum(1) / mask.sum(1, keepdim=True))


def batches():
    torch.manual_seed(0)
    for rows, length in LENGTHS:
        yield torch.randint(WORDS, (rows, length))


def padded(tokens, rows=8, multiple=16):
    """Tokens of a bucket's shape, and the mask of those that were there."""
    length = -(-tokens.shape[1] // multiple) * multiple
    out = torch.zeros(rows, length, dtype=tokens.dtype)
    mask = torch.zeros(rows, length)
    mask[:, 0] = 1.0  # no row is empty: its mean would be 0 / 0
    out[: tokens.shape[0], : tokens.shape[1]] = tokens
    mask[: tokens.shape[0], : tokens.shape[1]] = 1.0
    return out, mask


def main():
    torch.manual_seed(1)
    compiled = thunder.jit(Classifier())
    with torch.no_grad():
        results = [compiled(*padded(tokens))[: tokens.shape[0]] for tokens in batches()]
    return thunder.cache_misses(compiled), results


if __name__ == "__main__":
    print(f"{main()[0]} compiles for {len(LENGTHS)} shapes")
