"""Options of external servers, from the command line to what the servers are asked."""

import io
import re
from contextlib import closing, contextmanager
from dataclasses import fields
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console

from ogrpo.cli.main import main
from ogrpo.cli.options import parse, parse_eval
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.endpoint import Endpoint, Service
from ogrpo.rollout.vllm import Refused, RolloutError, ServerOptions
from ogrpo.serving.bridge import embedded_model
from ogrpo.setup import servers
from ogrpo.setup.find_task import TaskLengths, with_numbers
from ogrpo.setup.servers import connect
from tests.loop.walk import SUMS
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.stub import running

CONFIG = world.decoder()
PARAMS = world.make_params(CONFIG, 0)
OVERLAPPED = ("--rollout.workers=2", "--schedule.sync-offset=1")


@contextmanager
def serving(service, seen, **options):
    """An endpoint that leaves what it is sent in `seen`: path and body of each request."""
    endpoint = Endpoint(service, **options)

    class Recording(endpoint.RequestHandlerClass):
        def read_body(self):
            body = super().read_body()
            seen.append((self.path, body))
            return body

    endpoint.RequestHandlerClass = Recording
    with running(endpoint):
        yield endpoint.url


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return world.save(tmp_path_factory.mktemp("policy"), CONFIG, PARAMS)


@pytest.fixture(scope="module")
def service(folder):
    how = {"dtype": "float32", "eos_id": world.EOS, "batch_size": 4}
    return Service(*embedded_model(str(folder), **how))


@pytest.fixture
def seen():
    return []


@pytest.fixture
def url(service, seen):
    with serving(service, seen) as address:
        yield address


def asked_for(*options):
    return parse([*options], program="ogrpo train", preset="none")


def connected(folder, *options, said=None):
    """The engine of a run with these options."""
    sizes = ("--data.prompt-length=4", "--rollout.max-tokens=12", f"--model.path={folder}")
    console = Console(file=said or io.StringIO(), width=200)
    run = RunDir(folder.parent / "run")
    return connect(asked_for(*sizes, *options), run, CONFIG, {}, world.TOKENIZER, console)


def published(folder, *options):
    with closing(connected(folder, *options)) as engine:
        engine.publish(PARAMS, 0)
        return engine.generate(world.PROMPTS, contract.SAMPLING, 0)


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_a_push_pauses_servers_as_the_option_says(folder, url, seen, mode):
    published(folder, f"--rollout.url={url}", f"--rollout.in-flight={mode}", *OVERLAPPED)
    requested = [urlsplit(path) for path, _ in seen]
    modes = [parse_qs(at.query)["mode"] for at in requested if at.path == "/pause"]
    assert modes
    assert all(each == [mode] for each in modes)


def test_servers_that_do_not_label_tokens_cannot_keep_requests(folder, service, seen):
    with (
        serving(service, seen, native=False) as url,
        pytest.raises(Refused, match=r"in_flight='keep'.*: use 'wait' or 'abort'"),
    ):
        published(folder, f"--rollout.url={url}", "--rollout.in-flight=keep", *OVERLAPPED)


def test_a_wrong_address_ends_a_run_at_once_though_another_server_is_missing(folder, url):
    missing = "http://127.0.0.1:9"
    with pytest.raises(RolloutError, match=f"the server is at {url}: give that address"):
        connected(folder, "--rollout.url", missing, f"{url}/v1/models", "--rollout.wait=600")


@pytest.mark.parametrize(
    ("lengths", "longest"),
    [
        # Prompt and completion have 16 tokens; the probe of each push 16, after which one is drawn.
        ((), 17),
        (("--rollout.max-tokens=30", "--evaluation.max-tokens=5"), 34),
        (("--evaluation.max-tokens=40",), 44),
    ],
)
def test_a_wait_that_ends_says_what_it_was_for(folder, lengths, longest):
    with pytest.raises(RolloutError, match="does not answer; start it with:") as caught:
        connected(folder, "--rollout.url=http://127.0.0.1:9", "--rollout.wait=0", *lengths)
    command = rf"--port 9 --max-model-len {longest} .*\nlast: .*refused$"
    assert re.search(command, str(caught.value))


@pytest.mark.slow
def test_a_server_that_is_not_there_ends_the_command_which_can_be_tried_again(tmp_path, capsys):
    sizes = [f"--task={SUMS}", "--model.random=tiny", "--schedule.prompts=4"]
    words = ["--rollout.url=http://127.0.0.1:9", "--rollout.wait=0", f"--run-dir={tmp_path}"]
    for _ in range(2):
        assert main(["train", *sizes, *words]) == 2
        errors = capsys.readouterr().err
        assert "127.0.0.1:9 does not answer; start it with:\n  ogrpo-serve" in errors
        assert "Traceback" not in errors
        assert {path.name for path in tmp_path.iterdir()} == {".ogrpo.lock", "initial"}


def test_servers_pull_from_the_address_that_is_advertised(folder, url, seen):
    said = io.StringIO()
    where = ("--rollout.transport=url", "--rollout.listen=0.0.0.0", "--rollout.advertise=localhost")
    with closing(connected(folder, f"--rollout.url={url}", *where, said=said)) as engine:
        engine.publish(PARAMS, 0)
    assert "servers pull weights from this machine as localhost" in said.getvalue()
    bodies = b"".join(body for _, body in seen)
    assert b"http://localhost:" in bodies
    assert b"0.0.0.0" not in bodies


SET = {
    "transport": "url",
    "listen": "::1",
    "advertise": "trainer.lan",
    "timeout": 7.5,
    "patience": 8.5,
    "attempts": 9,
    "per_server": 10,
    "tolerance": 0.25,
}


@pytest.mark.parametrize("program", ["train", "eval"])
def test_options_of_the_command_line_reach_the_engine(monkeypatch, tmp_path, program):
    reached = []
    engine = SimpleNamespace(table=str)
    monkeypatch.setattr(servers, "connect_policy", lambda *way, **_: reached.append(way) or engine)
    monkeypatch.setattr(servers, "wait", print)
    table = "rollout" if program == "train" else "servers"
    words = [f"--{table}.{name.replace('_', '-')}={value}" for name, value in SET.items()]
    words = [f"--{table}.url=http://host:8000", *words]
    if program == "train":
        config = asked_for(*words)
    else:
        config = parse_eval(["--model.path=x", *words]).as_train
    config = with_numbers(config, TaskLengths(4, 4), 1.0)
    run = RunDir(tmp_path)
    connect(config, run, CONFIG, PARAMS, world.TOKENIZER, Console(file=io.StringIO()))
    ((options, _),) = reached
    assert {name: getattr(options, name) for name in SET} == SET
    assert all(getattr(ServerOptions, name) != value for name, value in SET.items())
    assert 0 < options.wait <= ServerOptions.wait  # what is left of it
    assert {field.name for field in fields(ServerOptions)} - {"url", "wait", "folder"} == set(SET)
