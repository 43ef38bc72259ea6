"""External servers at the start of a run: the folder they serve, and the wait until they answer."""

import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.policy import DecoderConfig, Params
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.address import check_loopback
from ogrpo.rollout.vllm import RolloutError, VllmEngine
from ogrpo.rollout.vllm.api import ask_health
from ogrpo.rollout.vllm.push import PROBE_SHAPE
from ogrpo.serving.bridge import connect_policy
from ogrpo.setup.model import save_model
from ogrpo.system.terminal import shown

LOOPBACK = ("127.0.0.1", "localhost")
LOOK_SECONDS = 0.5


def connect(
    config: TrainConfig,
    run: RunDir,
    decoder: DecoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    console: Console,
) -> VllmEngine:
    """Returns the engine over `rollout.url`; saves a model that has no folder to be served from.

    Raises:
      RolloutError: a server does not answer within `rollout.wait` seconds, or waiting for it does
        not help.
      Refused: one would give wrong log-probs.
      ValueError: a server cannot reach what it is to pull weights from.
    """
    folder = config.model.path or run.initial
    if config.model.path is None:
        save_model(folder, decoder, params, tokenizer)
        line = f"first weights, for the servers to start from: {folder}"
        console.print(line, markup=False, soft_wrap=True)
    rollout = config.rollout
    if rollout.transport == "url":
        offered = rollout.advertise or rollout.listen
        check_loopback(offered, rollout.roots, "listen (or advertise)")
        line = f"servers pull weights from this machine as {offered}"
        console.print(shown(line), markup=False, soft_wrap=True)
    deadline = time.monotonic() + rollout.wait
    wait(config, folder, deadline, console)
    left = max(0.0, deadline - time.monotonic())
    engine = connect_policy(
        replace(rollout, wait=left),
        decoder,
        eos_id=tokenizer.eos_id,
        max_length=config.longest_sequence,
        in_flight=rollout.in_flight,
    )
    console.print(shown(engine.table()), markup=False, soft_wrap=True)
    return engine


def serve_command(config: TrainConfig, url: str, folder: Path) -> str:
    """Returns the command that starts a server for this run at `url`, on that machine."""
    at, probe = urlsplit(url), PROBE_SHAPE[1] + 1  # the probe's tokens, and one that is drawn
    longest = max(config.longest_sequence, probe)
    host = [] if at.hostname in LOOPBACK else ["--host", str(at.hostname)]
    place = [] if at.scheme == "https" else [*host, "--port", str(at.port or 80)]
    sizes = ["--max-model-len", str(longest), "--kv-cache-gib", "1"]
    return shlex.join(["ogrpo-serve", str(folder), "--device", "cpu", *place, *sizes])


def wait(config: TrainConfig, folder: Path, deadline: float, console: Console) -> None:
    """Returns when all servers answer; shows what is wrong, and how to start one, until they do.

    Raises:
      RolloutError: one does not answer in time, or waiting for it does not help.
    """
    urls = config.rollout.roots
    shown_reasons: dict[str, str] = {}
    while True:
        with ThreadPoolExecutor(len(urls)) as pool:
            health = dict(zip(urls, pool.map(ask_health, urls), strict=True))
        missing = {url: reason for url, reason in health.items() if reason is not None}
        if not missing:
            return
        if time.monotonic() >= deadline:
            url, why = next(iter(missing.items()))
            command = serve_command(config, url, folder)
            raise RolloutError(f"{url} does not answer; start it with:\n  {command}\nlast: {why}")
        for url, why in missing.items():
            if url not in shown_reasons:
                line = f"waiting for {url} ({why}); start it elsewhere with:"
                console.print(line, markup=False, soft_wrap=True)
                command = serve_command(config, url, folder)
                console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
            elif shown_reasons[url] != why:
                console.print(f"waiting for {url} ({why})", markup=False, soft_wrap=True)
            shown_reasons[url] = why
        time.sleep(LOOK_SECONDS)
