"""What the bridge to vLLM costs: tokens/s against a bare load generator, publishing against a disk.

    python benchmarks/vllm_bridge.py --url http://127.0.0.1:8000 --model DIR

The server serves DIR (`ogrpo-serve DIR`). Each round asks the same server for the same work twice:
once by a loop that does nothing but post requests and count tokens, once by the engine with its
checks; rounds alternate, and the medians are compared. The disk is measured by writing the same
bytes and flushing them, in the same rounds as the releases.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ogrpo.bridge import connect_policy
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.policy import load_pretrained
from ogrpo.rollout.protocol import Sampling
from ogrpo.rollout.vllm import Options, wire
from ogrpo.rollout.weights.store import Store


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--megabytes", type=int, default=512, help="size of the published model")
    return parser.parse_args()


async def bare(url: str, path: str, payloads: list[dict], concurrency: int) -> int:
    """Posts all payloads, so many at a time, and counts the tokens that come back."""
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as client:

        async def one(payload: dict) -> int:
            async with gate:
                reply = (await client.post(url + path, json=payload)).json()
            return sum(len(choice["token_ids"]) for choice in reply["choices"])

        return sum(await asyncio.gather(*map(one, payloads)))


def bridge(options: argparse.Namespace) -> None:
    config, params = load_pretrained(options.model, jnp.float32)
    tokenizer = TextTokenizer.load(options.model)
    eos_id = tokenizer.eos_id
    rng = np.random.default_rng(0)
    prompts = [
        rng.integers(0, config.vocab_size, 8).astype(np.int32) for _ in range(options.prompts)
    ]
    sampling = Sampling(temperature=1.0, max_tokens=options.tokens, group_size=options.group)
    rates: dict[str, list[float]] = {"bare": [], "bridge": []}
    with connect_policy(
        [options.url],
        config,
        eos_id=eos_id,
        max_length=8 + options.tokens,
        texts=tokenizer.sample_texts(),
        options=Options(per_server=options.concurrency),
    ) as engine:
        engine.publish(params, 0)
        found = engine.capabilities[0]
        order = wire.Order(found.model, sampling, wire.UNTRUNCATED, eos_id, 0)
        size = 1 if found.native else 4
        chunks = [prompts[n : n + size] for n in range(0, len(prompts), size)]
        if found.native:
            path, payloads = (
                "/inference/v1/generate",
                [wire.generate_payload(prompt, order) for prompt in prompts],
            )
        else:
            path, payloads = (
                "/v1/completions",
                [wire.completions_payload(chunk, order) for chunk in chunks],
            )
        engine.generate(prompts, sampling, 0)
        for _ in range(options.rounds):
            begin = time.perf_counter()
            tokens = asyncio.run(bare(options.url, path, payloads, options.concurrency))
            rates["bare"].append(tokens / (time.perf_counter() - begin))
            begin = time.perf_counter()
            groups = engine.generate(prompts, sampling, 0)
            tokens = sum(len(c.token_ids) for g in groups for c in g.completions)
            rates["bridge"].append(tokens / (time.perf_counter() - begin))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    share = middle["bridge"] / middle["bare"]
    for name, found in rates.items():
        print(f"{name:<8} {middle[name]:8.0f} tokens/s  (rounds: {_list(found)})")
    print(f"the bridge has {share:.1%} of the bare rate\n")


def _list(rates: list[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


def disk(options: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    count = options.megabytes * (1 << 20) // 2 // 8
    tensors = {
        f"model.layers.{n}.mlp.up_proj.weight": rng.standard_normal(count, np.float32)
        .reshape(-1, 1024)
        .astype(ml_dtypes.bfloat16)
        for n in range(8)
    }
    size = sum(array.nbytes for array in tensors.values())
    rates: dict[str, list[float]] = {"disk": [], "publish": []}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "releases", delta=False)
        raw = [array.reshape(-1).view(np.uint8).data for array in tensors.values()]
        for version in range(options.rounds):
            begin = time.perf_counter()
            with (Path(folder) / "plain").open("wb", buffering=0) as out:
                for piece in raw:
                    out.write(piece)
                os.fsync(out.fileno())
            rates["disk"].append(size / (time.perf_counter() - begin) / 1e6)
            (Path(folder) / "plain").unlink()
            rates["publish"].append(size / store.write(tensors, version).seconds / 1e6)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        print(f"{name:<8} {middle[name]:8.0f} MB/s  (rounds: {_list(found)})")
    print(f"publishing has {middle['publish'] / middle['disk']:.1%} of the disk's rate")


if __name__ == "__main__":
    chosen = arguments()
    bridge(chosen)
    disk(chosen)
