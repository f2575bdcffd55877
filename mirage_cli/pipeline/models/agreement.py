"""Whether the program of a region computes what PyTorch computes: both are evaluated on random data.

PyTorch rounds to the types of the model. The program is evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args  # torch's graphs and nodes have few types

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mirage_cli.ir.program import Program
from mirage_cli.pipeline.models.inplace import calls
from mirage_cli.pipeline.models.named import WHOLE
from mirage_cli.pipeline.models.region import Kept, Region
from mirage_cli.pipeline.models.symbols import PRIMES, placeholders, symbols_of, two_each, valued
from mirage_cli.spec.aten.trace import row_of
from mirage_cli.verify.decided import decided
from mirage_cli.verify.float64 import called64
from mirage_cli.verify.rounding import MoveEveryResult
from mirage_cli.verify.testdata import copied

ROUNDINGS, LEAST_OFF = 16, 2e-3
"""How far a result of PyTorch may be from the program's in float64: roundings of its type, or of a coarser one on the
way, or with TF32's."""
VANISHING = torch.finfo(torch.float32).tiny * 2**24
"""Results below it may be made of numbers that float32 has not in full, and that processors take for 0."""
DECIDED = 1 / 64
"""The share of whole numbers, of a mask, or of places without a number, that rounding may decide otherwise."""
MOVED, TIMES = 16, 4.0
"""Evaluations that show what rounding may decide, and how many times as much as rounding moves each of their results
(`verify.rounding`)."""
EVEN = (130, 6, 4, 2, 8, 10, 12, 14, 16, 18, 20, 22)
"""Sizes to compare at of those that differ by call, besides primes: large for one of them, small for the others."""
SMALL = PRIMES[2:]
"""Primes for the one: each size is compared when it is large, and when it is small."""


def differs(module: Any, region: Region) -> str:
    """Why the program is not used: nothing where it agrees with PyTorch."""
    try:
        return "" if agrees(module, region) else "its program is not what PyTorch computes: a mistake of mirage's"
    except NotRunError as error:
        return str(error)


class NotRunError(Exception):
    """Why a module that PyTorch exported cannot be compared with its program."""


class NamesNoRowError(NotRunError):
    """A number of random data names no row of a tensor."""


def agrees(module: Any, region: Region) -> bool:
    """Whether the program, in float64, gives what PyTorch computes of random data. Raises NotRunError.

    Each kind of `Data` is drawn in turn, until one decides; small numbers are drawn besides, beside which a number that
    is added to a square is not small. Not compared is data of which PyTorch makes no numbers at all. Nor is data by
    which PyTorch leaves its type on the way to a number, unless it is the last. Data by which rounding alone moves a
    result as far as the two are apart decides nothing.
    """
    read = placeholders(module.graph)
    ranges = {name: (s.least, s.most) for name, s in symbols_of(module).items()}
    ranges |= {s.symbol: (s.least, s.most) for s in region.sized if s.symbol in ranges}
    odd = {name: n for name, (n, _) in two_each(ranges).items()}
    for name, (least, most) in [*ranges.items()][:1]:
        odd[name] = next((n for n in SMALL if least <= n <= most and n not in odd.values()), odd[name])
    even = {name: max(least, min(most, n)) for (name, (least, most)), n in zip(ranges.items(), EVEN, strict=False)}
    for sizes in [odd, even] if ranges else [{}]:
        with valued(read, sizes), unset_fake_temporarily(), torch.no_grad():
            if not agrees_at(module, region, region.sizes([x.meta["val"] for x in read])):
                return False
    return True


