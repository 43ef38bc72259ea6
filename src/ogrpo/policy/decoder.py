"""The decoder: Flax NNX modules inside, a plain dict of arrays and pure functions outside.

A block works on tokens [N, S, d] and does not know how they are grouped: it hands queries, keys and
values to a `mix` function, which does. The prompt alone, a prompt with its G completions, and one
step of decoding are three such functions over the same block (`log_probs.py`, `sampler.py`).

Parameters are stacked over layers on a leading axis and run by `lax.scan`, so that 24 layers
compile as one. Their names and layouts are those of Hugging Face, `weight` being [out, in]:

    {"embed_tokens": {"weight"}, "norm": {"weight"}, "lm_head": {"weight"} (untied only),
     "layers": {"self_attn": {"q_proj": {"weight", "bias"}, ...}, "mlp": ..., ...}}   # [L, ...]

A projection may have a low-rank one beside it (`lora.py`): {"weight", "lora": {"a", "b", "scale"}}.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from ogrpo.batch import Params
from ogrpo.policy.attention import KEPT, rotate, rotation
from ogrpo.policy.config import MLP, DecoderConfig

MixFn = Callable[[jax.Array, jax.Array, jax.Array, Any], jax.Array]
"""Maps queries [N, S, H, D], keys and values [N, S, K, D] and a context to [N, S, H, D]."""
SpreadFn = Callable[[jax.Array], jax.Array]
"""Pins hidden states [N, S, d] to their places on a mesh of devices."""
KeepFn = Callable[..., bool]
"""A policy of `jax.checkpoint_policies`: whether a layer's result is kept for the backward pass."""

# Storing what lies between matrix products costs more memory traffic than computing it again, on a
# CPU too: half the time of an update of a small model. Attention without scores is the exception.
keep_products = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(KEPT),
)
keep_nothing = jax.checkpoint_policies.nothing_saveable

_INIT_SCALE = 0.02
_FEW_ROWS, _LARGE_WEIGHT = 256, 1 << 16
MANY_UNITS = 1 << 26
"""Units of an MLP, over all tokens, that a layer which keeps nothing computes at once."""


