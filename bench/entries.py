"""How many programs real models need: entries of speckey beside graphs of ``torch.compile(dynamic=True)``.

Needs ``transformers==4.52.4``, ``torchvision`` and ``timm`` besides the project, which are not its
dependencies; models whose library is missing are left out.  Small random configurations; six sizes each,
with a batch of one and a batch as large as the length.

    python -m bench.entries [--mode forward training] [--only bert ...] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import copy
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import thunder
import torch

import speckey

# torchvision built for another release of torch cannot load its operators, which these models do not use;
# importing it needs two to be there.
if not hasattr(torch.ops.torchvision, "nms"):
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

TEXT = ((2, 8), (3, 11), (1, 8), (6, 6), (4, 16), (5, 13))  # batch, length
# batch, height, width
IMAGES = ((2, 64, 64), (3, 96, 64), (1, 64, 64), (64, 64, 64), (4, 64, 128), (5, 96, 96))
SQUARES = tuple((batch, 64, 64) for batch in (2, 3, 1, 17, 5, 8))  # 17: as many as there are patches, and one


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 100, (batch, length))


def _pixels(batch: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, dtype=torch.float64)


class _First(torch.nn.Module):
    """The first output of a model of transformers, called with keywords."""

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, return_dict=False, **self.options)[0]


def bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return _First(BertModel(config))


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return _First(GPT2LMHeadModel(config), use_cache=False)


def _llama_like(model: str, config: str) -> torch.nn.Module:
    import transformers

    made = getattr(transformers, config)(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return _First(getattr(transformers, model)(made), use_cache=False)


def llama() -> torch.nn.Module:
    return _llama_like("LlamaForCausalLM", "LlamaConfig")


def qwen2() -> torch.nn.Module:
    return _llama_like("Qwen2ForCausalLM", "Qwen2Config")


def t5_encoder() -> torch.nn.Module:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0)
    return _First(T5EncoderModel(config))


def nanogpt() -> torch.nn.Module:
    from thunder.tests.nanogpt_model import GPT, GPTConfig

    config = GPTConfig(block_size=64, vocab_size=100, n_layer=2, n_head=4, n_embd=32, dropout=0.0)
    return _Logits(GPT(config))


def llama2() -> torch.nn.Module:
    from thunder.tests.llama2_model import ModelArgs, Transformer

    return Transformer(ModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=100, max_seq_len=64, dropout=0.0))


class _Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens)[0]


def resnet18() -> torch.nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def mobilenet_v2() -> torch.nn.Module:
    from torchvision.models import mobilenet_v2

    model = mobilenet_v2(num_classes=10)
    model.classifier[0].p = 0.0
    return model


def vit() -> torch.nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    # Images of one size: other sizes interpolate bicubically, which thunder does not have.
    return VisionTransformer(img_size=64, patch_size=16, embed_dim=32, depth=2, num_heads=4, num_classes=10)


def convnext() -> torch.nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 32, 64), num_classes=10)


@attrs.frozen
class Model:
    make: Callable[[], torch.nn.Module]
    sizes: Sequence[tuple[int, ...]]
    inputs: Callable[..., torch.Tensor]

    @property
    def name(self) -> str:
        return self.make.__name__


MODELS = [
    *(Model(make, TEXT, _tokens) for make in (bert, gpt2, llama, qwen2, t5_encoder, nanogpt, llama2)),
    *(Model(make, IMAGES, _pixels) for make in (resnet18, mobilenet_v2, convnext)),
    Model(vit, SQUARES, _pixels),
]


@attrs.define
class Count:
    """What one way took for all sizes of a model."""

    programs: int
    seconds: float
    wrong: int = 0


def _run(model: Any, x: torch.Tensor, parameters: Sequence[torch.Tensor], training: bool) -> list[torch.Tensor]:
    """Output and, when training, the gradients of all parameters."""
    if not training:
        with torch.no_grad():
            return [model(x)]
    out = model(x)
    gradients = torch.autograd.grad(out.float().pow(2).mean(), parameters, allow_unused=True)
    return [out.detach(), *(g for g in gradients if g is not None)]


def _same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(got) == len(expected) and all(
        g.shape == e.shape and torch.allclose(g, e, rtol=1e-5, atol=1e-7) for g, e in zip(got, expected, strict=True)
    )


def count(model: Model, way: str, training: bool) -> tuple[Count, Any]:
    """Programs that a way of compiling needs for all sizes; and, of speckey, the compiled callable."""
    torch.manual_seed(0)
    # In double precision: normalizing a few pixels amplifies rounding, in eager as elsewhere.
    module = model.make().to(torch.float64).train(training)
    eager = copy.deepcopy(module)
    compiled: Any = None
    graphs = 0
    if way == "speckey":
        compiled = run = thunder.jit(module, cache=speckey.SpecKeyCache())
    elif way == "constant values":
        compiled = run = thunder.jit(module)
    else:
        torch._dynamo.reset()

        def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
            nonlocal graphs
            graphs += 1
            return graph.forward

        run = torch.compile(module, dynamic=True, backend=backend)
    result = Count(0, 0.0)
    for size in model.sizes:
        x = model.inputs(*size)
        start = time.perf_counter()
        got = _run(run, x, list(module.parameters()), training)
        result.seconds += time.perf_counter() - start
        result.wrong += not _same(got, _run(eager, x, list(eager.parameters()), training))
    result.programs = graphs if way == "torch.compile" else thunder.cache_misses(compiled)
    return result, compiled


def counts(models: Sequence[Model], modes: Sequence[str], ways: Sequence[str]) -> Iterator[tuple]:
    for model in models:
        for mode in modes:
            row: dict[str, Count] = {}
            for way in ways:
                try:
                    row[way], compiled = count(model, way, mode == "training")
                except ImportError as error:
                    print(f"{model.name}: left out, {error}")
                    break
                if way == "speckey":
                    row["explain"] = compiled
            else:
                yield model, mode, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="*", default=["forward", "training"], choices=["forward", "training"])
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--explain", action="store_true", help="why speckey compiled again")
    parser.add_argument("--ways", nargs="*", default=["speckey", "torch.compile"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    models = [m for m in MODELS if not options.only or m.name in options.only]
    print(f"{'model':<14}{'mode':<10}" + "".join(f"{way:>26}" for way in options.ways))
    for model in models:
        for mode in options.mode:
            try:
                for _, _, row in counts([model], [mode], options.ways):
                    cells = [row[way] for way in options.ways]
                    text = [f"{c.programs} in {c.seconds:.1f} s" + f", {c.wrong} WRONG" * bool(c.wrong) for c in cells]
                    print(f"{model.name:<14}{mode:<10}" + "".join(f"{t:>26}" for t in text), flush=True)
                    if options.explain and "explain" in row:
                        speckey.explain(row["explain"])
            except Exception:
                print(f"{model.name:<14}{mode:<10} failed")
                traceback.print_exc(limit=-6)


if __name__ == "__main__":
    main()
