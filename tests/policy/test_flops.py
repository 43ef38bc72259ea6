"""FLOPs and bytes against hand-worked cases and the products of the traced programs."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from ogrpo.kernels.attention import kernel, step_of
from ogrpo.kernels.attention.blocked import blocked_attention
from ogrpo.learner.state import join
from ogrpo.policy import completion_log_probs, flops, lora, sample
from ogrpo.policy.decoder import keep_products, param_shapes
from ogrpo.policy.flops import Adapter, Workload, padded
from ogrpo.policy.log_probs import token_log_probs
from ogrpo.policy.packing import packed_log_probs_and_entropy
from tests.policy.counting import computed_flops
from tests.policy.test_packing import make_groups, packed
from tests.policy.tiny import FAMILIES, make_config, make_params, ragged_batch

pytestmark = pytest.mark.slow

SHAPE = {"n": 3, "g": 4, "p": 7, "t": 5}
LAYOUT = padded(**SHAPE)
MANY = {"n": 2, "g": 40, "p": 3, "t": 2}
"""First tokens that are counted once a prompt."""


def full_batch(**shape):
    return jax.tree.map(jnp.ones_like, ragged_batch(make_config(), **shape))


def product_flops(jaxpr):
    """2 x multiply-accumulates of a jaxpr's products, those of a scan at each of its turns."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * depth * eqn.outvars[0].aval.size
        repeats = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += repeats * sum(map(product_flops, jaxprs_in_params(eqn.params)))
    return total


def traced_flops(function, *arguments):
    return product_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


