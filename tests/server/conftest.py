"""Real vLLM servers, started by `ogrpo-serve`; see run.sh. Each is killed by process group."""

import os
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.chaos.processes import descendants, free_port, read_proc
from ogrpo.rollout.extension import ogrpo_serve
from ogrpo.rollout.vllm.api import ask_health
from tests.rollout.vllm import world

PYTHON = os.environ.get("OGRPO_VLLM_PYTHON")
START_SECONDS = 600.0


def pytest_collection_modifyitems(items):
    reason = "OGRPO_VLLM_PYTHON names no interpreter that has vLLM: run tests/server/run.sh"
    here = Path(__file__).parent
    for item in items:
        if PYTHON is None and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


class RealServer:
    """One vLLM server in a process group of its own."""

    def __init__(self, folder, log, *options):
        self.folder, self.log, self.options = folder, log, options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def launch(self):
        ours = [str(self.folder), "--device", "cpu", "--port", str(self.port), "--python", PYTHON]
        sizes = ["--max-model-len", "128", "--max-num-seqs", "64", "--kv-cache-gib", "1"]
        before, after = ogrpo_serve.split(self.options)
        options = ogrpo_serve.parser().parse_args([*ours, *sizes, *before])
        command = ogrpo_serve.build(options, ogrpo_serve.find_version(PYTHON), after)
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                command.arguments,
                env={**os.environ, **command.environment, "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait(self):
        deadline = time.monotonic() + START_SECONDS
        while ask_health(self.url) is not None:
            if time.monotonic() > deadline:
                pytest.fail(f"{self.url} did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)
        # The first request compiles for tens of seconds, which no timeout should have to allow.
        body = {"model": "policy", "prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 0}
        for more in ({"temperature": 1.0}, {"temperature": 0.0, "prompt_logprobs": 0}):
            options = {"json": {**body, **more}, "timeout": 180, "trust_env": False}
            reply = httpx.post(f"{self.url}/v1/completions", **options)
            assert reply.status_code == 200, reply.text
        return self

    def member(self, *names):
        """The process id of the API server, or of a process below it by its name and its parents'."""
        pid = self.process.pid
        for name in names:
            mark = f"::{name}".encode()
            pid = next(each for each in descendants(pid) if mark in read_proc(each, "cmdline"))
        return pid

    @contextmanager
    def running(self):
        try:
            yield self.launch().wait()
        finally:
            self.kill()

    def kill(self):
        if self.process.returncode is not None:  # its number may be another's by now
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # The port is free when the last of the group is gone.
        for _ in range(100):
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    return world.save_both(tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def fleet(policies, tmp_path_factory):
    """Two servers of the tied policy: one that knows versions by token, one that does not."""
    logs = tmp_path_factory.mktemp("logs")
    options = {"native": (), "portable": ("--no-enable-scale-out",)}
    with ExitStack() as stack:
        servers = [
            RealServer(policies[True], logs / f"{name}.log", "--", "--block-size", "32", *more)
            for name, more in options.items()
        ]
        for server in servers:
            stack.callback(server.launch().kill)
        yield [server.wait() for server in servers]


@pytest.fixture
def native(fleet):
    return fleet[0]


@pytest.fixture
def portable(fleet):
    return fleet[1]


@pytest.fixture(scope="module")
def alone(policies, tmp_path_factory):
    """A server of the untied policy with raw log-probs, vLLM's default, on two ranks."""
    log = tmp_path_factory.mktemp("logs") / "untied.log"
    server = RealServer(policies[False], log, "--raw-log-probs", "--", "--data-parallel-size", "2")
    with server.running():
        yield server
