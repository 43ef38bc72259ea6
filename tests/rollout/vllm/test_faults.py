"""Servers that die, hang, restart, lie or are left paused: what is wrong is put right or refused.

Over the in-repo server behind a proxy, through the engine's own interface alone.
"""

import dataclasses
import json
import threading
import time
from contextlib import ExitStack
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.endpoint import BadRequest
from ogrpo.rollout.vllm import PublishRefused, Refused, RolloutError, Unavailable, Unproven, errors
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.conftest import Farm
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
    monkeypatch.setattr(errors, "FIRST_REST", 0.01)


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


def started(*urls, params=FIRST, **options):
    """An engine that has published version 1."""
    engine = contract.connect(urls, CONFIG, **options)
    engine.publish(params, 1)
    return engine


def check(engine, params=FIRST, version=1, prompts=MANY):
    """Groups of a version, each exact."""
    groups = engine.generate(prompts, contract.SAMPLING, 1)
    contract.check_groups(groups, prompts, contract.SAMPLING)
    assert {c.policy_version for g in groups for c in g.completions} == {version}
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
    return groups


def check_next_trainer(url):
    """Somebody who starts now, and knows nothing of what happened, can use the server."""
    with contract.connect([url], CONFIG, **HASTY) as engine:
        engine.publish(SECOND, 3)
        check(engine, SECOND, 3)


def after(act):
    """A fault of the proxy: `act` comes before the request, which is delivered."""

    def fault(exchange):
        act()
        exchange.answer(exchange.deliver())

    return fault


def serve_instead(service, params):
    """Loads weights as somebody would who tells nobody."""
    service.params = service._sampled = params
    service.model.engine.publish(params, 1)


# --- what befalls a server in a batch: the batch is whole, and so is the next ----------------------


def dies(farm, server, proxy):
    proxy.spoil(SAMPLES, after(lambda: farm.kill(server)), after=3)
    return ["failed_requests"]


def hangs(farm, server, proxy):
    """Alive, and well by its own account, but nothing comes back."""
    proxy.spoil(SAMPLES, held, after=1, count=EVERY)
    return ["failed_requests"]


def never_ends_its_answers(farm, server, proxy):
    proxy.spoil(SAMPLES, drip, count=EVERY)
    return ["failed_requests"]


def restarts(farm, server, proxy):
    proxy.spoil(SAMPLES, after(lambda: farm.restart(server)), after=4)
    return ["discarded_groups", "failed_requests"]


def comes_back(farm, server, proxy):
    farm.kill(server)
    threading.Timer(0.5, lambda: farm.restart(server)).start()
    return ["failed_requests"]


def loses_its_weights(farm, server, proxy):
    """As by a restart so quick that nothing fails."""
    farm.reset(server)
    return ["discarded_groups"]


def is_paused(farm, server, proxy):
    proxy.spoil(SAMPLES, after(lambda: server.service.pause(drain=False)), after=3)
    return ["servers/resumed"]


def gets_foreign_weights(farm, server, proxy):
    serve_instead(server.service, FOREIGN)
    return ["discarded_groups"]


def gets_foreign_weights_in_the_batch(farm, server, proxy):
    def load():
        with server.service._sampler:
            serve_instead(server.service, FOREIGN)

    proxy.spoil(SAMPLES, after(load), after=7)
    return ["discarded_groups"]


WITH_ANOTHER = [dies, hangs, never_ends_its_answers]
ALONE = [
    *(restarts, comes_back, loses_its_weights, is_paused),
    *(gets_foreign_weights, gets_foreign_weights_in_the_batch),
]


@pytest.mark.parametrize("befall", [*WITH_ANOTHER, *ALONE])
def test_whatever_befalls_a_server_every_completion_is_of_the_pushed_weights(
    farm, server, proxy, befall
):
    urls = [proxy.url, *([farm.start().url] if befall in WITH_ANOTHER else [])]
    with started(*urls, **HASTY) as engine:
        counted = befall(farm, server, proxy)
        check(engine)
        assert any(engine.counts[name] for name in counted)
        check(engine)


@pytest.mark.parametrize("native", [True, False])
def test_a_failure_does_not_hide_that_samples_before_it_had_lost_their_weights(farm, native):
    server, seen = farm.start(native=native), []
    draw = server.service._sample

    def counted(prompts, options):
        seen.append(1)
        if len(seen) == 5:
            farm.reset(server)
        if len(seen) == 9:
            raise BadRequest("the engine died", 500)
        return draw(prompts, options)

    with started(server.url, per_server=1) as engine:
        server.service._sample = counted
        check(engine)
        assert engine.counts["failed_requests"] == 1
        assert engine.counts["discarded_groups"] > 0


