"""Small models, forward and training: right on every shape, and no more programs than shapes."""

from __future__ import annotations

import pytest
import torch

import speckey
from tests.models import MODELS, WAYS, Call, build, walk


def assert_like_eager(call: Call) -> None:
    torch.testing.assert_close(
        call.actual, call.expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"shape {call.shape}: {text}"
    )


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_right_on_every_shape_and_compiles_none_twice(name, training):
    model = MODELS[name]
    jfn, eager = build(model, WAYS["speckey"], training=training)
    for call in walk(model, jfn, eager):
        assert_like_eager(call)
        assert not (call.known and call.compiles), f"shape {call.shape} was known and compiled again"
    assert len(speckey.entries(jfn)) <= len(model.shapes)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
def test_an_mlp_has_one_entry_for_all_batch_sizes_above_one(training):
    batches = tuple((batch,) for batch in range(2, 8))
    jfn, eager = build(MODELS["mlp"], WAYS["speckey"], training=training)
    for call in walk(MODELS["mlp"], jfn, eager, batches):
        assert_like_eager(call)
    assert len(speckey.entries(jfn)) == 1