def agrees_at(module: Any, region: Region, sizes: Mapping[str, int]) -> bool:
    """At these sizes of the symbols, which the module's inputs have."""
    program = region.program.resized({d: n.at(sizes) for d, n in region.axes.items()})
    pairs = [(x.which, t) for x, t in zip(region.inputs, program.inputs, strict=True)]
    apart, words = {i for i, t in pairs if t.distinct}, {i for i, t in pairs if t.drawn == "bits"}
    precision = precision_of(module)
    refused = any(row_of(n).fractions for n in calls(module.graph))  # on a GPU by an assertion that ends all
    kinds = ("fractions",) if refused else get_args(Data)

    def sampled(given: Sequence[Any]) -> tuple[Sample, list[torch.Tensor] | None]:
        sample = Sample.of(region, program, given, sizes)
        return sample, sample.made_by(module)

    def agrees_on(data: Data, last: bool) -> bool | None:
        """None where this data decides nothing. last: whether nothing else is to decide."""
        sample, made = run(module, sampled, data, apart, words)
        with not_run("it is not computed in float64"):  # which may be of too little memory
            exact = sample.exact()
        if made is None or any(map(vanishes, exact)) or (not last and any(map(overflows, made, exact))):
            return None
        return sample.compared(made, exact, precision)

    for data in kinds:
        last = data == kinds[-1]
        with nullcontext() if last else suppress(NamesNoRowError):
            same = agrees_on(data, last)
            if same and not last:
                with suppress(NotRunError):
                    return agrees_on(SMALL_NUMBERS, False) is not False
            if same is not None:
                return same
    raise NotRunError("of random data PyTorch makes no numbers that rounding leaves to be compared")


Made = TypeVar("Made")


def run(module: Any, function: Callable[[Sequence[Any]], Made], *how: Any) -> Made:
    """A function of random data that runs a module by `InRows`. Where whole numbers that differ name no row, all are 0,
    or all are 1: the difference of two, and what is counted from 1. how: of `examples`. Raises NotRunError."""
    for whole in (None, 0, 1):
        with suppress(NamesNoRowError), not_run("PyTorch does not run it"):
            return function(examples(module, *how, whole=whole))
    raise NamesNoRowError("of random data PyTorch is to look up rows that there are not")


class InRows(torch.fx.Interpreter):
    """Runs a module, and raises NamesNoRowError where a number names no row: on a GPU PyTorch refuses that by an
    assertion that ends all."""

    def run_node(self, n: torch.fx.Node) -> Any:
        for named in row_of(n).named(n):
            index, of = self.env[named.index], self.env[named.of]
            size = of.shape[named.axis]
            right = (index >= (-size if named.from_end else 0)) & (index < size)
            right = right if named.besides is None else right | (index == named.besides)
            if index.dtype in WHOLE and not bool(right.all()):
                raise NamesNoRowError(f"a number names no row of {named.of}")
        return super().run_node(n)


@contextmanager
def not_run(why: str) -> Generator[None]:
    """Makes a RuntimeError of PyTorch's a NotRunError."""
    try:
        yield
    except RuntimeError as error:
        raise NotRunError(f"{why}: " + str(error).partition("\n")[0]) from None


@dataclass(frozen=True)
class Sample:
    """Data for a region. given: inputs of its module; held: of its program, and what is changed in place is a copy.
    sizes: of the symbols."""

    program: Program
    region: Region
    given: Sequence[Any]
    held: Sequence[torch.Tensor]
    sizes: Mapping[str, int]

    @staticmethod
    def of(region: Region, program: Program, given: Sequence[Any], sizes: Mapping[str, int]) -> Sample:
        held = [x.of(given, sizes) for x in region.inputs]
        apart = (copied(x) if t.name in program.changed else x for x, t in zip(held, program.inputs, strict=True))
        return Sample(program, region, given, list(apart), sizes)

    def exact(self) -> list[torch.Tensor]:
        """The region's results in float64."""
        returned, behind = called64(self.program, self.held)
        kept = {x.which: y for x, y in zip(self.region.inputs, behind, strict=True)}
        pairs = zip(self.region.made(returned, self.given), self.region.results, strict=True)
        return [kept[r.which] if isinstance(r, Kept) else y for y, r in pairs]

    def made_by(self, module: Any) -> list[torch.Tensor] | None:
        """What PyTorch makes the region's results; None where one of them has no number."""
        made = InRows(module).run(*self.given)
        outputs = [in_arithmetic(y) for y in (made if isinstance(made, list | tuple) else [made])]
        if not all(bool(y.isfinite().any()) for y in outputs):
            return None
        kept = {x.which: in_arithmetic(x.of(self.given, self.sizes)) for x in self.region.inputs}
        pairs = zip(outputs, self.region.results, strict=True)
        return [kept[r.which] if isinstance(r, Kept) else y for y, r in pairs]

    def compared(
        self, made: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], precision: torch.dtype
    ) -> bool | None:
        """Whether PyTorch's results are the program's; None where rounding may be all that sets them apart."""
        same: bool | None = True
        for i, (y, e) in enumerate(zip(made, exact, strict=True)):
            places = in_doubt(y, e)
            same = None if bool(places.any()) else same
            y, e = y.masked_fill(places, 0), e.masked_fill(places, 0)
            if close(y, e, precision, self.moved(i, precision)):
                continue
            if not rounding_explains(y, e, (x.masked_fill(places, 0) for x in self.moved(i, precision))):
                return False
            same = None
        return same

    def moved(self, i: int, precision: torch.dtype) -> Iterator[torch.Tensor]:
        """Result number i as rounding to this type may make it."""
        for seed in range(MOVED):
            with MoveEveryResult(precision, True, seed, TIMES):
                yield self.exact()[i]


