"""Counts the products that a program computes on its inputs: loops as they turn, branches taken."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal


def computed_flops(function: Any, *arguments: Any) -> int:
    """2 x multiply-accumulates of the products, its control flow being Python's."""
    closed = jax.make_jaxpr(function)(*arguments)
    counts: list[int] = []
    run(closed, jax.tree.leaves(arguments), counts)
    return sum(counts)


def run(closed: Any, arguments: Any, counts: list[int]) -> list[Any]:
    """Returns the results of a jaxpr, and appends the FLOPs of each product."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for eqn in jaxpr.eqns:
        results = step(eqn, [value(var) for var in eqn.invars], counts)
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [value(var) for var in jaxpr.outvars]


def step(eqn: Any, inputs: list[Any], counts: list[int]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == "while":
        a, b = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        state = inputs[b:]
        while run(params["cond_jaxpr"], [*inputs[:a], *state], counts)[0]:
            state = run(params["body_jaxpr"], [*inputs[a:b], *state], counts)
        return state
    if name == "scan":
        a, b = params["num_consts"], params["num_consts"] + params["num_carry"]
        state, rows = inputs[a:b], []
        turns = range(params["length"])
        for turn in reversed(turns) if params["reverse"] else turns:
            results = run(
                params["jaxpr"], [*inputs[:a], *state, *(x[turn] for x in inputs[b:])], counts
            )
            state = results[: b - a]
            rows.append(results[b - a :])
        ordered = reversed(rows) if params["reverse"] else rows
        return [*state, *map(jnp.stack, zip(*ordered, strict=True))]
    if name == "cond":
        return run(params["branches"][int(inputs[0])], inputs[1:], counts)
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if inner is not None:
        return run(inner, inputs, counts)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        depth = math.prod(inputs[0].shape[axis] for axis in contracted)
        counts.append(2 * depth * eqn.outvars[0].aval.size)
    results = eqn.primitive.bind(*inputs, **params)
    return results if eqn.primitive.multiple_results else [results]
