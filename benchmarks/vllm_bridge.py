"""The cost of the bridge to vLLM: tokens/s beside a bare load generator, publishing beside a disk.

    python benchmarks/vllm_bridge.py --python VLLM_PYTHON    # with a CPU server of its own
    python benchmarks/vllm_bridge.py --url http://127.0.0.1:8000 --model DIR    # `ogrpo-serve DIR`

Each round asks the same server for the same work twice: once by a loop that does nothing but post
requests and count tokens, once by the engine with its checks; which comes first alternates, and the
median of the rounds' ratios is shown, of tokens/s and of the client's CPU time. The disk is
measured by writing the same bytes and flushing them, in the same rounds as the releases.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ogrpo.data.tokenizer import TextTokenizer, word_level
from ogrpo.policy import init_params, load_pretrained, save_pretrained
from ogrpo.policy.config import tiny
from ogrpo.protocol import Sampling
from ogrpo.rollout.endpoint import wait_until_up
from ogrpo.rollout.extension import ogrpo_serve
from ogrpo.rollout.vllm import Options, VllmEngine, wire
from ogrpo.rollout.weights import Store
from ogrpo.serving.bridge import connect_policy

PORT = 8321
PROMPT = 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", help="an interpreter that has vLLM, to start a server with")
    parser.add_argument("--url", help="of a server that runs, instead")
    parser.add_argument("--model", help="the folder that it serves")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--megabytes", type=int, default=512, help="size of the published model")
    options = parser.parse_args()
    if (options.python is None) == (options.url is None or options.model is None):
        parser.error("give --python, or --url and --model")
    return options


def tiny_policy(folder: Path) -> None:
    """Random weights: what is drawn does not matter, how long it is does."""
    tokenizer = word_level([f"w{n}" for n in range(125)])
    config = tiny(tokenizer.padded_vocab_size(16))
    params = init_params(config, jax.random.key(0), jnp.float32)
    save_pretrained(folder, config, params, extra_fields={"eos_token_id": tokenizer.eos_id})
    tokenizer.save(folder)


@contextmanager
def server(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(URL, folder) of the server that is asked."""
    if options.url is not None:
        yield options.url, options.model
        return
    with tempfile.TemporaryDirectory() as folder:
        tiny_policy(Path(folder))
        words = [folder, "--device", "cpu", "--port", str(PORT), "--python", options.python]
        sizes = ["--max-model-len", str(PROMPT + options.tokens), "--kv-cache-gib", "1"]
        parsed = ogrpo_serve.parser().parse_args([*words, *sizes])
        command = ogrpo_serve.build(parsed, ogrpo_serve.find_version(options.python), [])
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                command.arguments,
                env={**os.environ, **command.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                url = f"http://127.0.0.1:{PORT}"
                wait_until_up(url, 300)
                yield url, folder
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def bare(url: str, path: str, payloads: list[dict], concurrency: int) -> int:
    """Posts all payloads, so many at a time, and counts the tokens that come back."""
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    # No TLS is spoken; setting it up would count against the generator.
    async with httpx.AsyncClient(
        timeout=300, limits=limits, trust_env=False, verify=False
    ) as client:

        async def one(payload: dict) -> int:
            async with gate:
                reply = (await client.post(url + path, json=payload)).json()
            return sum(len(choice["token_ids"]) for choice in reply["choices"])

        return sum(await asyncio.gather(*map(one, payloads)))


def measured(work: Callable[[], int]) -> tuple[float, float]:
    """(tokens a second, microseconds of this process's CPU a token)."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = work()
    spent = time.process_time() - cpu
    return tokens / (time.perf_counter() - wall), spent / tokens * 1e6


def bridge(options: argparse.Namespace, url: str, folder: str) -> None:
    config, params = load_pretrained(folder, jnp.float32)
    tokenizer = TextTokenizer.load(folder)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocab_size, (options.prompts, PROMPT)).astype(np.int32)
    prompts = list(ids)
    sampling = Sampling(temperature=1.0, max_tokens=options.tokens, group_size=options.group)
    with connect_policy(
        [url],
        config,
        eos_id=tokenizer.eos_id,
        max_length=PROMPT + options.tokens,
        texts=tokenizer.sample_texts(),
        options=Options(per_server=options.concurrency),
    ) as engine:
        engine.publish(params, 0)
        path, payloads = requests(engine, prompts, sampling, tokenizer.eos_id)

        def by_engine() -> int:
            groups = engine.generate(prompts, sampling, 0)
            return sum(len(c.token_ids) for g in groups for c in g.completions)

        def by_generator() -> int:
            return asyncio.run(bare(url, path, payloads, options.concurrency))

        by_engine()
        ways = {"bare": by_generator, "bridge": by_engine}
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(options.rounds):
            for name in sorted(ways, reverse=bool(turn % 2)):
                rounds[name].append(measured(ways[name]))
    show(rounds)


def requests(
    engine: VllmEngine, prompts: list[np.ndarray], sampling: Sampling, eos_id: int
) -> tuple[str, list[dict]]:
    """The path and the bodies of what the engine sends."""
    server = engine.capabilities[0]
    order = wire.Order(server.model, sampling, eos_id, 0)
    if server.native:
        return "/inference/v1/generate", [wire.generate_payload(p, order) for p in prompts]
    parts = [prompts[n : n + 4] for n in range(0, len(prompts), 4)]
    return "/v1/completions", [wire.completions_payload(part, order) for part in parts]


def show(rounds: dict[str, list[tuple[float, float]]]) -> None:
    for name, pairs in rounds.items():
        rate, cpu = (statistics.median(values) for values in zip(*pairs, strict=True))
        rates = _list([rate for rate, _ in pairs])
        print(f"{name:<8} {rate:8.0f} tokens/s, {cpu:5.2f} us CPU a token  (rounds: {rates})")
    ratios = [b[0] / a[0] for a, b in zip(rounds["bare"], rounds["bridge"], strict=True)]
    print(f"the bridge has {statistics.median(ratios):.1%} of the bare rate (median of rounds)\n")


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
        store = Store(Path(folder) / "releases")
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
    middle = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:<8} {middle[name]:8.0f} MB/s  (rounds: {_list(values)})")
    print(f"publishing has {middle['publish'] / middle['disk']:.1%} of the disk's rate")


if __name__ == "__main__":
    options = arguments()
    with server(options) as at:
        bridge(options, *at)
    disk(options)