def test_several_servers_share_the_work(farm):
    servers = [farm.start(), farm.start()]
    with started(*(server.url for server in servers)) as engine:
        before = [server.service.generated for server in servers]
        check(engine)
        for server, count in zip(servers, before, strict=True):
            assert server.service.generated > count


def test_without_any_server_the_run_gives_up_after_its_patience(farm, server):
    with started(server.url, timeout=2.0, patience=1.5) as engine:
        farm.kill(server)
        begin = time.monotonic()
        with pytest.raises(RolloutError, match=r"resume\s+the run from its last checkpoint"):
            engine.generate(MANY, contract.SAMPLING, 1)
        assert time.monotonic() - begin < 60
    with pytest.raises(Unavailable, match=server.url):
        contract.connect([server.url], CONFIG, start_patience=0.0)


def test_a_503_costs_its_own_request_and_nothing_else(proxy):
    with started(proxy.url, per_server=4) as engine:
        failing = proxy.spoil(SAMPLES, status(503), after=5)
        check(engine)
        assert failing.met.is_set()
        assert engine.counts["failed_requests"] == 1
        assert engine.counts["requests"] == len(MANY) + 1
        assert engine.counts["discarded_groups"] == 0
        assert engine.counts["sync/count"] == 1
    assert proxy.seen["/start_weight_update"] == 1


# --- paused, and by nobody who lives ---------------------------------------------------------------


def test_what_a_killed_trainer_left_paused_the_next_one_resumes(server, folders, caplog):
    sizes = {"vocab_size": world.VOCAB, "eos_id": world.EOS, "max_length": contract.MAX_LENGTH}
    leave_paused(server.url, folders[True], **sizes)
    assert server.service.paused
    check_next_trainer(server.url)
    assert f"{server.url} was paused" in caplog.text


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        *(("/resume", fault) for fault in (undelivered, unanswered, status(503))),
        *(("/pause", fault) for fault in (held, unanswered)),
    ],
)
def test_a_pause_or_resume_that_is_lost_or_late_leaves_no_server_paused(proxy, path, fault):
    with contract.connect([proxy.url], CONFIG, **HASTY) as engine:
        lost = proxy.spoil(path, fault)
        engine.publish(FIRST, 1)
        check(engine)
        assert lost.met.is_set()


def test_an_engine_that_is_closed_while_it_revives_a_server_leaves_it_running(
    farm, server, proxy, stack
):
    engine = stack.enter_context(started(proxy.url, farm.start().url, **HASTY))
    pause = proxy.spoil("/pause", held)
    farm.reset(server)
    check(engine)
    assert pause.met.wait(LONG)
    assert server.service.paused
    engine.close()
    assert not server.service.paused
    check_next_trainer(server.url)


# --- pushes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True])
def test_a_model_that_is_half_loaded_is_not_sampled_under_its_old_label(farm, restored):
    broken, well = farm.start(), farm.start()
    service, install = broken.service, broken.service._install

    def breaks(release):
        if release.version == 2 or (release.version == 1 and not restored):
            serve_instead(service, {**FIRST, "norm": SECOND["norm"]})
            raise MemoryError
        install(release)

    with started(broken.url, well.url) as engine:
        service._install = breaks
        try:
            engine.publish(SECOND, 2)
        except RolloutError:
            assert engine.version == 1
        check(engine, *((SECOND, 2) if engine.version == 2 else (FIRST, 1)))
        engine.publish(SECOND, 3)
        check(engine, SECOND, 3)


def test_a_server_that_serves_other_weights_than_it_was_sent_is_quarantined(server):
    load = server.service.model.params_fn
    server.service.model = dataclasses.replace(
        server.service.model, params_fn=lambda tensors: {**load(tensors), "norm": FOREIGN["norm"]}
    )
    with contract.connect([server.url], CONFIG) as engine:
        with pytest.raises(Unproven, match="serves other weights than it was sent"):
            engine.publish(FIRST, 1)
        with pytest.raises(RuntimeError, match="before publish"):
            engine.generate(world.PROMPTS, contract.SAMPLING, 1)


def test_what_one_server_refuses_none_serves(farm):
    a, b = farm.start(), farm.start()
    with started(a.url, b.url) as engine:
        whole = b.service.model
        b.service.model = dataclasses.replace(whole, shapes={})
        with pytest.raises(PublishRefused, match="it goes on serving version 1"):
            engine.publish(SECOND, 2)
        b.service.model = whole
        assert engine.version == 1
        for _ in range(3):
            check(engine)
        engine.publish(SECOND, 2)
        check(engine, SECOND, 2)


