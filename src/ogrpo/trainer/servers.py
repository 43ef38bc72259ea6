"""External servers at the start of a run: the folder they serve, and the wait until they answer."""

import shlex
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from rich.console import Console

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.policy import DecoderConfig, Params
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.address import ELSEWHERE
from ogrpo.rollout.vllm import RolloutError, VllmEngine
from ogrpo.rollout.vllm.errors import Unavailable
from ogrpo.rollout.vllm.options import authorization, credentials_of_environment
from ogrpo.terminal import shown
from ogrpo.trainer.build import make_server_engine
from ogrpo.trainer.config import TrainConfig
from ogrpo.trainer.model import save_model

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOOK_SECONDS = 0.5


def connect(
    config: TrainConfig,
    run: RunDir,
    decoder: DecoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    console: Console,
) -> VllmEngine:
    """The engine over `rollout.url`; a model that has no folder yet is given one to be served from.

    Raises:
        RolloutError: a server does not answer within `rollout.wait` seconds, or wants to know who
            asks.
        Refused: one would give wrong log-probs.
    """
    folder = config.model.path or run.initial
    if config.model.path is None:
        save_model(folder, decoder, params, tokenizer)
        told = f"first weights, for the servers to start from: {folder}"
        console.print(told, markup=False, soft_wrap=True)
    deadline = time.monotonic() + config.rollout.wait
    while True:
        for url in config.rollout.url:
            left = deadline - time.monotonic()
            wait(url, serve_command(config, url, folder), left, console)
        try:
            engine = make_server_engine(config, decoder, tokenizer)
        except Unavailable as error:  # it was there, and died while it was asked
            if time.monotonic() >= deadline:
                raise
            console.print(shown(f"{error}: waiting for it again"), markup=False, soft_wrap=True)
            time.sleep(LOOK_SECONDS)
            continue
        console.print(shown(engine.table()), markup=False, soft_wrap=True)
        return engine


def serve_command(config: TrainConfig, url: str, folder: Path) -> str:
    """What starts a server for this run at `url`, on the machine of that name."""
    at, longest = urlsplit(url), config.longest_prompt + config.longest_answer
    host = [] if at.hostname in LOOPBACK else ["--host", str(at.hostname)]
    place = [*host, "--port", str(at.port or 80)]
    sizes = ["--max-model-len", str(longest), "--kv-cache-gib", "1"]
    alone = config.rollout.push == "adapters"
    ranks = ["--lora-rank", str(config.lora.rank)] if alone else []
    return shlex.join(["ogrpo-serve", str(folder), "--device", "cpu", *place, *sizes, *ranks])


def wait(url: str, command: str, seconds: float, console: Console) -> None:
    """Returns when a server answers; says how to start it if it does not at once."""
    deadline, told = time.monotonic() + seconds, False
    while not answers(url):
        if time.monotonic() >= deadline:
            raise RolloutError(f"{url} does not answer; start it with:\n  {command}")
        if not told:
            told_of = f"waiting for {url}; start it elsewhere with:"
            console.print(told_of, markup=False, soft_wrap=True)
            console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
            told = True
        time.sleep(LOOK_SECONDS)


def answers(url: str) -> bool:
    """Whether a server says that it is well."""
    headers = authorization(*credentials_of_environment())
    try:
        reply = httpx.get(f"{url}/health", headers=headers, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    if reply.status_code in (401, 403, 407):
        raise RolloutError(f"{url} does not let us in ({reply.status_code}): {ELSEWHERE}")
    return reply.is_success
