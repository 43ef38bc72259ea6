"""The cost of padding to an update: padded against packed batches of GSM8K's lengths.

    python -m benchmarks.ragged --gsm8k FOLDER

Lengths in tokens are those of GSM8K's questions and answers under a byte-level BPE trained on them,
each group a question drawn at random; its completions are as long as its answer, times e^(s z) with
s = `--spread` and z standard normal. Tokens themselves are random: what a token is costs nothing.

Every round takes a fresh batch and updates a small decoder on it, padded, then packed, then padded
again after the next; all programs are compiled before. CPU is user and system time of the process,
memory XLA's own figure of a program's temporary arrays. Ratios are medians of the rounds' ratios.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from ogrpo.batch import Batch
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.data.tokenizer import train_bpe
from ogrpo.kernels.log_probs import KERNELS, choose
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import Recipe, make_update
from ogrpo.loop import Packer
from ogrpo.loop.batches import Made, make_batch, to_device
from ogrpo.policy import DecoderConfig, init_params
from ogrpo.setup.devices import make_policy_fn
from ogrpo.tasks.gsm8k import read_problems

KNOBS = {"eps_low": 0.2, "eps_high": 0.2, "beta": 0.0}


@dataclass(frozen=True)
class Options:
    """Measures updates on padded and on packed batches in turn."""

    gsm8k: Path
    """Folder with train.jsonl."""
    groups: int = 8
    members: int = 8
    prompt: int = 256
    completion: int = 256
    microbatches: int = 1
    spread: float = 0.25
    """Standard deviation of the log of a completion's length around its group's."""
    vocabulary: int = 32_768
    width: int = 256
    layers: int = 4
    rounds: int = 9
    batches: int = 200
    """Random batches that padding and shapes are counted over."""
    seed: int = 0


class Lengths(NamedTuple):
    """Tokens of each question and answer."""

    questions: np.ndarray
    answers: np.ndarray


class Spent(NamedTuple):
    """Seconds of one update."""

    cpu: float
    wall: float


def read_lengths(folder: Path) -> Lengths:
    """Reads the lengths of the training split, under a BPE of 8,192 tokens."""
    problems = read_problems(folder / "train.jsonl")
    texts = [text for p in problems for text in (p.question, p.answer)]
    tokenizer = train_bpe(texts, 8192, split_digits=False)
    return Lengths(
        np.array([len(tokenizer.encode(p.question)) for p in problems]),
        np.array([len(tokenizer.encode(p.answer, add_eos=True)) for p in problems]),
    )


def draw(lengths: Lengths, options: Options, rng: np.random.Generator) -> Batch[np.ndarray]:
    """A batch of random problems, half of each group right, so that every group carries loss."""
    n, g, t = options.groups, options.members, options.completion
    problems = rng.integers(0, len(lengths.questions), n)
    prompts = np.minimum(lengths.questions[problems], options.prompt)
    stretched = lengths.answers[problems][:, None] * np.exp(
        options.spread * rng.normal(size=(n, g))
    )
    sizes = np.clip(np.ceil(stretched), 1, t)
    mask = np.arange(t) < sizes[..., None]
    return Batch(
        prompt_ids=rng.integers(0, options.vocabulary, (n, options.prompt)).astype(np.int32),
        prompt_mask=np.arange(options.prompt) < prompts[:, None],
        completion_ids=rng.integers(0, options.vocabulary, (n, g, t)).astype(np.int32),
        completion_mask=mask,
        loss_mask=mask,
        behavior_log_probs=rng.normal(-8, 1, (n, g, t)).astype(np.float32),
        rewards=np.tile(np.arange(g, dtype=np.float32) % 2, (n, 1)),
        policy_versions=np.zeros((n, g), np.int32),
    )


def make_decoder(options: Options) -> DecoderConfig:
    return DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=options.width * 11 // 4,
        num_layers=options.layers,
        num_heads=options.width // 64,
        num_kv_heads=max(1, options.width // 128),
        head_dim=64,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=options.prompt + options.completion,
    )


class Bench:
    """The updates of both kinds, a program for each shape."""

    def __init__(self, options: Options) -> None:
        self.options, self.decoder = options, make_decoder(options)
        self.optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
        head = KERNELS[choose("auto", options.vocabulary)]
        recipe = Recipe(
            policy_fn=make_policy_fn(self.decoder, log_probs_fn=head),
            algorithm=ALGORITHMS["off_policy_grpo"],
            reads=frozenset(),
            microbatches=options.microbatches,
        )
        self.updates = {
            kind: make_update(self.optimizer, recipe._replace(packed=kind == "packed"))
            for kind in ("padded", "packed")
        }
        self.packer = Packer(options.microbatches, skip_zero_variance=False)
        self.programs: dict[Any, Callable[..., Any]] = {}
        self.memory: dict[Any, int] = {}
        self.hypers = hypers(1e-5, 1.0, KNOBS)

    def made(self, kind: str, groups: Batch[np.ndarray]) -> Made:
        packer = self.packer if kind == "packed" else None
        made = make_batch(groups, packer, for_update=True)
        return made._replace(batch=to_device(made.batch))

    def program(self, kind: str, made: Made) -> tuple[Callable[..., Any], int]:
        """Compiled before it is measured, and its temporary bytes."""
        key = (kind, made.shape)
        if key not in self.programs:
            lowered = jax.jit(self.updates[kind]).lower(self.state(), made.batch, self.hypers)
            self.programs[key] = lowered.compile()
            self.memory[key] = self.programs[key].memory_analysis().temp_size_in_bytes  # pyright: ignore
        return self.programs[key], self.memory[key]

    def state(self) -> Any:
        return init_state(init_params(self.decoder, jax.random.key(0)), self.optimizer)

    def spent(self, kind: str, made: Made) -> Spent:
        """Seconds of one update, host side included."""
        run, _ = self.program(kind, made)
        state = jax.block_until_ready(self.state())
        before, begin = os.times(), time.perf_counter()
        jax.block_until_ready(run(state, made.batch, self.hypers))
        after, end = os.times(), time.perf_counter()
        return Spent(after.user + after.system - before.user - before.system, end - begin)


def count(lengths: Lengths, options: Options, bench: Bench) -> str:
    """Padding and shapes over many batches, and what arranging one costs."""
    rng = np.random.default_rng(options.seed + 1)
    drawn = [draw(lengths, options, rng) for _ in range(options.batches)]
    before = time.process_time()
    packed = [bench.made("packed", groups) for groups in drawn]
    each = (time.process_time() - before) / len(packed)
    padded = [bench.made("padded", groups) for groups in drawn]
    shares = [[m.padding for m in made] for made in (padded, packed)]
    texts = [f"{statistics.mean(share):.1%} (at most {max(share):.1%})" for share in shares]
    return (
        f"padding over {options.batches} batches: padded {texts[0]}, packed {texts[1]}, in "
        f"{len({m.shape for m in packed})} shapes; arranging a batch takes {1e3 * each:.1f} ms"
    )


def main(options: Options) -> None:
    lengths, bench = read_lengths(options.gsm8k), Bench(options)
    for name, values in lengths._asdict().items():
        print(
            f"{name}: {values.mean():.1f} tokens on average, standard deviation {values.std():.1f}"
        )
    print(count(lengths, options, bench))
    rng = np.random.default_rng(options.seed)
    spent: dict[str, list[tuple[float, ...]]] = {"padded": [], "packed": []}
    for turn in range(options.rounds):
        groups = draw(lengths, options, rng)
        for kind in sorted(spent, reverse=turn % 2 == 1):
            made = bench.made(kind, groups)
            _, memory = bench.program(kind, made)
            bench.spent(kind, made)  # warms caches up
            spent[kind].append((*bench.spent(kind, made), memory / 2**20))
    show(spent)


def show(spent: dict[str, list[tuple[float, ...]]]) -> None:
    """Medians, extremes and ratios."""
    print(f"\n{'':8s}{'CPU s':>24s}{'wall s':>24s}{'memory MiB':>24s}")
    for kind, rows in spent.items():
        cells = [
            f"{statistics.median(column):8.2f} ({min(column):.2f}-{max(column):.2f})"
            for column in zip(*rows, strict=True)
        ]
        print(f"{kind:8s}" + "".join(f"{cell:>24s}" for cell in cells))
    ratios = [
        [p / q for p, q in zip(*pair, strict=True)]
        for pair in zip(*(zip(*spent[kind], strict=True) for kind in spent), strict=True)
    ]
    cells = [f"{statistics.median(r):8.2f} ({min(r):.2f}-{max(r):.2f})" for r in ratios]
    print(f"{'ratio':8s}" + "".join(f"{cell:>24s}" for cell in cells))


if __name__ == "__main__":
    main(tyro.cli(Options))
