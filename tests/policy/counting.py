"""Counts the products that a program computes on its inputs: loops as they turn, branches taken."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

CALLS = ("jaxpr", "call_jaxpr")


def computed_flops(function: Any, *arguments: Any) -> int:
    """2 x multiply-accumulates of the products, the program being carried out step by step."""
    return run(jax.make_jaxpr(function)(*arguments), jax.tree.leaves(arguments))[0]


def traced_flops(function: Any, *arguments: Any) -> int:
    """The same of shapes alone, for a program whose loops all have a length."""
    closed, counts = jax.make_jaxpr(function)(*arguments), []
    jax.eval_shape(lambda *flat: counts.append(run(closed, flat)[0]), *jax.tree.leaves(arguments))
    return counts[0]


def run(closed: Any, arguments: Any) -> tuple[int, list[Any]]:
    """Returns the count and the results of a jaxpr."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    flops = 0
    for eqn in jaxpr.eqns:
        more, results = step(eqn, [value(var) for var in eqn.invars])
        flops += more
        values |= dict(zip(eqn.outvars, results, strict=True))
    return flops, [value(var) for var in jaxpr.outvars]


def step(eqn: Any, inputs: list[Any]) -> tuple[int, list[Any]]:
    name, params = eqn.primitive.name, eqn.params
    if name in ("while", "scan"):
        return {"while": while_, "scan": scan_}[name](params, inputs)
    if name == "cond":
        return run(params["branches"][int(inputs[0])], inputs[1:])
    for inner in CALLS:
        if inner in params:
            return run(params[inner], inputs)
    flops = 0
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(inputs[0].shape[axis] for axis in contracted)
        flops = 2 * depth * eqn.outvars[0].aval.size
    results = eqn.primitive.bind(*inputs, **params)
    return flops, results if eqn.primitive.multiple_results else [results]


def while_(params: Any, inputs: list[Any]) -> tuple[int, list[Any]]:
    a, b = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    flops, state = 0, inputs[b:]
    while run(params["cond_jaxpr"], [*inputs[:a], *state])[1][0]:
        more, state = run(params["body_jaxpr"], [*inputs[a:b], *state])
        flops += more
    return flops, state


def scan_(params: Any, inputs: list[Any]) -> tuple[int, list[Any]]:
    a, b = params["num_consts"], params["num_consts"] + params["num_carry"]
    flops, state, rows = 0, inputs[a:b], []
    turns = range(params["length"])
    for turn in reversed(turns) if params["reverse"] else turns:
        part = [x[turn] for x in inputs[b:]]
        more, results = run(params["jaxpr"], [*inputs[:a], *state, *part])
        flops += more
        state = results[: b - a]
        rows.append(results[b - a :])
    ordered = reversed(rows) if params["reverse"] else rows
    return flops, [*state, *map(jnp.stack, zip(*ordered, strict=True))]
