"""`ogrpo-serve`: the commands it builds, and that nothing outlives it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.chaos.processes import free_port
from ogrpo.rollout.extension import ogrpo_serve
from tests.processes import alive, gone
from tests.rollout.vllm import world


def built(*arguments, version="0.32.0"):
    ours, more = ogrpo_serve.split(arguments)
    return ogrpo_serve.build(ogrpo_serve.parser().parse_args(ours), version, more)


@pytest.mark.parametrize(
    ("device", "dtype", "eager", "variable"),
    [
        ("cpu", "float32", True, "VLLM_CPU_KVCACHE_SPACE"),
        ("cuda", "bfloat16", False, None),
        ("ascend", "bfloat16", True, "VLLM_ASCEND_ENABLE_NZ"),
    ],
)
def test_each_device_gets_its_flags(device, dtype, eager, variable):
    command = built("M", "--device", device)
    arguments = command.arguments
    assert arguments[arguments.index("--dtype") + 1] == dtype
    assert ("--enforce-eager" in arguments) == eager
    assert variable is None or variable in command.environment
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert arguments[arguments.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert arguments[arguments.index("--generation-config") + 1] == "vllm"


def test_the_extension_can_be_imported_from_the_folder_on_the_path():
    path = built("M").environment["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(path) / "ogrpo_weight_sync.py").is_file()
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import ogrpo_serve"], env={"PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0


def test_options_reach_vllm():
    for version, native in (("0.23.0", False), ("0.32.0", True), (None, True)):
        assert ("--enable-scale-out" in built("M", version=version).arguments) == native
    assert built("M", "--", "--block-size", "32").arguments[-2:] == ["--block-size", "32"]
    # Reproducible sampling needs prefill in one piece.
    arguments = built("M", "--reproducible", "--max-model-len", "9000").arguments
    assert "--no-enable-chunked-prefill" in arguments
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "9000"


@pytest.mark.parametrize(("version", "taken"), [("0.22.1", False), ("0.23.0.post1", True)])
def test_a_vllm_that_takes_no_pushes_is_refused(version, taken, python_with, capsys):
    code = ogrpo_serve.main(["M", "--dry-run", "--python", python_with(version)])
    assert code == (0 if taken else 2)
    assert ("takes no pushes: install 0.23 or later" in capsys.readouterr().err) != taken


CHILDREN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600 if len(sys.argv) < 2 else 0)
raise SystemExit(int(sys.argv[1]))
"""
RUN = """
import sys
from ogrpo.rollout.extension import ogrpo_serve
command = ogrpo_serve.Command([sys.executable, "-c", sys.argv[1], *sys.argv[3:]])
raise SystemExit(ogrpo_serve.supervise(command, int(sys.argv[2])))
"""


def test_a_signal_ends_the_server_with_all_its_processes():
    with subprocess.Popen(
        [sys.executable, "-c", RUN, CHILDREN, "0"], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        child = int(supervisor.stdout.readline())
        assert alive(child)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
    assert gone(child)


@pytest.mark.parametrize(("code", "result"), [(3, 3), (0, 1)])
def test_a_server_that_dies_is_started_again_and_leaves_no_child(code, result):
    """vLLM's own code is 0 when its engine died."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, CHILDREN, "1", str(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == result
    first, said, second = done.stdout.splitlines()
    assert said == f"the server ended with {code}; starting it again (0 left)"
    assert first != second
    assert gone(int(first))
    assert gone(int(second))


CLOSES_AND_STAYS = """
import os, socket, sys, time
port, mark = int(sys.argv[1]), sys.argv[2]
if os.path.exists(mark):
    raise SystemExit(3)
open(mark, "w").close()
with socket.create_server(("127.0.0.1", port)) as server:
    server.accept()
time.sleep(600)
"""
WATCH = """
import sys
from ogrpo.rollout.extension import ogrpo_serve
ogrpo_serve.LOOK_SECONDS = ogrpo_serve.CLOSED_SECONDS = 0.1
program, port, mark = sys.argv[1:]
address = ("127.0.0.1", int(port))
command = ogrpo_serve.Command([sys.executable, "-c", program, port, mark], {}, address)
raise SystemExit(ogrpo_serve.supervise(command, 1))
"""


def test_a_server_that_has_closed_its_port_and_does_not_end_is_ended(tmp_path):
    """As vLLM 0.32 when its engine is killed in the middle of a weight update."""
    words = [
        sys.executable,
        "-c",
        WATCH,
        CLOSES_AND_STAYS,
        str(free_port()),
        str(tmp_path / "mark"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "has closed its port and does not end" in done.stdout
    assert built("M", "--port", "81").address == ("127.0.0.1", 81)


@pytest.mark.slow
def test_the_embedded_engine_serves_a_folder(tmp_path):
    config = world.decoder()
    world.save(tmp_path, config, world.make_params(config, 0))
    command = [sys.executable, "-m", "ogrpo.serving.serve", str(tmp_path), "--engine", "embedded"]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[-1]
            body = {"model": "policy", "prompt": [1, 2], "max_tokens": 3, "n": 2}
            reply = httpx.post(f"{url}/v1/completions", json=body, timeout=300, trust_env=False)
            assert len(reply.json()["choices"]) == 2
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
