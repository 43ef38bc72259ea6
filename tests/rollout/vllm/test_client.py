"""One server's client: its connections, who asks, what is waited for, what is shown of a server."""

import asyncio
import base64
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogrpo.rollout.vllm import Expected, Options, RolloutError, api, connect
from ogrpo.rollout.vllm.api import ServerApi, ask_health
from ogrpo.rollout.vllm.capabilities import Capabilities, table
from ogrpo.rollout.vllm.engine import parse_metrics, peaks
from ogrpo.rollout.vllm.options import credentials_of_environment


@contextmanager
def answering(answers, **headers):
    """A server that gives each path its status; its address, and who asked."""
    asked_by = []

    class Fixed(BaseHTTPRequestHandler):
        def do_GET(self):
            asked_by.append(self.headers["Authorization"])
            body = b'{"error": {"message": "\\u001b[2Jgo away"}}'
            self.send_response(answers.get(self.path, 404))
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fixed)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked_by
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("status", [200, 408, 429, 500, 502, 503, 504])
def test_a_server_that_is_starting_is_waited_for(status):
    with answering({"/health": status}) as (url, _):
        assert ask_health(url) == (None if status == 200 else f"it answers {status}")


def test_a_server_that_is_not_there_is_waited_for():
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    assert "refused" in ask_health(f"http://127.0.0.1:{port}")


def test_a_connection_that_ends_without_an_answer_is_waited_for():
    """So a container's port looks before the server in it listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def hang_up():
            for _ in range(2):
                listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = listening.getsockname()[1]
        assert ask_health(f"http://127.0.0.1:{port}")
        assert "TLS" not in ask_health(f"https://127.0.0.1:{port}")
        thread.join()


ELSEWHERE = "https://me:SECRET@gpu.lan/in?key=SECRET"


@pytest.mark.parametrize(
    ("answers", "change", "message"),
    [
        ({"/health": 200}, lambda url: f"{url}/v1", r"404: the server is at \S+\d: give that ad"),
        ({"/health": 307}, str, r"sends on to https://gpu\.lan, .*give that"),
        ({"/health": 200}, lambda url: url.replace("p:", "ps:"), "TLS fails .*: give http://"),
        ({}, lambda _: "http://nosuch.invalid:80", r"nosuch\.invalid is not known here .*: corr"),
        *(
            ({"/health": status}, str, f"answers {status}: something else than vLLM")
            for status in (400, 404, 405)
        ),
    ],
)
def test_what_waiting_does_not_help_is_said_without_what_is_secret_in_it(answers, change, message):
    with (
        answering(answers, Location=ELSEWHERE) as (url, _),
        pytest.raises(RolloutError, match=message) as caught,
    ):
        ask_health(change(url))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "header"),
    [
        ("OGRPO_API_KEY", "SECRET", "Bearer SECRET"),
        ("OGRPO_BASIC_AUTH", "me:SECRET", f"Basic {base64.b64encode(b'me:SECRET').decode()}"),
    ],
)
def test_the_environment_says_who_asks(monkeypatch, name, value, header):
    monkeypatch.setenv(name, value)
    options = Options(**credentials_of_environment()._asdict(), attempts=1)
    expected = Expected(vocab_size=8, eos_id=0, max_length=8, texts=[])
    with answering({"/health": 401, "/collective_rpc": 401}) as (url, asked_by):
        with pytest.raises(RolloutError, match=r"401: it does not let us in.*OGRPO_API") as caught:
            ask_health(url)
        with pytest.raises(Exception, match="answered 401") as refused:
            connect([url], expected=expected, tensors_fn=dict, score_fn=print, options=options)
    assert len(asked_by) > 1
    assert set(asked_by) == {header}
    for text in (str(caught.value), str(refused.value), repr(options)):
        assert "SECRET" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.0, 3)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    farm, monkeypatch, idle, connections
):
    """The server may be closing it, and the request would be lost."""
    monkeypatch.setattr(api, "IDLE_SECONDS", idle)
    server = farm.start()

    async def calls():
        client = ServerApi(server.url, headers={}, timeout=60.0)
        for _ in range(3):
            await client.version()
        await client.close()

    asyncio.run(calls())
    assert len(server.connections) == connections


def test_what_a_server_says_of_itself_is_shown_and_not_obeyed():
    able = Capabilities(
        url="http://127.0.0.1:9",
        vllm="\x1b]0;title\x07",
        model="\x1b[2J\u202epolicy",
        max_model_len=8,
        log_probs="raw",
        tokenizer="the trainer's",
        native=False,
        echoes=frozenset({"prompt"}),
        extension={"dtype": "float32", "chunked_prefill": True},
        ranks=2,
        workers=2,
    )
    text = table([able])
    assert r"\x1b[2J\u202epolicy" in text
    assert r"vLLM \x1b]0;title\x07" in text
    assert "\x1b" not in text


PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_running{engine="1",model_name="policy"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.5
vllm:generation_tokens_total{engine="0",model_name="policy"} 1.2e+03
vllm:generation_tokens_created{engine="0",model_name="policy"} 1.7e+09
python_info{implementation="CPython",version="3.11.7"} 1.0
"""


def test_counts_add_up_over_engines_and_shares_do_not():
    assert parse_metrics([PAGE]) == {
        "server/running": 7.0,
        "server/kv_cache_usage": 0.5,
        "server/generated_tokens": 1200.0,
    }


def test_peaks_are_of_what_comes_and_goes():
    first = {"server/running": 7.0, "server/generated_tokens": 5.0}
    second = {"server/running": 2.0, "server/waiting": 1.0, "server/generated_tokens": 9.0}
    assert peaks(first, second) == {"server/running": 7.0, "server/waiting": 1.0}