def in_thread(work):
    ended = []

    def run():
        try:
            ended.append(work())
        except (RolloutError, RuntimeError) as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_a_push_drains_what_is_in_flight(server, proxy):
    with started(proxy.url, per_server=4) as engine:
        (state,) = engine._fleet.servers
        reached = threading.Event()

        def hold():
            reached.set()
            while state.observed.ready and engine.version == 1:
                time.sleep(0.01)

        proxy.spoil(SAMPLES, after(hold), after=5, count=EVERY)
        thread, ended = in_thread(lambda: engine.generate(MANY, contract.SAMPLING, 1))
        assert reached.wait(30)
        engine.publish(SECOND, 2)
        thread.join(LONG)
        by_version = {1: [], 2: []}
        for group in ended[0]:
            (version,) = {c.policy_version for c in group.completions}
            by_version[version].append(group)
        assert all(by_version.values())
        assert world.worst_gap(CONFIG, FIRST, by_version[1]) < contract.EXACT
        assert world.worst_gap(CONFIG, SECOND, by_version[2]) < contract.EXACT


def test_a_server_that_is_revived_during_a_push_comes_back_with_what_is_new(farm, server, proxy):
    with started(proxy.url, timeout=20.0, patience=5.0) as engine:
        reviving = proxy.spoil("/pause", held)
        farm.reset(server)
        drawing, groups = in_thread(lambda: engine.generate(MANY, contract.SAMPLING, 1))
        assert reviving.met.wait(LONG)
        pushing, _ = in_thread(lambda: engine.publish(SECOND, 2))
        reviving.released.set()
        for thread in (pushing, drawing):
            thread.join(LONG)
        assert groups
        assert not isinstance(groups[0], Exception), groups[0]
        check(engine, SECOND, 2)


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
    with ExitStack() as stack:
        farm = Farm(folders, stack)
        server = farm.start()
        proxy = stack.enter_context(Proxy(server.url))
        yield farm, server, proxy, stack.enter_context(started(proxy.url, **HASTY))


@pytest.mark.parametrize("route", ODD)
def test_odd_answers_during_a_revival_do_not_end_it(revived, route):
    farm, server, proxy, engine = revived
    for name, fault in ODD[route].items():
        farm.reset(server)
        odd = proxy.spoil(route, fault)
        check(engine, prompts=world.PROMPTS)
        assert odd.met.is_set(), name


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
    with started(proxy.url, transport="url") as engine:
        check(engine)
        assert sum(n for path, n in shares[0].seen.items() if path.endswith(file)) > 1


# --- set-ups under which log-probs would be wrong --------------------------------------------------


def test_what_would_make_log_probs_wrong_is_refused(farm, server):
    with started(farm.start(raw_log_probs=True).url) as engine:
        assert engine.capabilities[0].log_probs == "raw"
        check(engine)
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            engine.generate(MANY, Sampling(0.7, 12, 4), 1)
    with started(server.url) as engine, pytest.raises(Refused, match="raise its --max-model-len"):
        engine.generate(MANY, Sampling(1.0, world.POSITIONS, 4), 1)
    with pytest.raises(Refused, match="serves a vocabulary of 16, the trainer's model has 17"):
        contract.connect([server.url], dataclasses.replace(CONFIG, vocab_size=17))
    with pytest.raises(Refused, match="start it with a larger --max-model-len"):
        contract.connect([server.url], CONFIG, max_length=world.POSITIONS + 1)
    with pytest.raises(Refused, match="'keep'"):
        contract.connect([farm.start(native=False).url], CONFIG, in_flight="keep")
    with pytest.raises(Refused, match="VLLM_SERVER_DEV_MODE=1"):
        contract.connect([farm.start(dev_mode=False).url], CONFIG, attempts=2)


def test_what_is_not_compared_is_said(server):
    with contract.connect([server.url], CONFIG, texts=()) as engine:
        assert "tokenizer      not compared: no texts" in engine.table()

    def absent(_):
        raise BadRequest("Not Found", 404)

    server.service.detokenize = absent
    with contract.connect([server.url], CONFIG) as engine:
        assert "tokenizer      not compared: no /detokenize" in engine.table()


def test_the_same_seed_gives_the_same_samples_where_the_server_takes_one(server):
    with started(server.url) as engine:
        assert engine.capabilities[0].seeds
        drawn = [engine.generate(MANY, contract.SAMPLING, seed) for seed in (1, 1, 2)]
    first, again, other = (
        np.concatenate([c.token_ids for g in groups for c in g.completions]) for groups in drawn
    )
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()