KEEP = {
    "none": jax.checkpoint_policies.everything_saveable,
    "products": keep_products,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def loss(config, remat, max_logits=flops.MAX_LOGITS, **functions):
    fixed = {"log_probs_fn": partial(token_log_probs, max_logits=max_logits), **functions}

    def total(params, batch):
        log_probs = completion_log_probs(params, config, batch, 1.0, keep_fn=KEEP[remat], **fixed)
        return jnp.sum(log_probs)

    return total


def test_bytes_worked_by_hand():
    """d 4, f 6, one head of 2, V 10, one layer, biases, tied."""
    sizes = {"hidden_size": 4, "intermediate_size": 6, "num_heads": 1, "num_kv_heads": 1}
    config = make_config(**sizes, head_dim=2, vocab_size=10, num_layers=1)
    # Embedding 40; attention 32 and 6 biases; MLP 72; norms 2 x 4 + 4.
    assert flops.parameters(config) == 40 + 38 + 72 + 12
    # Keys and values of one head of 2.
    assert flops.cache_bytes_per_token(config, 2) == 8
    # 7 tokens: the input (4); with products also q, k, v (2 each), o (4), gate and up (6 each).
    layout = padded(n=1, g=2, p=3, t=2)
    assert flops.activation_bytes(config, layout, itemsize=4, remat="full") == 4 * 7 * 4
    assert flops.activation_bytes(config, layout, itemsize=4, remat="products") == 4 * 7 * 26
    assert flops.logits_bytes(config, layout) == 4 * 10 * 4
    assert flops.logits_bytes(config, layout, max_logits=19) == 4 * 10
    assert flops.score_bytes(config, layout) == 4 * 29


def test_chunks_of_logits_are_computed_again():
    config, rows = make_config(), 16  # 60 rows in 4 chunks
    limit = rows * config.vocab_size
    gradient = jax.grad(loss(config, "products", limit))
    traced = traced_flops(gradient, param_shapes(config), full_batch(**SHAPE))
    again = flops.recompute_flops(config, LAYOUT, remat="products", max_logits=limit)
    assert (flops.forward_flops(config, LAYOUT) * 3 + again).total == traced
    whole = flops.recompute_flops(config, LAYOUT, remat="products")
    assert again.head == flops.forward_flops(config, LAYOUT).head == 2 * 16 * 11 * 60
    assert whole.head == 0


def adapted(config, remat, adapter, shape, **functions):
    """A loss of the trained parameters first, and the shapes of its arguments."""
    total, batch = loss(config, remat, **functions), full_batch(**shape)
    if adapter is None:
        return total, (param_shapes(config), batch)
    draw = partial(lora.split, rank=adapter.rank, alpha=1.0, targets=adapter.targets)
    split = jax.eval_shape(draw, param_shapes(config), jax.random.key(0))
    return lambda trained, frozen, batch: total(join(trained, frozen), batch), (*split, batch)


@pytest.mark.parametrize(
    ("family", "shape", "remat", "choice"),
    [
        *((family, SHAPE, remat, None) for family, remat in zip(FAMILIES, KEEP, strict=True)),
        *(("Qwen2", SHAPE, remat, "all") for remat in KEEP),
        *(("Qwen2", SHAPE, "products", "attention"), ("Qwen2", SHAPE, "full", "mlp")),
        ("Qwen2", MANY, "products", None),
    ],
)
def test_update_flops_are_the_products_of_the_traced_gradient(family, shape, remat, choice):
    config, layout = make_config(family, num_layers=3), padded(**shape)
    adapter = None if choice is None else Adapter(2, lora.TARGETS[choice])
    function, shapes = adapted(config, remat, adapter, shape)
    forward = flops.forward_flops(config, layout, adapter=adapter).total
    update = flops.update_flops(config, layout, remat=remat, adapter=adapter).total
    assert traced_flops(function, *shapes) == forward
    assert traced_flops(jax.grad(function), *shapes) == update
    assert choice is None or update < flops.update_flops(config, layout, remat=remat).total


@pytest.mark.parametrize(
    ("remat", "rank", "attention"),
    [
        *(("products", 0, "plain"), ("full", 0, "plain"), ("products", 2, "plain")),
        *(("products", 0, "blocked"), ("full", 0, "blocked")),
    ],
)
def test_layers_keep_activation_bytes_and_rank_numbers_a_token_more(remat, rank, attention):
    """The residuals with an axis of layers that are no parameters; adapters' wide results are none."""
    config = make_config(num_layers=5)
    targets = lora.TARGETS["all"]
    adapter, mix = Adapter(rank, targets) if rank else None, kernel(attention)
    function, shapes = adapted(config, remat, adapter, SHAPE, attention_fn=mix)

    def residuals(trained, *others):
        return jax.vjp(lambda trained: function(trained, *others), trained)[1]

    parameters = {x.shape for x in jax.tree.leaves(shapes[:-1])}
    leaves = jax.tree.leaves(jax.eval_shape(residuals, *shapes))
    layers = [x for x in leaves if x.shape[:1] == (config.num_layers,)]
    kept = [x for x in layers if x.shape not in parameters]
    layout = padded(**SHAPE, step=step_of(attention, 1, "cpu"))
    counted = flops.activation_bytes(config, layout, itemsize=4, remat=remat)
    narrow = 4 * config.num_layers * LAYOUT.tokens * rank * len(targets)
    assert sum(x.size * np.dtype(x.dtype).itemsize for x in kept) == counted + narrow


@pytest.mark.parametrize("remat", ["none", "products", "full"])
def test_a_packed_update_is_its_traced_products(remat):
    config, groups = make_config(), make_groups(4, 3, 5, 40, seed=1)
    _, _, rows, shape = packed(groups, microbatches=2)
    params = param_shapes(config)
    forward = partial(packed_log_probs_and_entropy, keep_fn=KEEP[remat])

    def loss(params):
        return jnp.sum(forward(params, config, rows, 1.0).log_probs)

    layout = Workload(**shape.sizes)
    assert layout.parts > 1
    assert traced_flops(loss, params) == flops.forward_flops(config, layout).total
    counted = flops.update_flops(config, layout, remat=remat)
    assert traced_flops(jax.grad(loss), params) == counted.total


@pytest.mark.parametrize("lengths", [[0] * 12, [6] * 12, [5] * 11])
def test_lengths_of_a_draw_are_of_all_and_lie_within_the_completion(lengths):
    with pytest.raises(ValueError, match=f"{len(lengths)} lengths from {lengths[0]}.*12 .*t = 5"):
        flops.sample_flops(make_config(), **SHAPE, lengths=lengths)


@pytest.mark.parametrize("remat", KEEP)
def test_blocks_are_counted_as_they_are_walked(remat):
    config, step = make_config(num_layers=1), flops.Tile(2, 3)
    walk = partial(blocked_attention, tile=step)

    def total(params, batch):
        how = {"keep_fn": KEEP[remat], "attention_fn": walk}
        return jnp.sum(completion_log_probs(params, config, batch, 1.0, **how))

    shape = {"n": 1, "g": 2, "p": 7, "t": 5}
    arguments = make_params(config), full_batch(**shape)
    layout = padded(**shape, step=step)
    assert computed_flops(total, *arguments) == flops.forward_flops(config, layout).total
    counted = flops.update_flops(config, layout, remat=remat)
    assert computed_flops(jax.grad(total), *arguments) == counted.total


@pytest.mark.parametrize(("least_read", "halvings"), [(None, 0), (2, 0), (3, 2)])
def test_a_draw_is_counted_as_it_happens(least_read, halvings):
    config, sizes = make_config(num_layers=2), {"n": 2, "g": 3, "p": 4, "t": 9}
    how_read = {"least_read": least_read, "halvings": halvings}
    params, batch = make_params(config), full_batch(**sizes)

    def draw(params, ids, mask):
        how = {"temperature": 2.0, "greedy": False, "group_size": 3, "max_tokens": 9, "eos_id": 1}
        return sample(params, config, ids, mask, jax.random.key(0), **how, **how_read)

    prompts = batch.prompt_ids, batch.prompt_mask
    lengths = np.asarray(draw(params, *prompts).mask.sum(-1)).ravel()
    assert len(set(lengths)) > 2
    counted = flops.sample_flops(config, **sizes, lengths=lengths, **how_read)

    def again(params, ids):  # a mask that is known is not asked for its empty rows under trace
        return draw(params, ids, prompts[1])

    assert computed_flops(again, params, prompts[0]) == counted.total
    whole = flops.sample_flops(config, **sizes, lengths=[sizes["t"]] * 6, **how_read)
    assert flops.sample_flops(config, **sizes, **how_read) == whole


def test_an_unknown_remat_is_refused():
    with pytest.raises(ValueError, match="remat is 'some': choose one of none, products, full"):
        flops.update_flops(make_config(), LAYOUT, remat="some")
    with pytest.raises(ValueError, match=r"'none'.*take products or full"):
        flops.activation_bytes(make_config(), LAYOUT, itemsize=4, remat="none")
