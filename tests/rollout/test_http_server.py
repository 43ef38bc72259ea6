"""Our servers against clients that mean ill or know no better: raw sockets, real servers."""

import contextlib
import json
import logging
import socket
import threading
import time

import numpy as np
import pytest

from ogrpo.rollout import http_server
from ogrpo.rollout.endpoint import Endpoint, ServedModel, Service
from tests.rollout.collection.scripted import Scripted
from tests.rollout.vllm.stub import running

VOCAB = 8


@pytest.fixture
def service():
    model = ServedModel(
        engine=Scripted(),
        params_fn=lambda tensors: tensors,
        score_fn=lambda params, sequences: [np.zeros(len(ids) - 1) for ids in sequences],
        shapes={"a": [2]},
        dtype="float32",
        vocab_size=VOCAB,
        eos_id=0,
        max_model_len=64,
    )
    return Service(model, None)


@pytest.fixture
def address(service):
    with running(Endpoint(service)) as server:
        yield server.server_address


def say(address, raw, *, end=False):
    """Returns a server's answer to bytes, until it ends the connection."""
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(raw)
        if end:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def request(body, *headers, path="/v1/completions", method="POST"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Connection: close", *headers]
    if not any(line.lower().startswith("content-length") for line in headers):
        lines.append(f"Content-Length: {len(raw)}")
    return "\r\n".join([*lines, "", ""]).encode() + raw


def answer(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


GOOD = {"model": "policy", "prompt": [1, 2], "max_tokens": 3, "n": 2}
UNSAMPLED = {**GOOD, "token_ids": [1], "sampling_params": 7}
ODD = [
    # headers
    *(
        (request(b"{}", *headers), status, message)
        for headers, status, message in [
            (["Content-Length: -1"], 400, "Content-Length is '-1'"),
            (["Content-Length: \u0665"], 400, "send one whole number"),
            (["Content-Length: 2", "Content-Length: 3"], 400, "'2, 3'"),
            (["Content-Length: 99999999999999"], 413, "send at most"),
            (["Content-Length: 9" + "9" * 5000], 400, "send one whole number"),
            (["Transfer-Encoding: chunked", "Content-Length: 2"], 411, "send a Content-Length"),
            (["Origin: http://evil.example"], 403, "not for web pages"),
            ([f"X-{n}: x" for n in range(200)], 431, "Too many headers"),
            (["X: " + "x" * 70_000], 431, "Line too long"),
        ]
    ),
    # no requests
    (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, ""),  # TLS
    (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, ""),
    (b"BREW /pot HTTP/1.1\r\n\r\n", 501, ""),
    (b"GET http://[ HTTP/1.1\r\nConnection: close\r\n\r\n", 400, ""),
    (b"GET /../../etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", 404, ""),
    (b"GET /health?" + b"a=1&" * 99 + b" HTTP/1.1\r\nConnection: close\r\n\r\n", 400, ""),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}", 400, ""),  # and no more
    # bodies
    *(
        (request(body), 400, message)
        for body, message in [
            (b"[" * 100_000, "nested deeper"),
            (b"{", "not JSON"),
            (b"\xff", "utf-8"),
            (b'{"n": NaN}', "NaN"),
            (b'{"n": ' + b"9" * 9999 + b"}", "9999 characters"),
            ({**GOOD, "prompt": "text"}, "prompt is 'text': give a list of token ids"),
            ({**GOOD, "prompt": [[1]] * 5000}, "there are 5000 prompts: give at most 4096"),
            ({**GOOD, "prompt": [1] * 5000}, "5000 tokens: this model takes 64"),
            ({**GOOD, "prompt": [True]}, "prompt is [True]: give"),
            ({**GOOD, "prompt": [1 << 40]}, "give a list of token ids"),
            ({**GOOD, "prompt": [VOCAB]}, "out of the vocabulary"),
            ({**GOOD, "prompt": [1] * 65, "prompt_logprobs": 0}, "65 tokens: this model takes 64"),
            ({**GOOD, "n": 1 << 70}, "n is 1180591620717411303424: give a whole number from 1"),
            ({**GOOD, "max_tokens": -5}, "max_tokens is -5: give"),
            ({**GOOD, "temperature": "hot"}, "temperature is 'hot': give a number"),
            ({**GOOD, "seed": 1 << 64}, "seed is 18446744073709551616: give"),
            ({**GOOD, "logprobs": [1]}, "logprobs is [1]: give"),
        ]
    ),
    # calls
    *(
        (request(body, path=f"/{path}"), status, message)
        for path, body, status, message in [
            ("inference/v1/generate", UNSAMPLED, 400, "sampling_params is 7: give an object"),
            ("collective_rpc", {"method": ["ogrpo_describe"]}, 500, ""),
            ("collective_rpc", {"method": "ogrpo_describe", "kwargs": {"x": 1}}, 400, ""),
            ("collective_rpc", {"method": "ogrpo_describe", "kwargs": []}, 400, ""),
            ("update_weights", {"update_info": {"version": 1}}, 500, ""),
            ("finish_weight_update", {}, 500, ""),
            ("inference/v1/generate", {"model": "policy", "token_ids": {"a": 1}}, 400, ""),
        ]
    ),
]


@pytest.mark.parametrize(("raw", "status", "message"), ODD, ids=range(len(ODD)))
def test_an_odd_request_is_answered(address, raw, status, message):
    answered, body = answer(say(address, raw, end=True))
    assert answered == status
    assert body["error"]["message"]
    assert message in body["error"]["message"]


def test_what_the_server_itself_does_wrong_is_answered_and_logged(service, address, caplog):
    def broken(*_):
        raise RuntimeError("\x1b[31mbroken")

    service.model.engine.generate = broken
    with caplog.at_level(logging.WARNING):
        status, _ = answer(say(address, request(GOOD)))
    assert status == 500
    assert caplog.messages == ["/v1/completions: RuntimeError: \\x1b[31mbroken"]


def test_requests_without_a_seed_share_no_random_numbers(service):
    """An engine draws the prompt at place n of a call with the call's seed plus n."""
    for count in (3, 1, 2):
        service.complete({**GOOD, "prompt": [[1]] * count})
    calls = [call[1:3] for call in service.model.engine.log if call[0] == "generate"]
    seeds = [seed + n for heads, seed in calls for n in range(len(heads))]
    assert len(seeds) == len(set(seeds)) == 6


def drip(address, head, body):
    """Sends a body a byte at a time; what the server says when it has had enough, and after how many."""
    with socket.create_connection(address, timeout=0.02) as client:
        client.sendall(head)
        for sent, byte in enumerate(body):
            try:
                client.sendall(bytes([byte]))
                said = client.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                return b"", sent
            client.settimeout(30)
            return said + b"".join(iter(lambda: client.recv(65536), b"")), sent
    return b"", len(body)


@pytest.mark.parametrize(
    ("bound", "head", "body", "status"),
    [
        ("HEAD_SECONDS", b"", b"POST / HTTP/1.1\r\nX: " + b"x" * 5000, None),
        ("BODY_SECONDS", b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n", b"x" * 5000, 408),
    ],
    ids=["head", "body"],
)
def test_a_dripping_client_is_given_up(service, monkeypatch, bound, head, body, status):
    monkeypatch.setattr(http_server, bound, 0.3)
    with running(Endpoint(service)) as server:
        said, sent = drip(server.server_address, head, body)
    assert (answer(said)[0] if said else None) == status
    assert sent < 4000


def test_half_open_connections_are_bounded_and_given_up(service, monkeypatch):
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(http_server, "CONNECTIONS", 20)
    with running(Endpoint(service)) as server, contextlib.ExitStack() as stack:
        address = server.server_address
        before = threading.active_count()
        opened = (socket.create_connection(address, timeout=30) for _ in range(300))
        held = [stack.enter_context(each) for each in opened]
        refused = [each for each in held[20:] if each.recv(100).startswith(b"HTTP/1.1 503")]
        assert len(refused) >= 260
        assert threading.active_count() <= before + 20
        assert [each.recv(100) for each in held[:20]] == [b""] * 20  # given up in the end
        deadline = time.monotonic() + 30
        while (said := say(address, request(GOOD))).startswith(b"HTTP/1.1 503"):
            assert time.monotonic() < deadline
        assert answer(said)[0] == 200


def test_a_thread_that_cannot_be_started_costs_no_later_connection(service, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(http_server, "CONNECTIONS", 1)
    with running(Endpoint(service)) as server:
        with monkeypatch.context() as patch, contextlib.suppress(ConnectionError):
            patch.setattr(threading.Thread, "start", fail)
            assert say(server.server_address, request(GOOD)) == b""
        assert answer(say(server.server_address, request(GOOD)))[0] == 200


def test_a_port_that_cannot_be_had_is_named(service, address):
    for port in (address[1], 70_000):
        with pytest.raises(ValueError, match=rf"^127\.0\.0\.1:{port} .*another --host or --port$"):
            Endpoint(service, port=port)


def test_a_client_of_http_1_0_sees_its_answer_end(address):
    assert answer(say(address, b"GET /health HTTP/1.0\r\n\r\n")) == (200, {})


def test_the_bodies_of_all_connections_are_bounded(address, monkeypatch):
    monkeypatch.setattr(http_server, "HELD_BYTES", 1 << 20)
    for size, status in ((2 << 20, 503), (1 << 19, 400)):
        assert answer(say(address, request(b"[" + b" " * size + b"]")))[0] == status
    assert answer(say(address, request(GOOD)))[0] == 200
