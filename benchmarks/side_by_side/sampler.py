"""The embedded sampler beside `generate` of transformers, vLLM's CPU back end and llama.cpp.

    python -m benchmarks.side_by_side.sampler
    python -m benchmarks.side_by_side.sampler --shapes tiny 0.5b:tokens=32 --engines ogrpo vllm

What is compared, and with which settings of the peers, is in README.md beside this file.
"""

import dataclasses
import hashlib
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import jax
import tyro

from benchmarks.side_by_side import harness
from ogrpo.data.tokenizer import word_level
from ogrpo.models.known import KNOWN, model_folder, unpacked
from ogrpo.policy import DecoderConfig, Params, init_params, save_pretrained
from ogrpo.policy.config import SHAPES as DECODERS
from ogrpo.policy.pretrained import load_config
from ogrpo.setup.cache import cache_path
from ogrpo.setup.devices import DTYPES
from ogrpo.setup.model import tiny_decoder
from ogrpo.tasks import arithmetic

PEERS = {
    "transformers": ("torch==2.13.0", "transformers==5.23.0"),
    "llamacpp": ("xllamacpp==2026.10.11549", "numpy==2.4.2"),
}
VLLM = harness.HERE.parents[1] / "tests" / "server" / "requirements.txt"
ENGINES = ("ogrpo", "ogrpo-plain", "transformers", "vllm", "llamacpp")
EOS = 1
LOUDER = 8
"""What layers write, times so much, where the most likely token is drawn: with small random weights
and a tied head that would be the token before, again and again."""


@dataclass(frozen=True)
class Shape:
    """A batch: what one step of training asks of the sampler."""

    model: str
    """tiny (the default run's decoder), 0.5b (the shape of Qwen2.5-0.5B), or smollm2-135m, whose
    real weights are fetched."""
    prompts: int
    """N"""
    group: int
    """G: completions of a prompt."""
    prompt: int
    """P: tokens of each prompt."""
    tokens: int
    """T: tokens of each completion."""
    dtype: str = "float32"
    """float32 or bfloat16, of weights and cache."""
    greedy: bool = False
    """Take the most likely token, so that what the engines drew can be compared; for G = 1."""
    warm: int = 0
    """Tokens of a completion in batches that warm up; 0: T. A measurement of hundreds of steps
    needs no other such batch before it."""

    def __post_init__(self) -> None:
        if self.greedy and self.group > 1:
            raise ValueError(
                f"greedy with group={self.group}: all completions of a prompt are the same, and"
                " vLLM refuses to draw them; give more prompts and group=1"
            )


LARGE = Shape("0.5b", prompts=2, group=8, prompt=128, tokens=64)
LONG = Shape("0.5b", prompts=1, group=2, prompt=128, tokens=1024, warm=8)
SHAPES = {
    "tiny": Shape("tiny", prompts=16, group=8, prompt=32, tokens=14),
    "0.5b": LARGE,
    "0.5b-bfloat16": dataclasses.replace(LARGE, dtype="bfloat16"),
    "0.5b-long": LONG,
    "0.5b-long-greedy": dataclasses.replace(LONG, prompts=2, group=1, greedy=True),
    "smollm2": Shape("smollm2-135m", prompts=8, group=4, prompt=64, tokens=64),
}


@dataclass(frozen=True, kw_only=True)
class Options(harness.Common):
    """Draws the same batches by each engine in turn, round after round."""

    shapes: tuple[str, ...] = ("tiny", "0.5b", "0.5b-bfloat16")
    """Of tiny, 0.5b, 0.5b-bfloat16, 0.5b-long, 0.5b-long-greedy and smollm2, with fields changed by
    `tiny:tokens=64,group=4`."""
    engines: tuple[str, ...] = ("ogrpo", "transformers", "vllm")
    """Of ogrpo, ogrpo-plain, transformers, vllm and llamacpp (smollm2 alone); ratios are of the
    first."""
    warm_up: int = 3
    """Batches before the first round."""
    together: bool = True
    """All engines are loaded at once; otherwise each round starts and warms up each engine anew,
    which takes the memory of one and more time."""
    environments: Path = field(default_factory=cache_path)
    """Where the peers' virtual environments are kept; in the user's cache, vLLM's is that of
    tests/server/run.sh."""


def main(options: Options) -> None:
    if unknown := sorted(set(options.engines) - set(ENGINES)):
        raise ValueError(f"there is no engine {unknown[0]!r}: choose {', '.join(ENGINES)}")
    shapes = {spec: harness.parse(spec, SHAPES)[1] for spec in options.shapes}
    no_file = [spec for spec, shape in shapes.items() if shape.model not in KNOWN]
    if no_file and "llamacpp" in options.engines:
        raise ValueError(
            f"llamacpp reads GGUF files, and {no_file[0]} has none: give --shapes smollm2"
        )
    pythons = {name: find_python(name, options.environments) for name in options.engines}

    def measure(shape: Shape, folder: Path) -> harness.Figures:
        return {"runs": Bench(options, shape, pythons, folder).rounds()}

    harness.measure_shapes(options, shapes, measure, REPORT)


def find_python(engine: str, folder: Path) -> str:
    """Returns the interpreter of an engine; a peer's environment is made if it is not there."""
    if engine in PEERS:
        return harness.python_with(folder, engine, PEERS[engine])
    if engine != "vllm":
        return sys.executable
    base = os.environ.get("OGRPO_VLLM_BASE", "python3.11")
    packages = ("--no-deps", "--require-hashes", "-r", str(VLLM))
    return harness.made(
        folder, "vllm", hashlib.sha256(VLLM.read_bytes()).hexdigest(), base, packages
    )


