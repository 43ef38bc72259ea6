"""External servers at the start of a run: the folder they serve, and the wait until they answer."""

import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from ogrpo.config.rollout import Rollout
from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.policy import DecoderConfig, Params
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.address import check_loopback
from ogrpo.rollout.nccl import Nccl, dotted
from ogrpo.rollout.vllm import RolloutError, VllmEngine
from ogrpo.rollout.vllm.api import ask_health
from ogrpo.serving.bridge import open_nccl
from ogrpo.setup.build import make_server_engine
from ogrpo.setup.model import save_model
from ogrpo.system.terminal import shown

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
        RolloutError: a server does not answer within `rollout.wait` seconds, or waiting for it does
            not help.
        Refused: one would give wrong log-probs.
        ValueError: a server cannot reach what it is to pull weights from, or there is no GPU to
            broadcast them.
    """
    folder = config.model.path or run.initial
    if config.model.path is None:
        save_model(folder, decoder, params, tokenizer)
        told = f"first weights, for the servers to start from: {folder}"
        console.print(told, markup=False, soft_wrap=True)
    nccl = open_route(config.rollout, console)
    deadline = time.monotonic() + config.rollout.wait
    wait(config, folder, deadline, console)
    left = max(0.0, deadline - time.monotonic())
    engine = make_server_engine(config, decoder, tokenizer, nccl, start_patience=left)
    console.print(shown(engine.table()), markup=False, soft_wrap=True)
    return engine


def open_route(rollout: Rollout, console: Console) -> Nccl | None:
    """Says how servers get weights, if not from a folder, and refuses what they cannot reach.

    Returns:
        What broadcasts the weights, where `rollout.transport` is nccl.
    """
    if rollout.transport == "folder":
        return None
    if rollout.transport == "nccl":
        nccl = open_nccl()
        told = f"weights are broadcast to servers by NCCL {dotted(nccl.version)}"
        console.print(told, markup=False, soft_wrap=True)
        return nccl
    offered = rollout.advertise or rollout.listen
    check_loopback(offered, rollout.roots, "rollout.listen")
    told = f"servers pull weights from this machine as {offered}"
    console.print(shown(told), markup=False, soft_wrap=True)
    return None


def serve_command(config: TrainConfig, url: str, folder: Path) -> str:
    """What starts a server for this run at `url`, on the machine of that name."""
    at, longest = urlsplit(url), config.longest_prompt + config.longest_answer
    host = [] if at.hostname in LOOPBACK else ["--host", str(at.hostname)]
    place = [] if at.scheme == "https" else [*host, "--port", str(at.port or 80)]
    sizes = ["--max-model-len", str(longest), "--kv-cache-gib", "1"]
    ranks = ["--lora-rank", str(config.lora.rank)] if config.rollout.push == "adapters" else []
    return shlex.join(["ogrpo-serve", str(folder), "--device", "cpu", *place, *sizes, *ranks])


def wait(config: TrainConfig, folder: Path, deadline: float, console: Console) -> None:
    """Returns when all servers answer; says what is wrong, and how to start one, if they do not.

    Raises:
        RolloutError: one does not answer in time, or waiting for it does not help.
    """
    told: dict[str, str] = {}
    while missing := _missing(config.rollout.roots):
        if time.monotonic() >= deadline:
            url, why = next(iter(missing.items()))
            command = serve_command(config, url, folder)
            raise RolloutError(f"{url} does not answer; start it with:\n  {command}\nlast: {why}")
        for url, why in missing.items():
            if url not in told:
                said = f"waiting for {url} ({why}); start it elsewhere with:"
                console.print(said, markup=False, soft_wrap=True)
                command = serve_command(config, url, folder)
                console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
            elif told[url] != why:
                console.print(f"waiting for {url} ({why})", markup=False, soft_wrap=True)
            told[url] = why
        time.sleep(LOOK_SECONDS)


def _missing(urls: Sequence[str]) -> dict[str, str]:
    """The servers that are to be waited for, and why."""
    with ThreadPoolExecutor(len(urls)) as pool:
        found = dict(zip(urls, pool.map(ask_health, urls), strict=True))
    return {url: why for url, why in found.items() if why is not None}
