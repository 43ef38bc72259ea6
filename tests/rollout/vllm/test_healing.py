"""What a server, a network or another trainer leaves behind is put right, and nothing wrong is used.

Over the in-repo server behind a proxy, through the engine's own interface alone.
"""

import json
import threading
from contextlib import ExitStack
from urllib.parse import urlsplit, urlunsplit

import pytest

from ogrpo.rollout.vllm import RolloutError, waiting
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

pytestmark = pytest.mark.slow

CONFIG = world.decoder()
FIRST, SECOND, FOREIGN = (world.make_params(CONFIG, seed) for seed in (0, 1, 5))
MANY = world.PROMPTS * 6
SAMPLES = "/inference/v1/generate"
LONG = 60.0
HASTY = {"timeout": 1.5, "patience": 20.0}


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_REST", 0.01)


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


def serve_instead(service, params):
    """Loads weights as somebody would who tells nobody."""
    service.params = service._sampled = params
    service.model.engine.publish(params, 1)


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
            serve_instead(service, FOREIGN)

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


@pytest.mark.parametrize("restored", [False, True])
def test_a_model_that_is_half_loaded_is_not_sampled_under_its_old_label(farm, restored):
    broken, well = farm.start(), farm.start()
    service, install = broken.service, broken.service._install

    def breaks(release):
        if release.version == 2 or (release.version == 1 and not restored):
            serve_instead(service, {**FIRST, "norm": SECOND["norm"]})
            raise MemoryError
        install(release)

    with contract.connect([broken.url, well.url], CONFIG) as engine:
        engine.publish(FIRST, 1)
        service._install = breaks
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


SAID = {
    "no JSON": says("<html>proxy</html>"),
    "an error under 200": says('{"error": {"message": "overloaded"}}'),
    "null": says("null"),
}
CODES = {"429": status(429), "401": status(401), "404": status(404), "cut": cut}
ODD = {
    "/collective_rpc": SAID | CODES,
    "/v1/completions": SAID | CODES,
    "/v1/models": SAID,
    "/is_paused": SAID | CODES,
    "/pause": CODES,
    "/start_weight_update": CODES,
    "/update_weights": CODES,
    "/finish_weight_update": CODES,
    "/resume": CODES,
}


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


@pytest.mark.parametrize("route", ODD)
def test_odd_answers_during_a_revival_do_not_end_it(revived, route):
    farm, server, proxy, engine = revived
    for name, fault in ODD[route].items():
        farm.reset(server)
        odd = proxy.spoil(route, fault)
        check(engine, FIRST, 1, world.PROMPTS)
        assert odd.met.is_set(), name


# --- what only one request is at fault for --------------------------------------------------------


def test_a_503_costs_its_own_request_and_nothing_else(server, proxy):
    with contract.connect([proxy.url], CONFIG, per_server=4) as engine:
        engine.publish(FIRST, 1)
        failing = proxy.spoil(SAMPLES, status(503), after=5)
        check(engine, FIRST, 1)
        assert failing.met.is_set()
        assert engine.counts["failed_requests"] == 1
        assert engine.counts["requests"] == len(MANY) + 1
        assert engine.counts["discarded_groups"] == 0
        assert engine.counts["sync/count"] == 1
    assert proxy.seen["/start_weight_update"] == 1


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
        if "url" not in said["update_info"]:
            return body
        share = urlsplit(said["update_info"]["url"])
        if not shares:
            shares.append(stack.enter_context(Proxy(urlunsplit(share[:2] + ("",) * 3))))
            shares[0].spoil(f"/v000001/{file}", fault)
        place = urlsplit(shares[0].url).netloc
        said["update_info"]["url"] = urlunsplit(share._replace(netloc=place))
        return json.dumps(said).encode()

    proxy.spoil("/update_weights", rewritten(detour), count=EVERY)
    with contract.connect([proxy.url], CONFIG, transport="url") as engine:
        engine.publish(FIRST, 1)
        check(engine, FIRST, 1)
        assert sum(n for path, n in shares[0].seen.items() if path.endswith(file)) > 1
