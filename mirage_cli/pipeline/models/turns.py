"""Tensors that a graph fills part by part: what is read of a part is what was written there, and many parts are one
concatenation. Else each step of a loop would write the whole anew.

    y = select_scatter(select_scatter(zeros, a, 0, 0), b, 0, 1) ...    -->    y = cat([unsqueeze(a, 0), ...], 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # torch's graphs and nodes, which have few types

import torch

from mirage_cli.pipeline.models.passes import aliased_results
from mirage_cli.pipeline.models.updates import Update, update_of, view_of
from mirage_cli.spec.aten.row import overloadless

aten = torch.ops.aten
MANY = 8
"""So many parts may well be filled in one region, which writes the whole once."""


@dataclass(frozen=True)
class Turn:
    """A part that a node writes: some places of one axis."""

    node: Any
    dim: int
    places: range
    update: Update


def filled_in_turns(graph: torch.fx.Graph) -> None:
    """Has the graph write what is filled in many parts at once. Results that share memory stay as they are."""
    aliased = aliased_results(graph)
    for n in [*graph.nodes]:
        if n.op == "call_function" and n not in aliased and (value := read_back(n)) is not None:
            n.replace_all_uses_with(value)
            graph.erase_node(n)
    for n in reversed([*graph.nodes]):
        turns = turns_of(n) if n.users and n not in aliased else []  # no users, where it is gone
        if len(turns) > MANY:
            joined(graph, turns)


def turn_of(node: Any) -> Turn | None:
    """What a node writes, if that is one part, of one axis, in which places follow each other."""
    if node.op != "call_function" or not overloadless(node.target).endswith("_scatter"):
        return None
    update = update_of(node)
    if update is None or len(update.given) != 1 or not isinstance(places := update.indices[-1], range):
        return None
    own = node.meta["val"].shape[update.given[0]]
    fits = places.step == 1 and len(places) > 0 and isinstance(own, int)
    return Turn(node, update.given[0], places, update) if fits else None


def turns_of(last: Any) -> list[Turn]:
    """The parts that nodes write one behind the other along one axis, each in its own places, the last first. What lies
    between two is read by the next alone."""
    found: list[Turn] = []
    taken = set[int]()
    turn = turn_of(last)
    while turn is not None and turn.dim == (found or [turn])[0].dim and not taken & {*turn.places}:
        found.append(turn)
        taken |= {*turn.places}
        before = turn.node.args[0]
        if not {*before.users} <= {turn.node, *turn.update.read}:
            break
        turn = turn_of(before)
    return found


def joined(graph: torch.fx.Graph, turns: Sequence[Turn]) -> None:
    """A concatenation in the place of the last of these parts."""
    last, dim, base = turns[0].node, turns[0].dim, turns[-1].node.args[0]
    size, parts, end = last.meta["val"].shape[dim], list[Any](), 0

    def call(operator: Any, *args: Any) -> Any:
        new = graph.call_function(operator, args)
        values = torch.fx.map_arg(args, lambda n: n.meta["val"])
        new.meta["val"] = operator(*values)
        return new

    with graph.inserting_before(last):
        for turn in sorted(turns, key=lambda x: x.places.start):
            if turn.places.start > end:
                parts.append(call(aten.slice.Tensor, base, dim, end, turn.places.start))
            part = turn.update.value
            for operator, args in turn.update.turned:
                part = call(operator, part, *args)
            shape = [len(turn.places) if d == dim else n for d, n in enumerate(last.meta["val"].shape)]
            parts.append(part if [*part.meta["val"].shape] == shape else call(aten.expand.default, part, shape))
            end = turn.places.stop
        if end < size:
            parts.append(call(aten.slice.Tensor, base, dim, end, size))
        new = call(aten.cat.default, parts, dim)
    last.replace_all_uses_with(new)
    for turn in turns:
        for n in (turn.node, *turn.update.read):
            if not n.users:
                graph.erase_node(n)


def read_back(node: Any) -> Any:
    """What a view reads that was written into that part, where other parts were written behind it; None where that is
    not known."""
    if overloadless(node.target) not in ("aten.select", "aten.slice"):
        return None
    x: Any = node.args[0]
    view = view_of(x, node.args[1:], node)
    while view is not None and (turn := turn_of(x)) is not None and turn.dim == view.dim:
        if turn.places == view.places:
            value = turn.update.value
            same = bool(turn.update.turned) == view.selected and value.meta["val"].shape == node.meta["val"].shape
            return value if same else None
        if {*turn.places} & {*view.places}:
            return None
        x = x.args[0]
    return None
