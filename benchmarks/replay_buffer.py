"""The cost of the replay buffer on one core: completions/s, bytes in memory and on disk, float16.

    python benchmarks/replay_buffer.py --gsm8k FOLDER

Text is GSM8K's, encoded by a byte-level BPE trained on it, questions and answers in random order
cut into completions of `--tokens` tokens, none of them twice, eight to a group. Log-probs
are drawn, since no two of a real policy's are alike: 70 % are -Exp(0.02), tokens that were nearly
certain, 30 % are -Exp(1.5). Bytes on disk are those of the text without repeats, which
compresses worse than eight answers to one question would. To fill the buffer, the groups are
inserted over and over. All rates are per CPU-second of the process, threads included.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.batching import pad_groups
from ogrpo.data.replay import (
    BufferLimits,
    Experience,
    Fifo,
    Layout,
    Prioritised,
    ReplayBuffer,
    Stratified,
    advantage,
    novelty,
    pack,
    pack_batch,
    product,
    recency,
    uniform,
)
from ogrpo.data.tokenizer import train_bpe
from ogrpo.protocol import Completion, Group
from ogrpo.tasks.gsm8k import read_problems

G = 8
weight = product(
    partial(recency, half_life=4.0),
    partial(novelty, exponent=1.0),
    partial(advantage, exponent=1.0, floor=0.05),
)
SAMPLERS = {
    "fifo": Fifo,
    "uniform": partial(uniform, replace=False),
    "prioritised": partial(Prioritised, weight=weight, replace=False),
    "stratified": partial(Stratified, replace=False),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder with train.jsonl")
    parser.add_argument("--completions", type=int, default=1_000_000, help="held")
    parser.add_argument("--tokens", type=int, default=200, help="tokens in a completion")
    parser.add_argument("--batch", type=int, default=64, help="groups per insertion and per draw")
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--float16", action="store_true", help="hold log-probs in float16")
    return parser.parse_args()


@contextmanager
def timed(label: str, completions: int) -> Iterator[None]:
    """Prints completions per CPU-second of what happens inside."""
    begin = time.process_time()
    yield
    spent = time.process_time() - begin
    print(f"{label:44s} {completions / spent:12,.0f} completions/s  ({spent:.2f} CPU-s)")


def log_probs(count: int, rng: np.random.Generator) -> np.ndarray:
    scale = np.where(rng.random(count) < 0.7, 0.02, 1.5)
    return -rng.exponential(scale).astype(np.float32)


def experiences(args: argparse.Namespace) -> list[Experience]:
    """Groups of GSM8K's text without repeats, prompts being questions."""
    problems = read_problems(args.gsm8k / "train.jsonl")
    texts = [text for p in problems for text in (p.question, p.answer)]
    tokenizer = train_bpe(texts, args.vocab, split_digits=False)
    rng = np.random.default_rng(0)
    shuffled = [texts[n] for n in rng.permutation(len(texts))]
    stream = np.concatenate([tokenizer.encode(text, add_eos=True) for text in shuffled])
    rows = stream[: len(stream) // (G * args.tokens) * G * args.tokens].reshape(-1, G, args.tokens)
    print(f"{rows.size / 1e6:.2f} million tokens of text, {len(rows)} groups without repeats")
    return [
        group(n, tokenizer.encode(problems[n].question), ids, rng) for n, ids in enumerate(rows)
    ]


def group(n: int, prompt: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> Experience:
    done = tuple(
        Completion(ids.copy(), log_probs(len(ids), rng), n % 7, 1.0, "stop") for ids in rows
    )
    rewards = (rng.random(G) < rng.random()).astype(np.float32)
    return Experience(Group(prompt, done), rewards, problem=n)


def batches(source: list[Experience], size: int, total: int) -> Iterator[list[Experience]]:
    """`total` groups in batches, the source over and over."""
    for start in range(0, total, size):
        yield [source[k % len(source)] for k in range(start, min(start + size, total))]


def padded(batch: list[Experience]) -> tuple[Batch[np.ndarray], dict[str, np.ndarray]]:
    length = max(len(one.group.prompt_ids) for one in batch)
    tokens = max(len(c.token_ids) for one in batch for c in one.group.completions)
    rewards = np.stack([one.rewards for one in batch])
    return pad_groups([one.group for one in batch], length, tokens, rewards=rewards), {
        "problems": np.array([one.problem for one in batch]),
        "temperatures": np.ones((len(batch), G)),
        "finish_reasons": np.zeros((len(batch), G), np.uint8),
    }


def memory(args: argparse.Namespace, layout: Layout, source: list[Experience]) -> None:
    """Insertion and draws with all groups held, by sampler."""
    total = args.completions // G
    longest = max(len(one.group.prompt_ids) for one in source)
    for name, sampler in SAMPLERS.items():
        print(f"\n{name}")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        buffer = ReplayBuffer(layout, BufferLimits(groups=total), sampler)
        with timed("  insert objects, filling", args.completions):
            for batch in batches(source, args.batch, total):
                buffer.insert(batch)
        extra = batches(source, args.batch, 100 * args.batch)
        done = 100 * args.batch * G
        with timed("  insert objects, full: the oldest leave", done):
            for batch in extra:
                buffer.insert(batch)
        ready = [padded(b) for b in batches(source, args.batch, 10 * args.batch)]
        with timed("  insert padded batches, full", done):
            for turn in range(100):
                batch, rest = ready[turn % 10]
                buffer.insert_columns(pack_batch(batch, layout, **rest))
        with timed("  sample and pad", done):
            for seed in range(100):
                buffer.sample(args.batch, seed=seed).batch(longest, args.tokens)
        with timed("  turns: insert, new version, sample, pad", done):
            for turn, batch in enumerate(batches(source, args.batch, 100 * args.batch)):
                buffer.insert(batch)
                buffer.expire(10 + turn)
                buffer.sample(args.batch, seed=turn).batch(longest, args.tokens)
        held = buffer.statistics()
        print(
            f"  held {len(buffer) * G:,} completions: {held['bytes'] / 1e6:,.0f} MB live, "
            f"{held['bytes/allocated'] / 1e6:,.0f} MB allocated; peak resident memory of the "
            f"process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB "
            f"(before: {before / 1e3:,.0f} MB)"
        )


def disk(args: argparse.Namespace, source: list[Experience]) -> None:
    """Bytes per stored token, and the rates of insertion until acknowledged and of reopening."""
    print("\non disk")
    for dtype in (np.float16, np.float32):
        layout = Layout(group_size=G, vocab_size=args.vocab, log_prob_dtype=dtype)
        with tempfile.TemporaryDirectory() as folder:
            written(Path(folder), layout, source, args.batch, passes=1)  # warms up, too
            files = list(Path(folder).glob("*.parquet"))
            size = sum(file.stat().st_size for file in files)
            per_token = size / (len(source) * G * args.tokens)
            print(f"  {dtype.__name__}: {per_token:.2f} bytes per token, {len(files)} segments")
        count = 4 * len(source) * G
        with tempfile.TemporaryDirectory() as folder:
            with timed(f"  {dtype.__name__}: insert until acknowledged", count):
                state = written(Path(folder), layout, source, args.batch, passes=4)
            with timed(f"  {dtype.__name__}: open with a state", count):
                ReplayBuffer.open(Path(folder), layout, BufferLimits(), Fifo, state=state)


def written(
    folder: Path, layout: Layout, source: list[Experience], size: int, *, passes: int
) -> dict:
    buffer = ReplayBuffer(layout, BufferLimits(), Fifo, folder=folder)
    for batch in batches(source, size, passes * len(source)):
        buffer.insert(batch)
    return buffer.state()


def rounding(args: argparse.Namespace, source: list[Experience]) -> None:
    """Measures what float16 does to a log-prob and to the log-ratio of a whole completion."""
    layout = Layout(group_size=G, vocab_size=args.vocab)
    exact = pack(source, layout).log_probs.astype(np.float64)
    error = exact.astype(np.float16).astype(np.float64) - exact
    whole = np.abs(error.reshape(-1, args.tokens).sum(axis=1))
    print(
        f"\nfloat16: error of a log-prob {np.abs(error).mean():.1e} on average, "
        f"{np.abs(error).max():.1e} at most (smallest log-prob {exact.min():.1f}); "
        f"of a sum over {args.tokens} tokens {whole.mean():.1e} on average, "
        f"{whole.max():.1e} at most"
    )


if __name__ == "__main__":
    args = arguments()
    source = experiences(args)
    dtype = np.float16 if args.float16 else np.float32
    layout = Layout(group_size=G, vocab_size=args.vocab, log_prob_dtype=dtype)
    disk(args, source)
    rounding(args, source)
    memory(args, layout, source)