def product(x: jax.Array, weight: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns x W^T for x [M, in] and W [out, in], in `dtype` (default: that of x).

    XLA's CPU backend repacks the right operand of a product at each call, which for the few rows
    of a step of decoding costs more than the product: there a large weight goes left. In bfloat16
    it does so at half the cost whatever the rows.
    """
    dtype = x.dtype if dtype is None else dtype
    always = x.dtype == jnp.bfloat16 and jax.default_backend() == "cpu"
    if weight.size < _LARGE_WEIGHT or (len(x) > _FEW_ROWS and not always):
        return jnp.einsum("mi,oi->mo", x, weight, preferred_element_type=dtype)
    y = jnp.einsum("oi,mi->om", weight, x, preferred_element_type=jnp.float32)
    # The barrier keeps the compiler from turning W x^T back into x W^T.
    return jax.lax.optimization_barrier(y).T.astype(dtype)


class Linear(nnx.Module):
    """y = x W^T + b, with W [out, in] as in torch."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, rngs: nnx.Rngs) -> None:
        """Draws W from a normal of scale 0.02, as the families do; b = 0."""
        self.weight = nnx.Param(_INIT_SCALE * jax.random.normal(rngs.params(), (outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None
        self.lora: LowRank | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [N, S, in] to [N, S, out]."""
        # One row axis: with two, XLA's CPU backend is twice as slow in the weight's gradient.
        rows = x.reshape(-1, x.shape[-1])
        y = product(rows, self.weight[...])
        y = y if self.bias is None else y + self.bias[...][None, :]
        y = y if self.lora is None else y + self.lora(rows)
        return y.reshape(*x.shape[:-1], -1)


class LowRank(nnx.Module):
    """scale B A x (Hu et al. 2021, arXiv:2106.09685, section 4.1), with A [r, in] and B [out, r].

    Both are rounded to the dtype of x at each use.
    """

    def __init__(self) -> None:
        """Makes placeholders for the arrays that `lora.split` draws."""
        self.a, self.b, self.scale = (nnx.Param(jnp.zeros(())) for _ in range(3))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [M, in] to [M, out]."""
        a, b, scale = (param[...].astype(x.dtype) for param in (self.a, self.b, self.scale))
        down = scale * product(x, a)
        # As a batch of one, whose result `keep_products` does not keep: it is as large as that of
        # the matrix beside it, and cheap to compute again.
        return jax.lax.dot_general(down[None], b[None], (((2,), (2,)), ((0,), (0,))))[0]


class RMSNorm(nnx.Module):
    """x / rms(x) * w over the last axis, in float32 (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        """Starts at w = 1."""
        self.weight = nnx.Param(jnp.ones(size))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises [..., size], keeping the dtype."""
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        weight = jnp.expand_dims(self.weight[...], tuple(range(x.ndim - 1)))
        return (wide * scale).astype(x.dtype) * weight


class Attention(nnx.Module):
    """Projections, per-head norms and rotation around a `mix` function."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        """Builds the four projections and, for Qwen3, the two norms."""
        sides, self.head_dim = config.projections, config.head_dim
        self.q_proj = Linear(*sides["q_proj"], bias=config.family.qkv_bias, rngs=rngs)
        self.k_proj = Linear(*sides["k_proj"], bias=config.family.qkv_bias, rngs=rngs)
        self.v_proj = Linear(*sides["v_proj"], bias=config.family.qkv_bias, rngs=rngs)
        self.o_proj = Linear(*sides["o_proj"], rngs=rngs)
        norm = partial(RMSNorm, config.head_dim, config.rms_norm_eps)
        self.q_norm, self.k_norm = (norm(), norm()) if config.family.qk_norm else (None, None)

    def __call__(
        self, x: jax.Array, turn: tuple[jax.Array, jax.Array], mix: MixFn, context: Any
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Maps [N, S, d] to [N, S, d] and the keys and values [N, S, K, D]."""
        queries, keys, values = (
            project(x).reshape(*x.shape[:2], -1, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = rotate(queries, turn), rotate(keys, turn)
        mixed = mix(queries, keys, values, context)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), (keys, values)


class FeedForward(nnx.Module):
    """down(silu(gate(x)) * up(x)), SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        """Builds the three projections."""
        sides = config.projections
        self.gate_proj, self.up_proj, self.down_proj = (
            Linear(*sides[name], rngs=rngs) for name in MLP
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [N, S, d] to [N, S, d]."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        """Builds one layer."""
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        turn: tuple[jax.Array, jax.Array],
        mix: MixFn,
        context: Any,
        *,
        parts: int = 1,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Maps [N, S, d] to [N, S, d] and the keys and values [N, S, K, D].

        The MLP takes the tokens in `parts`, one after the other.
        """
        mixed, keys_values = self.self_attn(self.input_layernorm(x), turn, mix, context)
        x = x + mixed
        rest = (self.post_attention_layernorm, self.mlp)
        return x + (_in_parts(rest, x, parts) if parts > 1 else rest[1](rest[0](x))), keys_values


def _in_parts(modules: tuple[nnx.Module, ...], x: jax.Array, parts: int) -> jax.Array:
    """Applies modules in turn to x [N, S, d], a part of S at a time, computed again backward.

    Gradients of the weights are summed over the parts in float32.
    """
    graph, weights = nnx.split(modules)
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, weights)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights)

    @partial(jax.checkpoint, prevent_cse=False)
    def part(x: jax.Array) -> jax.Array:
        narrow = jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), wide, dtypes)
        for module in nnx.merge(graph, narrow):
            x = module(x)
        return x

    n, size, width = x.shape
    cut = jnp.pad(x, ((0, 0), (0, -size % parts), (0, 0))).reshape(n, parts, -1, width)
    out = jnp.moveaxis(jax.lax.map(part, jnp.moveaxis(cut, 1, 0)), 0, 1)
    return out.reshape(n, -1, width)[:, :size]


class Embedding(nnx.Module):
    """A table [V, d]."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        """Draws the table from a normal of scale 0.02."""
        shape = (config.vocab_size, config.hidden_size)
        self.weight = nnx.Param(_INIT_SCALE * jax.random.normal(rngs.params(), shape))


class Decoder(nnx.Module):
    """Embedding, stacked blocks, final norm, and a head where it is not tied; see `run_layers`."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        """Builds all layers at once, stacked."""

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs=rngs)

        self.embed_tokens = Embedding(config, rngs=rngs)
        self.layers = stacked(rngs)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = None if config.tie_embeddings else Embedding(config, rngs=rngs)


@cache
def _abstract(config: DecoderConfig, adapted: frozenset[str] = frozenset()) -> tuple[Any, Any]:
    """Returns the module's structure and its parameters' shapes, with nothing allocated."""

    def build() -> Decoder:
        decoder = Decoder(config, rngs=nnx.Rngs(params=0))
        for part in (decoder.layers.self_attn, decoder.layers.mlp):
            for name in adapted & vars(part).keys():
                getattr(part, name).lora = nnx.data(LowRank())
        return decoder

    return nnx.split(nnx.eval_shape(build))


def param_shapes(config: DecoderConfig) -> Params:
    """Returns the parameters' tree with a `jax.ShapeDtypeStruct` for each array."""
    return nnx.to_pure_dict(_abstract(config)[1])


def init_params(config: DecoderConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> Params:
    """Returns random parameters: projections and embeddings from N(0, 0.02^2), biases 0, norms 1.

    Args:
      dtype: of every parameter, and so of the computation.

    Returns:
      A nested dict of arrays (see the module's docstring for its names).
    """
    decoder = Decoder(config, rngs=nnx.Rngs(params=key))
    return jax.tree.map(lambda leaf: leaf.astype(dtype), nnx.to_pure_dict(nnx.state(decoder)))


def run_layers(
    params: Params,
    config: DecoderConfig,
    token_ids: jax.Array,
    positions: jax.Array,
    mix: MixFn,
    *,
    contexts: Any = None,
    keep_fn: KeepFn = keep_products,
    spread_fn: SpreadFn = lambda x: x,
) -> tuple[jax.Array, Any]:
    """Embeds tokens and runs every layer.

    Args:
      params: as from `init_params`, or from `unstack`: then the layers are unrolled. Projections
        may have a low-rank one beside them.
      config: their shape.
      token_ids: int [N, S].
      positions: int [N, S], for the rotary embedding.
      mix: attention over the tokens' layout, called once per layer with that layer's context.
      contexts: a pytree with a leading layer axis, or None. With unstacked layers, a list with one
        for each.
      keep_fn: whether a layer's result is kept for the backward pass, the others being computed
        again from its input. The default keeps those of its projections;
        `jax.checkpoint_policies.nothing_saveable` takes the least memory.
      spread_fn: pins hidden states [N, S, d] to a mesh of devices.

    Returns:
      Normalised hidden states [N, S, d], and the keys and values, each [L, N, S, K, D], or a list
      of L pairs [N, S, K, D].
    """
    layers = params["layers"]
    unstacked = isinstance(layers, list)
    one = {**params, "layers": layers[0]} if unstacked else params
    named = [item for part in ("self_attn", "mlp") for item in one["layers"][part].items()]
    adapted = frozenset(name for name, projection in named if "lora" in projection)
    decoder = nnx.merge(_abstract(config, adapted)[0], one)
    graph, stacked = nnx.split(decoder.layers)
    turn = rotation(config, positions)
    units = token_ids.size * config.intermediate_size
    parts = -(-units // MANY_UNITS) if keep_fn is keep_nothing else 1

    def layer(x: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, Any]:
        weights, context = inputs
        x, keys_values = nnx.merge(graph, weights)(x, turn, mix, context, parts=parts)
        return spread_fn(x), keys_values

    step = jax.checkpoint(layer, prevent_cse=False, policy=keep_fn)
    x = spread_fn(decoder.embed_tokens.weight[...][token_ids])
    if not unstacked:
        x, keys_values = jax.lax.scan(step, x, (stacked, contexts))
        return decoder.norm(x), keys_values
    pairs = []
    for inputs in zip(layers, contexts or [None] * len(layers), strict=True):
        x, pair = step(x, inputs)
        pairs.append(pair)
    return decoder.norm(x), pairs


def unstack(params: Params) -> Params:
    """Returns parameters with `layers` as a list, on a CPU without copying them.

    A program that runs stacked layers copies each layer's weights out of the stack, which for the
    few rows of a step of decoding costs as much as using them. The arrays returned may share the
    memory of `params`.
    """
    host = jax.tree.map(np.asarray, params["layers"])

    def layer(index: int) -> Params:
        return jax.tree.map(lambda leaf: jax.device_put(leaf[index], may_alias=True), host)

    return {**params, "layers": [layer(n) for n in range(len(jax.tree.leaves(host)[0]))]}


def head_weight(params: Params) -> jax.Array:
    """Returns the output embedding [V, d], the input's where the two are tied."""
    return params.get("lm_head", params["embed_tokens"])["weight"]
