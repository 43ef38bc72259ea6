"""What a server, a network or another trainer leaves behind is put right, and nothing wrong is used.

Over the in-repo server behind a proxy, through the engine's own interface alone.
"""

import json
import threading
from contextlib import ExitStack
from urllib.parse import urlsplit, urlunsplit

import pytest

from ogrpo.rollout.vllm import RolloutError, drawing
from ogrpo.rollout.vllm import server as looked_after
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.orphan import leave_paused
from tests.rollout.vllm.proxy import (
    EVERY,
    Proxy,
    cut,
    drip,
    held,
    rewritten,
    says,
    status,
    unanswered,
    undelivered,
)

CONFIG = world.decoder()
FIRST, SECOND, FOREIGN = (world.make_params(CONFIG, seed) for seed in (0, 1, 5))
MANY = world.PROMPTS * 6
SAMPLES = "/inference/v1/generate"
LONG = 60.0
HASTY = {"timeout": 1.5, "patience": 20.0}


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch):
    for module in (drawing, looked_after):
        monkeypatch.setattr(module, "FIRST_REST", 0.01)


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def server(farm):
    return farm.start()


@pytest.fixture
def proxy(server, stack):
    return stack.enter_context(Proxy(server.url))


def check(engine, params, version, prompts=MANY):
    """Groups of a version, each exact."""
    groups = engine.generate(prompts, contract.SAMPLING, 1)
    contract.check_groups(groups, prompts, contract.SAMPLING)
    assert {c.policy_version for g in groups for c in g.completions} == {version}
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT


def check_next_trainer(url, **options):
    """Somebody who starts now, and knows nothing of what happened, can use the server."""
    with contract.connect([url], CONFIG, **{**HASTY, **options}) as engine:
        engine.publish(SECOND, 3)
        check(engine, SECOND, 3)


def loads(endpoint):
    """A list that gets longer with each load."""
    seen, load = [], endpoint.service.load

    def counted(version, **source):
        seen.append(version)
        return load(version, **source)

    endpoint.service.load = counted
    return seen


# --- paused, and by nobody who lives --------------------------------------------------------------


def test_what_a_killed_trainer_left_paused_the_next_one_resumes(server, folders, caplog):
    sizes = {"vocab_size": world.VOCAB, "eos_id": world.EOS, "max_length": contract.MAX_LENGTH}
    leave_paused(server.url, folders[True], **sizes)
    assert server.service.paused
    check_next_trainer(server.url)
    assert f"{server.url} was paused" in caplog.text


def test_a_server_that_is_well_by_its_own_account_and_paused_is_named_and_resumed(server, caplog):
    server.service.pause(drain=False)
    check_next_trainer(server.url)
    assert f"{server.url} was paused" in caplog.text


def test_a_server_that_somebody_pauses_in_a_batch_is_resumed(server, proxy, caplog):
    with contract.connect([proxy.url], CONFIG, **HASTY) as engine:
        engine.publish(FIRST, 1)
        pausing = proxy.spoil(SAMPLES, _pausing(server), after=3)
        check(engine, FIRST, 1)
        assert pausing.met.is_set()
    assert f"{proxy.url} was paused" in caplog.text


def _pausing(server):
    def fault(exchange):
        server.service.pause(drain=False)
        exchange.answer(exchange.deliver())

    return fault


LOST = {"undelivered": undelivered, "unanswered": unanswered, "503": status(503)}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_a_resume_that_is_lost_is_sent_again(proxy, fault):
    with contract.connect([proxy.url], CONFIG, **HASTY) as engine:
        lost = proxy.spoil("/resume", fault)
        engine.publish(FIRST, 1)
        check(engine, FIRST, 1)
        assert lost.met.is_set()


@pytest.mark.parametrize("fault", [held, unanswered], ids=["held", "unanswered"])
def test_a_pause_that_takes_longer_than_the_limit_is_undone(proxy, fault):
    with contract.connect([proxy.url], CONFIG, **HASTY) as engine:
        slow = proxy.spoil("/pause", fault)
        engine.publish(FIRST, 1)
        check(engine, FIRST, 1)
        assert slow.met.is_set()


def test_an_engine_that_is_closed_while_it_revives_a_server_leaves_it_running(
    farm, server, proxy, stack
):
    other = farm.start()
    engine = stack.enter_context(contract.connect([proxy.url, other.url], CONFIG, **HASTY))
    engine.publish(FIRST, 1)
    pause = proxy.spoil("/pause", held)
    farm.reset(server)
    check(engine, FIRST, 1)
    assert pause.met.wait(LONG)
    assert server.service.paused
    engine.close()
    assert not server.service.paused
    check_next_trainer(server.url)


# --- weights that nobody pushed -------------------------------------------------------------------


@pytest.mark.parametrize("when", ["between two batches", "in a batch"])
def test_no_completion_of_weights_that_somebody_else_loaded_is_used(server, proxy, when):
    service = server.service

    def load_foreign():
        with service._sampler:
            service.params = FOREIGN
            service.model.engine.publish(FOREIGN, 1)

    def fault(exchange):
        load_foreign()
        exchange.answer(exchange.deliver())

    with contract.connect([proxy.url], CONFIG) as engine:
        engine.publish(FIRST, 1)
        check(engine, FIRST, 1)
        if when == "in a batch":
            proxy.spoil(SAMPLES, fault, after=7)
        else:
            load_foreign()
        check(engine, FIRST, 1)
        assert engine.counts["discarded_groups"] > 0


