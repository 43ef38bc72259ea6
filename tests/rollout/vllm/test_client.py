"""One server's client: its connections, who asks, what is waited for, what is shown of a server."""

import asyncio
import base64
import socket
import time
from contextlib import contextmanager
from functools import partial
from threading import active_count
from types import SimpleNamespace

import pytest

from ogrpo.rollout.vllm import Expected, Rejected, RolloutError, ServerOptions, VllmEngine, engine
from ogrpo.rollout.vllm.api import ServerApi, ask_health, headers_of_environment
from ogrpo.rollout.vllm.capabilities import Capabilities, table
from ogrpo.rollout.vllm.engine import parse_metrics
from ogrpo.system import lock
from tests.rollout.vllm.stub import serving

EXPECTED = Expected(vocab_size=8, eos_id=0, max_length=8)
engine_of = partial(VllmEngine, expected=EXPECTED, tensors_fn=dict, score_fn=print)


@contextmanager
def answering(answers, **headers):
    """A server that gives each path its status; its address, and who asked."""
    asked_by = []

    def respond(handler):
        asked_by.append(handler.headers["Authorization"])
        body = b'{"error": {"message": "\\u001b[2Jgo away"}}'
        handler.send_response(answers.get(handler.path, 404))
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    with serving(respond) as url:
        yield url, asked_by


@pytest.mark.parametrize("status", [200, 408, 429, 500, 502, 503, 504])
def test_a_server_that_is_starting_is_waited_for(status):
    with answering({"/health": status}) as (url, _):
        assert ask_health(url) == (None if status == 200 else f"it answers {status}")


def test_health_that_comes_byte_by_byte_is_no_whole_answer_in_time(monkeypatch):
    def drip(handler):
        for byte in b"HTTP/1.1 102 Processing\r\n\r\n" * 2:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.02)

    monkeypatch.setattr("ogrpo.rollout.vllm.api.HEALTH_SECONDS", 0.2)
    with serving(drip) as url:
        assert ask_health(url) == "it did not answer in full within 0.2 s"


def test_a_name_of_several_addresses_that_refuse_says_so(monkeypatch):
    addresses = [
        (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 1))
        for family, host in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    assert ask_health("http://localhost:1") == "[Errno 111] Connection refused"


def test_an_answer_that_cannot_be_decoded_is_waited_for_and_a_redirection_is_no_success():
    with answering({"/health": 200}, **{"Content-Encoding": "gzip"}) as (url, _):
        assert "decompressing" in ask_health(url)

    async def resume(url):
        api = ServerApi(url, headers={}, timeout=60.0)
        try:
            with pytest.raises(Rejected, match="/resume answered 302"):
                await api.resume()
        finally:
            await api.close()

    with answering({"/resume": 302, "/health": 302}, Location="//[") as (url, _):
        asyncio.run(resume(url))
        with pytest.raises(RolloutError, match=r"302: it sends on to .* is not followed"):
            ask_health(url)


ELSEWHERE = "https://me:SECRET@gpu.lan/in?key=SECRET"


@pytest.mark.parametrize(
    ("answers", "change", "message"),
    [
        ({"/health": 200}, lambda url: f"{url}/v1", r"404: the server is at \S+\d: give that ad"),
        ({"/health": 307}, str, r"sends on to https://gpu\.lan, .*give that"),
        ({"/health": 200}, lambda url: url.replace("p:", "ps:"), "TLS fails .*: give http://"),
        ({}, lambda _: "http://nosuch.invalid:80", r"nosuch\.invalid is not known here .*: corr"),
        *(({"/health": n}, str, f"answers {n}: something else than vLLM") for n in (400, 404, 405)),
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
    with answering({"/health": 401, "/collective_rpc": 401}) as (url, asked_by):
        with pytest.raises(RolloutError, match=r"401: wrong credentials.*OGRPO_API") as caught:
            ask_health(url)
        with pytest.raises(Exception, match="answered 401") as refused:
            engine_of(ServerOptions(url=(url,), attempts=1))
    assert len(asked_by) > 1
    assert set(asked_by) == {header}
    for text in (str(caught.value), str(refused.value)):
        assert "SECRET" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"API_KEY": "SECRET "}, "OGRPO_API_KEY has characters that no header can carry"),
        ({"API_KEY": "SECRET\n"}, "OGRPO_API_KEY has characters that no header can carry"),
        ({"BASIC_AUTH": "me:SECRET\x7f"}, "OGRPO_BASIC_AUTH has characters"),
        ({"BASIC_AUTH": "SECRET"}, "no NAME:PASSWORD"),
        ({"API_KEY": "SECRET", "BASIC_AUTH": "me:SECRET"}, "are both set"),
    ],
)
def test_a_secret_that_no_header_carries_is_refused_without_showing_it(
    monkeypatch, variables, message
):
    for name, value in variables.items():
        monkeypatch.setenv(f"OGRPO_{name}", value)
    with pytest.raises(ValueError, match=message) as caught:
        headers_of_environment()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": ()}, "no server URL: give at least one"),
        ({"url": ("nowhere",)}, "'nowhere' is no server URL"),
        ({"timeout": 0.0}, "timeout is 0.0: give a number above 0"),
        ({"transport": "disk"}, "transport is 'disk': choose one of"),
        ({"transport": "url", "listen": "::"}, "listen is '::'.* perhaps 127.0.0.1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_a_server_is_asked(options, message):
    """And leaves no thread behind."""
    threads = active_count()
    with pytest.raises(ValueError, match=message):
        engine_of(ServerOptions(**{"url": ("http://127.0.0.1:9",), **options}))
    assert active_count() <= threads


def test_a_push_does_one_of_three_things_to_requests_in_flight():
    with pytest.raises(ValueError, match="in_flight is 'drain': choose one of"):
        engine_of(ServerOptions(url=("http://127.0.0.1:9",)), in_flight="drain")


def test_a_folder_of_weights_is_one_engines(tmp_path):
    with lock.held(tmp_path, "another run"), pytest.raises(ValueError, match=r"use .*another run"):
        engine_of(ServerOptions(url=("http://x",), folder=tmp_path))


def test_what_a_server_says_of_itself_is_shown_and_not_obeyed():
    able = Capabilities(
        url="http://127.0.0.1:9",
        vllm="\x1b]0;title\x07",
        model="\x1b[2J\u202epolicy",
        max_model_len=8,
        log_probs="raw",
        native=False,
        echoes=frozenset({"prompt"}),
        extension={"dtype": "float32", "chunked_prefill": True},
        ranks=2,
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
vllm:num_requests_waiting{engine="0",model_name="policy"} many
python_info{implementation="CPython",version="3.11.7"} 1.0
"""


def test_counts_add_up_over_engines_and_shares_do_not():
    assert parse_metrics([PAGE]) == {
        "server/running": 7.0,
        "server/kv_cache_usage": 0.5,
        "server/generated_tokens": 1200.0,
    }


def test_a_peak_that_was_shown_while_servers_were_asked_is_not_shown_again(monkeypatch):
    monkeypatch.setattr(engine, "FIRST_LOOK", 0.01)

    async def ask_servers():
        watched._peaks = {}  # as `metrics` leaves it
        return {"server/running": 1.0}

    watched = SimpleNamespace(_peaks={"server/running": 9.0}, _server_metrics=ask_servers)
    asyncio.run(VllmEngine._watched(watched, asyncio.sleep(0.1)))
    assert watched._peaks == {"server/running": 1.0}
