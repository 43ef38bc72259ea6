"""Counts the products that a program computes on its inputs: loops as they turn, branches taken."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal


def computed_flops(function: Any, *arguments: Any) -> int:
    """2 x multiply-accumulates of the products, counted beside the program in one compilation."""
    closed = jax.make_jaxpr(function)(*arguments)
    count = jax.jit(lambda *flat: run(closed, flat)[0])
    return int(count(*jax.tree.leaves(arguments)))


def run(closed: Any, arguments: Any) -> tuple[Any, list[Any]]:
    """Returns the count and the results of a jaxpr."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def value(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    flops = jnp.int32(0)
    for eqn in jaxpr.eqns:
        more, results = step(eqn, [value(var) for var in eqn.invars])
        flops = flops + more
        values |= dict(zip(eqn.outvars, results, strict=True))
    return flops, [value(var) for var in jaxpr.outvars]


def step(eqn: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    name, params = eqn.primitive.name, eqn.params
    if name in ("while", "scan", "cond"):
        flops, *results = {"while": while_, "scan": scan_, "cond": cond_}[name](params, inputs)
        return flops, results
    for inner in ("jaxpr", "call_jaxpr"):
        if inner in params:
            return run(params[inner], inputs)
    flops = 0
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(inputs[0].shape[axis] for axis in contracted)
        flops = 2 * depth * eqn.outvars[0].aval.size
    results = eqn.primitive.bind(*inputs, **params)
    return flops, results if eqn.primitive.multiple_results else [results]


def while_(params: Any, inputs: list[Any]) -> Any:
    a, b = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def body(state: Any) -> Any:
        flops, results = run(params["body_jaxpr"], [*inputs[a:b], *state[1:]])
        return [state[0] + flops, *results]

    def goes_on(state: Any) -> Any:
        return run(params["cond_jaxpr"], [*inputs[:a], *state[1:]])[1][0]

    return lax.while_loop(goes_on, body, [jnp.int32(0), *inputs[b:]])


def scan_(params: Any, inputs: list[Any]) -> Any:
    a, b = params["num_consts"], params["num_consts"] + params["num_carry"]

    def turn(state: Any, rows: Any) -> Any:
        flops, results = run(params["jaxpr"], [*inputs[:a], *state[1:], *rows])
        return [state[0] + flops, *results[: b - a]], results[b - a :]

    how = {"length": params["length"], "reverse": params["reverse"]}
    state, rows = lax.scan(turn, [jnp.int32(0), *inputs[a:b]], inputs[b:], **how)
    return [*state, *rows]


def cond_(params: Any, inputs: list[Any]) -> Any:
    def taken(branch: Any) -> Any:
        def go(*operands: Any) -> Any:
            flops, results = run(branch, operands)
            return [flops, *results]

        return go

    return lax.switch(jnp.int32(inputs[0]), [*map(taken, params["branches"])], *inputs[1:])
