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
from ogrpo.serving import serve
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
    command = [sys.executable, "-S", "-c", "import ogrpo_serve"]
    assert subprocess.run(command, env={"PYTHONPATH": path}).returncode == 0


def test_options_reach_vllm():
    for version, native in (("0.23.0", False), ("0.32.0", True), (None, True)):
        assert ("--enable-scale-out" in built("M", version=version).arguments) == native
    assert built("M", "--", "--block-size", "32").arguments[-2:] == ["--block-size", "32"]
    with pytest.raises(ValueError, match="--port stands behind --: give it before"):
        built("M", "--", "--port=8001")
    # Reproducible sampling needs prefill in one piece.
    arguments = built("M", "--reproducible", "--max-model-len", "9000").arguments
    assert "--no-enable-chunked-prefill" in arguments
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "9000"


ASCEND = ("--device", "ascend")
CONFIG = (*ASCEND, "--", "--additional-config")


@pytest.mark.parametrize(
    ("version", "words", "code", "message"),
    [
        ("0.22.1", (), 2, "takes no pushes: install 0.23 or later"),
        ("0.23.0.post1", (), 0, ""),
        ("0.30.0", (*CONFIG, '{"weight_nz_mode": 2}'), 2, "mode 0 alone"),
        ("0.30.0", (*CONFIG, "["), 2, "give a JSON object"),
        ("0.31.0", ASCEND, 0, "vLLM-Ascend was read up to 0.30"),
        ("0.32.0", ("--engine", "embedded"), 2, "embedded needs ogrpo: pip install"),
    ],
)
def test_what_takes_no_weights_is_refused_and_a_newer_version_named(
    tmp_path, capsys, version, words, code, message
):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    assert ogrpo_serve.main(["M", "--dry-run", "--python", str(python), *words]) == code
    said = capsys.readouterr().err
    assert message in said
    assert bool(said) == bool(message)


def test_an_interpreter_that_is_not_there_is_named(capsys):
    assert ogrpo_serve.main(["M", "--python", "/nowhere/python"]) == 2
    assert "/nowhere/python has no vLLM: name its interpreter" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--restarts", "-1"), ("--port", "65536")])
def test_a_number_out_of_bounds_is_refused(capsys, option, value):
    with pytest.raises(SystemExit):
        ogrpo_serve.main(["M", option, value])
    assert f"argument {option}: {value} is not within 0 and" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--restarts", "3"], ["--raw-log-probs"], ["--", "--seed", "1"]])
def test_the_embedded_engine_refuses_what_it_would_ignore(capsys, words):
    assert serve.main(["M", "--engine", "embedded", *words]) == 2
    assert "--engine embedded takes no" in capsys.readouterr().err


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
ogrpo_serve.LOOK_SECONDS = ogrpo_serve.CLOSED_SECONDS = 0.1
program, restarts, port, *words = sys.argv[1:]
address = ("127.0.0.1", int(port))
command = ogrpo_serve.Command([sys.executable, "-c", program, *words], {}, address)
raise SystemExit(ogrpo_serve.supervise(command, int(restarts)))
"""


def supervising(program, restarts, *words, port, before=""):
    words = map(str, (program, restarts, port, *words))
    command = [sys.executable, "-c", before + RUN, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


AT_ONCE = """
import signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        signal.raise_signal(signal.SIGTERM)
subprocess.Popen = Popen
"""


def test_a_signal_that_comes_while_a_server_is_started_ends_it():
    supervisor = supervising("import time; time.sleep(60)", 1, port=free_port(), before=AT_ONCE)
    with supervisor:
        assert supervisor.wait(30) == 0


def test_a_signal_ends_a_server_with_all_its_processes_but_no_hangup_that_nohup_ignores():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        supervisor = supervising(CHILDREN, 0, port=free_port())
    finally:
        signal.signal(signal.SIGHUP, before)
    with supervisor:
        child = int(supervisor.stdout.readline())
        supervisor.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.wait(0.5)
        assert alive(child)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
    assert gone(child)


@pytest.mark.parametrize(("code", "result"), [(3, 3), (0, 1)])
def test_a_server_that_dies_is_started_again_and_leaves_no_child(code, result):
    """vLLM's own code is 0 when its engine died."""
    with supervising(CHILDREN, 1, code, port=free_port()) as supervisor:
        first, said, second = supervisor.communicate(timeout=60)[0].splitlines()
    assert supervisor.returncode == result
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


def test_a_server_that_has_closed_its_port_and_does_not_end_is_ended(tmp_path):
    """As vLLM 0.32 when its engine is killed in the middle of a weight update."""
    port = free_port()
    with supervising(CLOSES_AND_STAYS, 1, port, tmp_path / "mark", port=port) as supervisor:
        said, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 3, said
    assert "has closed its port and does not end" in said
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