def precision_of(module: Any) -> torch.dtype:
    """The coarsest type that PyTorch rounds to in a region, of 16 bits or more."""
    made = (n.meta["val"] for n in calls(module.graph) if isinstance(n.meta.get("val"), torch.Tensor))
    types = {x.dtype for x in made if x.is_floating_point() and x.dtype.itemsize > 1}
    return max(types, key=lambda t: torch.finfo(t).eps, default=torch.float32)


EXPONENT = 127
"""Of a byte that is the exponent of a power of two, the one of 1 (E8M0 of OCP's microscaling formats)."""
Data = Literal["normal", "fractions", "moderate", "small fractions", "small"]
"""Random floating-point numbers: normal ones; between 0 and 1, and near neither; normal ones over 4, of which products
of many factors are within float16's range; the first two over 64: sums over thousands of terms are, and products of
those."""
SMALL_NUMBERS: Data = "small"


def examples(
    module: Any,
    data: Data = "normal",
    apart: Container[int] = (),
    words: Container[int] = (),
    whole: int | None = None,
) -> list[Any]:
    """Random inputs of a region's module, and the sizes that it is given. apart: those of whose numbers no two are
    equal. words: those of which each bit may be set. No two are equal along an axis where all are written along it.
    whole: what other whole numbers are; None where they differ."""
    given = placeholders(module.graph)
    values = [n.meta["val"] for n in given]
    rows = (named for n in calls(module.graph) for named in row_of(n).named(n) if named.apart)
    along = {given.index(named.index): named.axis for named in rows if named.index in given}
    seed = get_args(Data).index(data)  # of which whole numbers are others too
    generators = {x.device: torch.Generator(x.device).manual_seed(seed) for x in values if isinstance(x, torch.Tensor)}

    def example(i: int, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if i in apart:
            return torch.arange(x.numel(), dtype=x.dtype, device=x.device).reshape(x.shape)
        if i in along:
            line = torch.arange(x.shape[along[i]], dtype=x.dtype, device=x.device)
            return line.expand(x.movedim(along[i], -1).shape).movedim(-1, along[i]).contiguous()
        if i in words:
            word = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # of one that may have no data
            return word.random_(-(1 << 31), 1 << 31, generator=generators[x.device])
        if whole is not None and x.dtype in WHOLE:
            return torch.full(x.shape, whole, dtype=x.dtype, device=x.device)
        return drawn(x, generators[x.device], data)

    return [example(i, x) for i, x in enumerate(values)]


def drawn(like: torch.Tensor, generator: torch.Generator, data: Data = "normal") -> torch.Tensor:
    """Random numbers in the memory order of a tensor, if that is the same in every call."""
    if not like.is_floating_point():  # small numbers are rows of all tables, and classes
        least = EXPONENT if like.dtype == torch.uint8 and data == "moderate" else 0
        return torch.randint(least, least + 2, like.shape, generator=generator, device=like.device).to(like.dtype)
    draw = torch.rand if "fractions" in data else torch.randn
    drawn_in = like.dtype if like.dtype.itemsize > 1 else torch.float32
    x = draw(like.shape, generator=generator, device=like.device, dtype=drawn_in)
    match data:
        case "normal":
            x = x.to(like.dtype)
        case "fractions":
            x = (0.0625 + 0.875 * x).to(like.dtype)
        case "moderate":
            x = (x / 4).to(like.dtype)
        case "small fractions":
            x = ((0.0625 + 0.875 * x) / 64).to(like.dtype)
        case "small":
            x = (x / 64).to(like.dtype)
    steps = list[Any](like.stride())  # symbols among them
    if not all(isinstance(n, int) and n for n in steps):
        return x
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(x)


def looked_up(module: Any) -> Sequence[Any]:
    """Random inputs of a region's module that PyTorch takes. Raises NotRunError."""

    def taken(given: Sequence[Any]) -> Sequence[Any]:
        InRows(module).run(*given)
        return given

    return run(module, taken)


def in_arithmetic(y: torch.Tensor) -> torch.Tensor:
    """Of float8, for which torch has little arithmetic, the same numbers in bfloat16, which has them all."""
    return y.bfloat16() if y.dtype.is_floating_point and y.dtype.itemsize == 1 else y


def overflows(y: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether what PyTorch computes on the way to a result is beyond its type: at more than a few places it makes no
    number where float64 has one, nor the infinity that this one is in the result's type."""
    return int((~y.isfinite() & exact.isfinite() & (y != exact.to(y.dtype))).sum()) > DECIDED * y.numel()


def vanishes(exact: torch.Tensor) -> bool:
    """Whether a result is too small to be compared: of powers of two whose exponents are 0 and 1 less 127, say."""
    return exact.numel() > 0 and 0 < float(exact.double().nan_to_num().abs().max()) < VANISHING


def in_doubt(y: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The places at which rounding may decide whether there is a number: sqrt(a + b) where a + b cancels. None where
    the results differ so at more than a few."""
    rounded = exact.to(y.dtype)
    differ = (y.isfinite() != rounded.isfinite()) | (y.isnan() != exact.isnan())
    return differ & (int(differ.sum()) <= DECIDED * y.numel())


def close(
    y: torch.Tensor,
    exact: torch.Tensor,
    precision: torch.dtype = torch.float32,
    moved: Iterable[torch.Tensor] = (),
) -> bool:
    """By the norm of the difference of what are numbers: a program that is another one is off by far more. Infinities
    and what is no number are in the same places, but for what is beyond the type of PyTorch's result. Of whole numbers
    and masks, all but a few are equal, or such as rounding may make them. precision: what PyTorch rounds to on the way.
    moved: `exact`, rounded so."""
    rounded = exact.to(y.dtype)
    numbers = y.isfinite()
    if not torch.equal(numbers, rounded.isfinite()) or not torch.equal(y.isnan(), exact.isnan()):
        return False
    if not torch.equal(y[y.isinf()], rounded[y.isinf()]):
        return False
    if not y.is_floating_point():
        few = DECIDED * y.numel()
        return int((y != rounded).sum()) <= few or decided(y, exact.double(), (x.double() for x in moved)).wrong <= few
    apart = y.double() - exact
    apart = torch.where(apart.abs() < torch.finfo(y.dtype).tiny, 0.0, apart)  # which PyTorch may flush
    off, size = (float(torch.where(numbers, x, 0.0).norm()) for x in (apart, exact))
    eps = max(torch.finfo(t).eps for t in (y.dtype, precision))
    return bool(numbers.any()) and off <= max(ROUNDINGS * eps, LEAST_OFF) * size


def rounding_explains(y: torch.Tensor, exact: torch.Tensor, moved: Iterable[torch.Tensor]) -> bool:
    """Whether rounding alone moves `exact` by as much as PyTorch's result is off, which then shows nothing. moved:
    `exact`, rounded so."""
    numbers = y.isfinite()
    if not y.is_floating_point() or not torch.equal(numbers, exact.to(y.dtype).isfinite()):
        return False
    off = (y.double() - exact)[numbers].norm()
    return any(bool(off <= (x.double() - exact)[numbers].norm()) for x in moved)
