"""Shapes and systems that are measured, each named on the command line (`harness.parse`)."""

import dataclasses
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    """A Qwen2 decoder with tied embeddings in float32, and the batch of one update."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    prompts: int
    """N"""
    group: int
    """G: completions of a prompt."""
    prompt: int
    """P: tokens of each prompt."""
    completion: int
    """T: tokens of each completion."""


SMALL = Shape(32_768, 256, 4, 4, 2, 64, 768, prompts=4, group=4, prompt=64, completion=128)
# Qwen2.5-0.5B
LARGE = Shape(151_936, 896, 24, 14, 2, 64, 4864, prompts=1, group=16, prompt=128, completion=64)
SHAPES = {
    "A": SMALL,
    "B": dataclasses.replace(SMALL, prompts=2, group=16, prompt=256, completion=64),
    "C": LARGE,
    "D": dataclasses.replace(LARGE, group=4, prompt=64),
    # SmolLM2-135M, and a step of its preset
    "E": Shape(49_152, 576, 30, 9, 3, 64, 1536, prompts=16, group=4, prompt=96, completion=32),
}


def product_flops(shape: Shape, *, adapters: bool = False) -> int:
    """Counts the FLOPs of the products that an update cannot do without, forward and backward.

    A multiply-accumulate is 2. Each prompt is computed once, the head sees completions alone,
    attention the pairs that see each other, and nothing is computed again. Adapters leave each
    frozen matrix one gradient instead of two, and are themselves not counted.
    """
    n, g, p, t = shape.prompts, shape.group, shape.prompt, shape.completion
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = 2 * shape.width * (queries + keys) + 3 * shape.width * shape.intermediate
    pairs = n * (p * (p + 1) // 2 + g * (t * p + t * (t + 1) // 2))
    projections = shape.layers * weights * n * (p + g * t)
    head = shape.width * shape.vocabulary * n * g * t
    passes = 2 if adapters else 3
    return 2 * (passes * (projections + head) + 3 * shape.layers * 2 * queries * pairs)


@dataclass(frozen=True)
class Ogrpo:
    """Settings as `--model.remat` and `--kernels` of a run have them."""

    remat: str = "products"
    """none, products, or full."""
    kernels: str = "auto"
    """auto, reference, or chunked."""
    attention: str = "auto"
    """auto, plain, or blocked."""
    lora: int = 0
    """Rank of adapters on all projections, alone trained; 0 trains every weight."""


@dataclass(frozen=True)
class Tunix:
    """Tunix's own choices."""

    remat: str = "none"
    """none, block, or decoder: its `RematConfig`."""


@dataclass(frozen=True)
class Trl:
    """TRL's own choices, and one that it makes on a GPU only."""

    checkpointing: bool = True
    """`gradient_checkpointing`."""
    head: str = "all"
    """Positions that the output head scores: all, as TRL does on a CPU, or completions, as it does
    on a GPU; that needs one private function of TRL replaced."""
    lora: int = 0
    """Rank of PEFT's adapters on all projections, alone trained; 0 trains every weight."""


SYSTEMS = {"ogrpo": Ogrpo(), "tunix": Tunix(), "trl": Trl()}

EPSILON = 0.2
ADAM = {"learning_rate": 1e-4, "b1": 0.9, "b2": 0.98, "eps": 1e-8}
MAX_GRAD_NORM = 1.0
ALPHA = 32.0
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_batch(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    """A random batch; token 0 is left to padding, of which there is none.

    Behaviour log-probs lie about those of a decoder at its random start, which are close to
    -log V, so that ratios are about 1 and a part of them is clipped.
    """
    rng = np.random.default_rng(seed)
    n, g, p, t = shape.prompts, shape.group, shape.prompt, shape.completion
    rewards = rng.normal(0.3, 1.0, (n, g)).astype(np.float32)
    deviations = rewards - rewards.mean(1, keepdims=True)
    old = -np.log(shape.vocabulary) + rng.normal(-0.1, 0.2, (n, g, t))
    return {
        "prompt_ids": rng.integers(1, shape.vocabulary, (n, p), dtype=np.int32),
        "completion_ids": rng.integers(1, shape.vocabulary, (n, g, t), dtype=np.int32),
        "behavior_log_probs": old.astype(np.float32),
        "rewards": rewards,
        "advantages": deviations / np.sqrt((deviations**2).mean(1, keepdims=True) + 1e-6),
    }


def draw_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """N(0, 0.02^2) about 0, or about 1 for norms. Drawn in numpy: it compiles no program."""
    return np.float32("norm" in name) + np.float32(0.02) * rng.standard_normal(shape, np.float32)


def draw_adapter(target: str, layer: int, shape: tuple[int, int]) -> np.ndarray:
    """A first A [r, in], the same in every system; each B is 0."""
    rng = np.random.default_rng([TARGETS.index(target), layer])
    return rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(shape[1] ** 0.5)