@pytest.mark.parametrize("code", ["broken", "restored"])
def test_a_model_that_is_half_loaded_is_not_sampled_under_its_old_label(farm, code):
    broken, well = farm.start(), farm.start()
    service, load = broken.service, broken.service.load

    def breaks(version, **_):
        if version != 2:
            return load(version, **_)
        half = {**FIRST, "norm": SECOND["norm"]}
        if code == "broken":
            service.params = half
            service.model.engine.publish(half, 1)
        return {"ok": False, "code": code, "error": "out of memory", **service.place.where()}

    with contract.connect([broken.url, well.url], CONFIG) as engine:
        engine.publish(FIRST, 1)
        service.load = breaks
        try:
            engine.publish(SECOND, 2)
        except RolloutError:
            assert engine.version == 1
        check(engine, *((SECOND, 2) if engine.version == 2 else (FIRST, 1)))
        engine.publish(SECOND, 3)
        check(engine, SECOND, 3)


# --- a push and a revival at a time ---------------------------------------------------------------


def test_a_server_that_is_revived_during_a_push_comes_back_with_what_is_new(farm, server, proxy):
    engine = contract.connect([proxy.url], CONFIG, timeout=20.0, patience=5.0)
    with engine:
        engine.publish(FIRST, 1)
        drawing_batch, groups = _in_thread(lambda: engine.generate(MANY, contract.SAMPLING, 1))
        reviving = proxy.spoil("/pause", held)
        farm.reset(server)
        drawing_batch.start()
        assert reviving.met.wait(LONG)
        pushing, _ = _in_thread(lambda: engine.publish(SECOND, 2))
        pushing.start()
        reviving.released.set()
        for thread in (pushing, drawing_batch):
            thread.join(LONG)
        assert groups
        assert not isinstance(groups[0], Exception), groups[0]
        check(engine, SECOND, 2)


def _in_thread(work):
    ended = []

    def run():
        try:
            ended.append(work())
        except (RolloutError, RuntimeError) as error:
            ended.append(error)

    return threading.Thread(target=run, daemon=True), ended


ROUTES = ("/collective_rpc", "/version", "/v1/models", "/v1/completions", "/pause", "/resume")
ODD = {
    "no JSON": says("<html>proxy</html>"),
    "an error under 200": says('{"error": {"message": "overloaded"}}'),
    "a list": says("[1]"),
    "null": says("null"),
    "429": status(429),
    "401": status(401),
    "404": status(404),
    "503": status(503),
    "cut": cut,
    "nothing": undelivered,
}


MEANT = {("404", "/collective_rpc")}


@pytest.fixture(scope="module")
def revived(folders):
    """A server, restarted for each answer that is odd while it is revived."""
    from tests.rollout.vllm.conftest import Farm

    with ExitStack() as stack:
        farm = Farm(folders, stack)
        server = farm.start()
        proxy = stack.enter_context(Proxy(server.url))
        engine = stack.enter_context(contract.connect([proxy.url], CONFIG, **HASTY))
        engine.publish(FIRST, 1)
        yield farm, server, proxy, engine


def odd_answers(route):
    """An endpoint that is not there is what a server without it answers with."""
    return [(name, fault) for name, fault in ODD.items() if (name, route) not in MEANT]


@pytest.mark.parametrize("route", ROUTES)
def test_odd_answers_during_a_revival_do_not_end_it(revived, route):
    farm, server, proxy, engine = revived
    for name, fault in odd_answers(route):
        farm.reset(server)
        odd = proxy.spoil(route, fault)
        check(engine, FIRST, 1, world.PROMPTS)
        assert odd.met.is_set(), name


# --- what only one request is at fault for --------------------------------------------------------


def test_a_503_costs_its_own_request_and_nothing_else(server, proxy):
    seen = loads(server)
    with contract.connect([proxy.url], CONFIG, per_server=4) as engine:
        engine.publish(FIRST, 1)
        failing = proxy.spoil(SAMPLES, status(503), after=5)
        check(engine, FIRST, 1)
        assert failing.met.is_set()
        assert engine.counts["failed_requests"] == 1
        assert engine.counts["requests"] == len(MANY) + 1
        assert engine.counts["discarded_groups"] == 0
        assert engine.counts["sync/count"] == 1
    assert seen == [1]


def test_an_answer_that_never_ends_is_given_up(farm, server, proxy):
    other = farm.start()
    with contract.connect([proxy.url, other.url], CONFIG, per_server=4, **HASTY) as engine:
        engine.publish(FIRST, 1)
        dripping = proxy.spoil(SAMPLES, drip, count=EVERY)
        check(engine, FIRST, 1)
        assert dripping.met.is_set()
        assert dripping.whole == 0
        assert engine.counts["failed_requests"] > 0


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
@pytest.mark.parametrize("fault", [cut, status(503)], ids=["cut", "503"])
def test_a_pull_that_is_cut_does_not_end_the_run(proxy, stack, file, fault):
    """The connection from the server to the share, through a proxy of its own."""
    shares = []

    def detour(body):
        said = json.loads(body)
        if "url" not in said.get("kwargs", {}):
            return body
        share = urlsplit(said["kwargs"]["url"])
        if not shares:
            shares.append(stack.enter_context(Proxy(urlunsplit(share[:2] + ("",) * 3))))
            shares[0].spoil(f"/v000001/{file}", fault)
        place = urlsplit(shares[0].url).netloc
        said["kwargs"]["url"] = urlunsplit(share._replace(netloc=place))
        return json.dumps(said).encode()

    proxy.spoil("/collective_rpc", rewritten(detour), count=EVERY)
    with contract.connect([proxy.url], CONFIG, transport="url") as engine:
        engine.publish(FIRST, 1)
        check(engine, FIRST, 1)
        assert sum(n for path, n in shares[0].seen.items() if path.endswith(file)) > 1
