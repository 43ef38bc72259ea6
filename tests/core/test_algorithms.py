"""Every named method is whole, true to what it declares, and moved by each of its knobs."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import objectives
from ogrpo.core.aggregate import combine, mean
from ogrpo.core.algorithms import (
    ADVANTAGES,
    ALGORITHMS,
    CENTERS,
    GATES,
    KEY,
    KLS,
    PROXIMAL,
    REDUCTION_KNOBS,
    REDUCTIONS,
    REFERENCE,
    VALUES,
    WEIGHTS,
    Advantage,
    Algorithm,
    LooksAt,
    with_parts,
)
from ogrpo.core.algorithms.base import READS, away_from_one, published, reference_kl
from ogrpo.core.divergences import k3
from ogrpo.core.returns import Trajectory, squared_error
from tests.core.cases import arrays, batch_of, of_each_prompt, problem
from tests.names import settings

every = pytest.mark.parametrize("name", ALGORITHMS)
REWARDS = jnp.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
KEYS = jax.random.key(3)


def loss_of(algorithm, knobs, log_probs, batch, rewards=REWARDS):
    known = trajectory(batch)
    return mean(algorithm(log_probs, batch, rewards, knobs, KEYS, known, values=known.values))


def published_knobs(algorithm):
    """The knobs that a call must name: the length, where the method has one."""
    return {"length": 8.0} if "length" in algorithm.knobs else {}


def trajectory(batch):
    """Rewards of steps, of which each completion has two or fewer."""
    places = np.arange(batch.mask.shape[-1])
    ends = batch.mask & jnp.asarray((places % 2 == 1) & (places < 4))[None, None]
    n, g, t = np.ogrid[tuple(map(slice, batch.mask.shape))]
    earned = jnp.asarray((n + 2 * g + 3 * t) % 4, float)
    return Trajectory(batch.mask, earned, ends, earned / 4)


@pytest.fixture(scope="module")
def inputs():
    return problem()[:2]


def loss_reads(algorithm, log_probs, batch, **knobs):
    """Returns what moves the gradient of the loss with its KL term, and what is declared to."""
    knobs = settings(algorithm, EDGES.get(algorithm.name, {}) | knobs)
    rng = np.random.default_rng(2)

    def gradient(batch):
        def total(x):
            losses = algorithm.token_loss(x, batch, knobs)
            return jnp.sum(losses + (algorithm.kl_loss(x, batch, knobs) if knobs["beta"] else 0))

        return jax.grad(total)(log_probs)

    still, moved = gradient(batch), set()
    for what, name in READS.items():
        far = 3 * jnp.asarray(rng.normal(size=(*log_probs.shape[:-1], 1)), float)
        other = batch._replace(**{name: getattr(batch, name) + far})
        moved |= set() if np.array_equal(gradient(other), still) else {what}
    return moved, algorithm.inputs(knobs) & {*READS}


@every
def test_gradients_depend_on_what_a_method_declares_and_on_nothing_else(name, inputs):
    moved, declared = loss_reads(ALGORITHMS[name], *inputs, beta=0.0)
    assert moved == declared


PARTS = {"weight": WEIGHTS, "gate": GATES, "kl": KLS}
BANDS = {"geometric": {"geometric_low": 0.5, "geometric_high": 2.0}, "k3": {"k3_limit": 1.0}}
"""Where as published a gate leaves nothing of so far a batch."""


@pytest.mark.parametrize(("kind", "part"), [(kind, x) for kind in PARTS for x in PARTS[kind]])
def test_gradients_depend_on_what_a_part_declares_and_on_nothing_else(kind, part, inputs):
    knobs = BANDS.get(part, {}) if kind == "gate" else {}
    for name in ("grpo",) if part == "unit" else ("grpo", "reinforce"):  # which has no ratio
        algorithm = with_parts(ALGORITHMS[name], **{kind: part})
        moved, declared = loss_reads(algorithm, *inputs, beta=0.1, **knobs)
        no_slope = {REFERENCE} if part in ("k1", "weighted_k1") else set()  # their gradient is pi's
        assert moved == declared - no_slope


def keywords(part):
    """The numbers that a part takes by keyword, less those that are bound."""
    part = part.fn if isinstance(part, Advantage) else part
    parameters = inspect.signature(part).parameters.values()
    names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    return names - {"beta", "counted", "center_fn", *getattr(part, "keywords", {})}


@every
def test_each_knob_has_a_source_and_is_of_the_parts_that_take_it(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name
    assert algorithm.summary
    assert algorithm.source
    assert "beta" in algorithm.knobs
    assert all(knob.source for knob in algorithm.knobs.values())
    assert set(settings(algorithm)) == set(algorithm.knobs)
    for part in ("loss", "advantage", "reduction", "critic"):
        taken = {n for n, knob in algorithm.knobs.items() if part in knob.parts and n != "beta"}
        assert taken == (keywords(of) if (of := getattr(algorithm, part)) else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.adds_up])
def test_prompts_add_up(name, inputs):
    algorithm, (log_probs, batch) = ALGORITHMS[name], inputs
    # Uniform numbers are drawn and rewards are whitened for the whole batch, before it is cut.
    if KEY in algorithm.reads or name.startswith("reinforce_pp"):
        algorithm = with_parts(algorithm, advantage="centered")
    knobs = settings(algorithm)
    known = trajectory(batch)
    whole = algorithm(log_probs, batch, REWARDS, knobs, trajectory=known, values=known.values)

    def part(x, rows, rewards, here):
        return algorithm(x, rows, rewards, knobs, trajectory=here, values=here.values)

    parts = of_each_prompt(part, *inputs, REWARDS, known)
    np.testing.assert_allclose(combine(*parts), whole, rtol=1e-5)


EDGES = {
    "kl_cov": {"share": 0.9},
    "clip_cov": {"share": 0.3, "cov_low": -9.0, "cov_high": 9.0},
    "m2po_released": {"eps_low": 0.01, "eps_high": 0.01},
}
"""Where what a method looks at decides in so small a batch."""


def seen_by(algorithm, log_probs, batch):
    """Returns the inputs on which the losses of the first completion depend, by changing each."""
    knobs = settings(algorithm, EDGES.get(algorithm.name, {}))
    scale = 4 if algorithm.name in ("kl_cov", "clip_cov") else 1

    def first(change):
        others = jax.tree.map(lambda x: x + change(x), (log_probs, batch._replace(mask=None)))
        moved = others[1]._replace(mask=batch.mask)
        return algorithm.token_loss(others[0], moved, knobs)[0, 0]

    rng = np.random.default_rng(0)

    def noise(x, where):
        return jnp.where(where, jnp.asarray(rng.normal(size=x.shape, scale=scale), x.dtype), 0)

    n, g, _ = jnp.ogrid[: log_probs.shape[0], : log_probs.shape[1], :1]
    still = first(jnp.zeros_like)
    if not np.allclose(still, first(lambda x: noise(x, n > 0)), rtol=1e-5):
        return LooksAt.BATCH
    alone = np.allclose(still, first(lambda x: noise(x, (n == 0) & (g > 0))), rtol=1e-5)
    return LooksAt.COMPLETION if alone else LooksAt.GROUP


@every
def test_it_looks_no_further_than_it_declares(name, inputs):
    assert seen_by(ALGORITHMS[name], *inputs) == ALGORITHMS[name].looks_at


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_looks_no_further_than_it_declares(name, inputs):
    for base in ("reinforce", "opmd_pairwise"):
        algorithm = with_parts(ALGORITHMS[base], weight=name)
        assert seen_by(algorithm, *inputs) == algorithm.looks_at


@every
def test_methods_that_ignore_zero_advantage_cost_nothing_where_nothing_was_earned(name, inputs):
    algorithm, (log_probs, batch) = ALGORITHMS[name], inputs
    batch = batch._replace(advantages=jnp.zeros_like(batch.advantages))
    losses = algorithm.token_loss(log_probs, batch, settings(algorithm, {"beta": 0.0}))
    assert algorithm.ignores_zero_advantage == (not np.any(losses))


@pytest.mark.slow
def test_no_two_methods_are_the_same():
    """Rewards of both signs: with 0 and 1 TOPR imitates successes, as RAFT does."""
    mixed = jnp.array([[1.0, -1.0, -1.0, 0.5], [-1.0, -1.0, 1.0, -1.0]])
    a = arrays(spread=1.0)
    log_probs, batch = jnp.asarray(a.lp, float), batch_of(a)
    seen = {
        name: np.asarray(
            jax.grad(lambda x, a=a: loss_of(a, published_knobs(a), x, batch, mixed))(log_probs)
        )
        for name, a in ALGORITHMS.items()
    }
    for one, other in ((a, b) for a in seen for b in seen if a < b):
        assert not np.allclose(seen[one], seen[other], rtol=1e-4, atol=1e-7), (one, other)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ("positive_part", [[0.5, 0, 0, 0.5], [0, 0, 0.75, 0]]),
        ("successes", [[1, 0, 0, 1], [0, 0, 1, 0]]),
        ("lowered_baseline", [[0.6, -0.4, -0.4, 0.6], [-0.15, -0.15, 0.85, -0.15]]),
    ],
)
def test_a_part_is_exchanged_and_told(advantage, expected):
    algorithm = with_parts(ALGORITHMS["dapo"], advantage=advantage)
    knobs = settings(algorithm)
    np.testing.assert_allclose(algorithm.compute_advantages(REWARDS, knobs), expected, atol=1e-6)
    assert algorithm.title(knobs) == f"dapo, advantage {advantage}"


def test_its_own_part_is_no_change():
    grpo = ALGORITHMS["grpo"]
    assert with_parts(grpo, advantage="group_standardized", reduction="sequence", kl="k3") is grpo
    whitened = with_parts(grpo, whiten="tokens")
    assert with_parts(whitened, whiten="tokens") is whitened
    assert with_parts(grpo, gate="geometric").changed == ("gate geometric",)
    off_policy = ALGORITHMS["off_policy_grpo"]
    assert with_parts(off_policy, center="unit") is off_policy
    red_weight, dr_grpo = ALGORITHMS["red_weight"], ALGORITHMS["dr_grpo"]  # parts with knobs
    assert with_parts(red_weight, advantage="exponentially_weighted") is red_weight
    assert with_parts(dr_grpo, reduction="fixed_length") is dr_grpo


def test_knobs_go_with_their_part():
    algorithm = with_parts(ALGORITHMS["red_weight"], advantage="lowered_baseline")
    assert set(algorithm.knobs) == {"shift", "beta"}
    fixed = with_parts(ALGORITHMS["grpo"], reduction="fixed_length")
    with pytest.raises(ValueError, match="needs a value of length"):
        fixed.settings({})


@pytest.mark.parametrize("center", CENTERS)
def test_a_centre_decides_what_is_read(center, inputs):
    algorithm = with_parts(ALGORITHMS["off_policy_grpo"], center=center)
    for reads in loss_reads(algorithm, *inputs):
        assert (PROXIMAL in reads) == (center == "exact")
    log_probs, batch = inputs
    expected = {"exact": objectives.off_policy_grpo, "unit": objectives.grpo}[center]
    ours = algorithm.token_loss(log_probs, batch, settings(algorithm))
    np.testing.assert_array_equal(ours, expected(log_probs, batch))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_weight_starts_the_ratio_at_the_proximal_policy(weight, inputs):
    log_probs, batch = inputs
    algorithm = with_parts(ALGORITHMS["grpo"], weight=weight)
    assert PROXIMAL in algorithm.reads
    knobs = settings(algorithm)
    bounds = {"decay": 1.0, "cap": 1.0} if weight == "trace" else {"cap": 2.0}
    weight_fn = partial(WEIGHTS[weight].fn, **bounds if WEIGHTS[weight].knobs else {})
    drift = jnp.where(batch.mask, batch.proximal_log_probs - batch.behavior_log_probs, 0)
    fresh = batch._replace(behavior_log_probs=batch.proximal_log_probs)
    expected = weight_fn(drift, batch.mask) * objectives.grpo(log_probs, fresh)
    ours = algorithm.token_loss(log_probs, batch, knobs)
    np.testing.assert_allclose(ours, jnp.where(batch.mask, expected, 0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kl", KLS)
def test_the_kl_term_is_exchanged_alone(kl, inputs):
    log_probs, batch = inputs
    algorithm = with_parts(ALGORITHMS["grpo"], kl=kl)
    knobs = settings(algorithm, {"beta": 0.5})
    ours = algorithm.kl_loss(log_probs, batch, knobs)
    delta = np.where(batch.mask, batch.ref_log_probs - log_probs, 0)
    plain = {"k1": -delta, "k2": delta**2 / 2, "k3": np.expm1(delta) - delta}[kl[-2:]]
    ratio = np.exp(np.where(batch.mask, log_probs - batch.behavior_log_probs, 0))
    expected = 0.5 * plain * (ratio if kl.startswith(("importance", "weighted")) else 1)
    np.testing.assert_allclose(ours, np.where(batch.mask, expected, 0), rtol=1e-5, atol=1e-6)


def test_the_kl_term_is_k3_unless_exchanged(inputs):
    ours, expected = (term(*inputs) for term in (ALGORITHMS["grpo"].kl, reference_kl(k3)))
    np.testing.assert_array_equal(ours, expected)


def test_the_importance_corrected_kl_has_its_gradient_through_the_ratio(inputs):
    log_probs, batch = inputs
    moving, held = (
        jax.grad(lambda x, kl=kl: jnp.sum(KLS[kl](x, batch)[batch.mask]))(log_probs)
        for kl in ("importance_k3", "weighted_k3")
    )
    assert np.abs(np.where(batch.mask, moving - held, 0)).max() > 1e-2


REFUSED = [
    (lambda: with_parts(ALGORITHMS["grpo"], advantage="best"), "no advantage 'best'"),
    (lambda: with_parts(ALGORITHMS["grpo"], gate=("best",)), "there is no gate 'best'"),
    (lambda: with_parts(ALGORITHMS["grpo"], gate=("token", "token")), "name each once"),
    (lambda: again(gate="token"), "gates token: name each once"),
    (lambda: again(bonus="entropy"), "grpo has the bonus entropy already"),
    (lambda: with_parts(ALGORITHMS["grpo"], center="unit"), "grpo has no centre"),
    (lambda: with_parts(ALGORITHMS["decoupled"], weight="plain"), "correct it twice"),
    (lambda: ALGORITHMS["reinforce"].settings({"eps_low": 0.1}), "reinforce has no eps_low"),
    (lambda: ALGORITHMS["grpo"].settings({"eps_low": -0.1}), r"eps_low must be >= 0, got -0\.1"),
    (lambda: ALGORITHMS["grpo"].settings({"beta": -1.0}), "beta must be >= 0"),
    (lambda: Algorithm("mine", objectives.grpo, reads=frozenset({"critic"})), "mine reads critic"),
    (lambda: Algorithm("mine", objectives.grpo, reads=frozenset({VALUES})), "mine has no critic"),
    (
        lambda: Algorithm("mine", objectives.grpo, critic=squared_error),
        r"mine has a critic: .* and reads 'values'",
    ),
    (
        lambda: with_parts(ALGORITHMS["grpo"], whiten="tokens").compute_advantages(REWARDS, {}),
        r"grpo is whitened over tokens: give trajectory=Trajectory\(mask\)",
    ),
    (lambda: undeclared().settings({}), r"reads proximal_log_probs.* name the policy in `reads`"),
    (lambda: call("dapo", epsilon=0.5), r"dapo has no epsilon. Did you mean 'eps_(low|high)'\?"),
    (lambda: call("dr_grpo"), "dr_grpo needs a value of length"),
    (lambda: call("red_drop"), r"red_drop needs random numbers: give key=jax\.random\.key"),
    (
        lambda: call("ppo"),
        r"ppo reads more than rewards: give trajectory=Trajectory\(mask, values\)",
    ),
    (lambda: call("grpo_process"), r"trajectory=Trajectory\(mask, step_rewards, step_ends\)"),
    (lambda: call("ppo", known=True), r"ppo learns values: give values="),
    (lambda: call("grpo"), r"grpo with beta 0\.04 reads ref_log_probs: give them in the batch"),
    (lambda: call("dpo"), r"the loss reads ref_log_probs, and the batch has none"),
    (lambda: call("decoupled"), r"the loss reads proximal_log_probs, and the batch has none"),
    (lambda: call("dapo", shape=(4,)), r"rewards are \[4\], but log_probs \[2, 4, 5\]"),
    (lambda: call("dapo", shape=(2, 4, 5)), r"rewards are \[2, 4, 5\], but log_probs \[2, 4, 5\]"),
]


def again(**part):
    return with_parts(with_parts(ALGORITHMS["grpo"], **part), **part)


def undeclared():
    """The trainer scores what is declared: anything else would silently be pi_theta."""
    knobs = away_from_one("here", cap=2.0) | published("here", beta=0.0)
    assert [knob.at_one for knob in knobs.values()] == [False, True]
    return Algorithm("mine", objectives.decoupled, knobs=knobs)


def call(name, *, shape=(2, 4), known=False, **knobs):
    """The whole method on what every batch has: no reference, no proximal policy, nothing along."""
    batch = batch_of(arrays())._replace(proximal_log_probs=None, ref_log_probs=None)
    log_probs, rewards = batch.behavior_log_probs, jnp.zeros(shape)
    return ALGORITHMS[name](
        log_probs, batch, rewards, knobs, trajectory=trajectory(batch) if known else None
    )


@every
def test_a_call_without_knobs_is_the_published_method(name, inputs):
    algorithm, (log_probs, batch) = ALGORITHMS[name], inputs
    bare = loss_of(algorithm, published_knobs(algorithm), log_probs, batch)
    assert np.isfinite(bare)
    assert bare == loss_of(algorithm, settings(algorithm), log_probs, batch)


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_part_that_is_exchanged_brings_its_knobs():
    for part in ADVANTAGES.values():
        assert set(part.knobs) == keywords(part)
    for name, part in REDUCTIONS.items():
        assert set(REDUCTION_KNOBS.get(name, {})) == keywords(part)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_says_whether_groups_of_equal_rewards_have_none(name):
    """Beside a group of mixed rewards, with completions of one token and of the most."""
    part, rewards = ADVANTAGES[name], jnp.array([[0.0] * 4, [1.0] * 4, [1.0, 0.0, 0.0, 0.0]])
    mask = jnp.asarray(np.broadcast_to(np.arange(6) < np.c_[[1, 6, 1, 6]], (3, 4, 6)))
    known = trajectory(batch_of(arrays())._replace(mask=mask))
    read = [KEYS if what == KEY else known for what in part.reads]
    values = {n: 6.0 if knob.default is None else knob.default for n, knob in part.knobs.items()}
    credits = [part(rewards, *read, **{n: x * v for n, v in values.items()}) for x in (1, 1.5)]
    silent = all(np.abs(credit[:2]).max() <= 1e-5 for credit in credits)  # less is rounding
    assert part.zero_when_equal == silent