class Bench:
    """The measurements of one shape."""

    def __init__(
        self, options: Options, shape: Shape, pythons: dict[str, str], folder: Path
    ) -> None:
        self.options, self.shape, self.pythons, self.folder = options, shape, pythons, folder
        if shape.model in KNOWN:
            model = model_folder(Path(shape.model), cache_path())
            for file in model.iterdir():
                (folder / file.name).symlink_to(file)
            if "llamacpp" in pythons:
                unpacked(KNOWN[shape.model], folder).rename(folder / "model.gguf")
            self.decoder = load_config(model)
            return
        self.decoder = DECODERS["qwen2.5-0.5b"]
        if shape.model == "tiny":
            self.decoder = tiny_decoder(word_level(arithmetic.vocabulary()))
        params = make_weights(shape, self.decoder, seed=0)
        save_pretrained(folder, self.decoder, params, extra_fields={"eos_token_id": EOS})

    def rounds(self) -> harness.Runs:
        """The figures of each engine, a round at a time."""
        runs: harness.Runs = {name: [] for name in self.pythons}
        with ExitStack() as stack:
            engines = {n: self.start(n, stack) for n in runs} if self.options.together else {}
            for turn in range(self.options.rounds):
                for name, of in runs.items():
                    of.append(self.measure(engines.get(name), name, seed=1000 * (turn + 1)))
        return runs

    def measure(
        self, engine: tuple[harness.Worker, harness.Figures] | None, name: str, seed: int
    ) -> harness.Figures:
        with ExitStack() as stack:
            worker, versions = engine or self.start(name, stack)
            drawn = worker.ask(seconds=self.options.seconds, seed=seed, most=self.shape.tokens)
        rate = drawn["tokens"] / drawn["cpu"]
        print(f"{name}: {drawn['calls']} batches, {rate:,.0f} tokens/CPU-s", file=sys.stderr)
        return {**drawn, "versions": versions}

    def start(self, name: str, stack: ExitStack) -> tuple[harness.Worker, harness.Figures]:
        """Returns a worker that is warm, and the versions of its packages."""
        system, _, plain = name.partition("-")
        job = {
            "shape": dataclasses.asdict(self.shape),
            "settings": {"plain": bool(plain)},
            "vocabulary": self.decoder.vocab_size,
            "eos": EOS,
        }
        threads = self.options.threads
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        worker = harness.Worker(
            f"sampler_{system}",
            self.pythons[name],
            job,
            self.folder,
            threads,
            # The fewest that let vLLM use exactly so many CPUs, and no network.
            HF_HUB_OFFLINE="1",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cpus)),
            VLLM_NO_USAGE_STATS="1",
        )
        stack.enter_context(worker)
        versions = worker.answer()
        for seed in range(self.options.warm_up):
            worker.ask(seconds=0.0, seed=seed, most=self.shape.warm or self.shape.tokens)
        return worker, versions


def make_weights(shape: Shape, config: DecoderConfig, seed: int) -> Params:
    """Random weights under which the end of sequence is never drawn.

    Feature 0 of the stream is the same for every token and no layer writes to it, so that the final
    norm leaves it nearly constant; the entry of the (tied) embedding that reads it for the end of
    sequence is so low that its probability is 0.
    """
    params = init_params(config, jax.random.key(seed))
    attention, mlp = params["layers"]["self_attn"], params["layers"]["mlp"]
    for part in (attention["o_proj"], mlp["down_proj"]):
        part["weight"] = part["weight"].at[:, 0].set(0.0) * (LOUDER if shape.greedy else 1)
    embedding = params["embed_tokens"]
    level = 0.02 if shape.greedy else 1.0  # a large one drowns what is said of the tokens
    embedding["weight"] = embedding["weight"].at[:, 0].set(level)
    embedding["weight"] = embedding["weight"].at[EOS, 0].add(-1e3)
    return jax.tree.map(lambda leaf: leaf.astype(DTYPES[shape.dtype]), params)


def agreement(part: harness.Figures) -> list[str]:
    """Returns how far each engine drew the first one's tokens, in the first batch of each round."""
    if not part["shape"]["greedy"]:
        return []
    drawn = {name: [row for run in of for row in run["first"]] for name, of in part["runs"].items()}
    (ours, rows), *others = drawn.items()
    return [
        "",
        *(
            f"{name}: {sum(map(shared, rows, theirs))} of {sum(map(len, rows))} tokens are"
            f" {ours}'s, up to the first that differs in each of {len(rows)} completions"
            for name, theirs in others
        ),
    ]


def shared(ours: list[int], theirs: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


COLUMNS: harness.Columns = {
    "tokens / CPU-s": lambda run: run["tokens"] / run["cpu"],
    "tokens / s": lambda run: run["tokens"] / run["wall"],
    "peak MiB": lambda run: run["peak"],
}
REPORT = harness.Report(
    title="The embedded sampler, side by side",
    note="Medians over rounds (least to greatest). CPU seconds are of all processes of an engine,"
    " user and system; the peak of resident memory is since its start.",
    figures=COLUMNS,
    ratios=COLUMNS,
    more=agreement,
)

if __name__ == "__main__":
    main(tyro.cli(Options))
