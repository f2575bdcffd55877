"""`ATEN`: every operator of PyTorch that a trace knows, by its name without its overload."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mirage_cli.spec.aten import (
    cells,
    creation,
    elementwise,
    lookups,
    losses,
    norms,
    products,
    reductions,
    shapes,
    updates,
    windows,
)
from mirage_cli.spec.aten.row import Row

KINDS = (elementwise, creation, shapes, reductions, lookups, updates, norms, products, windows, losses, cells)
ATEN: Mapping[str, Row] = MappingProxyType({name: row for kind in KINDS for name, row in kind.aten.items()})
