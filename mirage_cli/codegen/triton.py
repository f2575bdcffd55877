"""One generated kernel of a μGraph as Triton source. Any kernel: nothing here knows what the program is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from mirage_cli.codegen.access import Descriptor, Fetch, awaited, descriptors, fetched_ahead, leading, relays, streamed
from mirage_cli.codegen.blocks import LINE_BYTES, MAX_ELEMENTS, TRITON_TYPE, EmitError
from mirage_cli.codegen.expressions import LOG2E, NAN_TOO, number_literal
from mirage_cli.codegen.loops import Loops
from mirage_cli.ir.mugraph import Kernel, Load, MuGraph, Store, split_axis
from mirage_cli.ir.ops import IDENTITY, OPS
from mirage_cli.ir.placement import Loop
from mirage_cli.ir.program import DTYPE_BYTES, Eqn
from mirage_cli.ir.reach import needed
from mirage_cli.ir.schedule import MAX_LANES, Schedule, on_matrix_units


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A complete `@triton.jit` function and how to launch it.

    args: the buffers behind the pointer parameters, in order. descriptors: the parameters after them.
    programs: the size of its one-dimensional grid. options: further arguments of the launch. fetches: whether it
    fetches inputs ahead.
    """

    name: str
    source: str
    args: tuple[str, ...]
    descriptors: tuple[Descriptor, ...]
    programs: int
    options: tuple[str, ...]
    fetches: bool


def emit_kernel(graph: MuGraph, kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> KernelSource:
    """The kernel at this schedule. `sizes` holds every axis, those of chunks included. Raises EmitError."""
    return _Emitter(graph, kernel, schedule, sizes).emit()


class _Emitter(Loops):
    """Writes a kernel segment by segment."""

    def __init__(self, graph: MuGraph, kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> None:
        own = schedule.kernels[kernel.name]
        super().__init__(graph, kernel, own, sizes)
        self.release = any(s.overlap for s in schedule.kernels.values())  # there is a kernel that waits by itself
        self.narrowed = self.narrowed_values()
        self.waited = self.releasing = self.released = False
        self.awaited = awaited(graph, kernel, schedule) if own.overlap else frozenset[str]()
        self.ahead = fetched_ahead(graph, kernel, own, sizes)
        self.descriptors = descriptors(graph, kernel, own, sizes)
        self.streamed = streamed(graph, kernel, own, sizes)
        self.relays = relays(graph, kernel, schedule)
        self.leading = None if self.relays else leading(graph, kernel, own, sizes)

    # -- the kernel

    def emit(self) -> KernelSource:
        if any(self.count(self.axes(dims)) > MAX_ELEMENTS for dims in self.dims.values()):
            raise EmitError("block too large")
        programs = self.prologue()
        self.begin()
        last = max((i for i, x in enumerate(self.placement.segments) if isinstance(x, Loop)), default=-1)
        for i, segment in enumerate(self.placement.segments):
            if isinstance(segment, Loop):
                self.wait_before(*segment.steps, *segment.stores)
                self.loop(segment)
            else:
                if i > last:
                    self.let_next_start()
                for step in segment.steps:
                    self.wait_before(step)
                    self.step(step)
                self.wait_before(*segment.stores)
                for s in segment.stores:
                    self.store(s)
        self.let_next_start()
        pointed = {x.buffer for x in self.kernel.loads if x.out not in self.descriptors}
        pointed |= {s.buffer for s in self.kernel.stores}
        pointed |= {x.load.buffer for found in self.ahead.values() for x in found}
        args = tuple(b for b in self.buffers if b in pointed)
        parameters = ", ".join([*(f"{b}_ptr" for b in args), *(f"{v}_desc" for v in self.descriptors)])
        constants: list[str] = []
        for d in self.block:
            constants.append(f"    SIZE_{d}: tl.constexpr = {self.sizes[d]}")
            if self.block[d] > 1:
                constants.append(f"    BLOCK_{d}: tl.constexpr = {self.block[d]}")
        source = "\n".join(["@triton.jit", f"def {self.kernel.name}({parameters}):", *constants, *self.lines]) + "\n"
        options = f"num_warps={self.schedule.warps}", f"num_stages={self.schedule.stages}"
        if self.schedule.overlap:
            options = *options, "launch_pdl=can_overlap()"
        if self.single:  # a * b - a * b is 0, and not what a * b is rounded by
            options = *options, "enable_fp_fusion=False"
        return KernelSource(
            self.kernel.name, source, args, tuple(self.descriptors.values()), programs, options, bool(self.ahead)
        )

    # -- beside the kernels in front and behind

    def begin(self) -> None:
        """The first kernel of a launch waits at once: what comes before the launch may have made its inputs."""
        if self.relays:
            self.line("release_next()")
            self.released = True
        if self.graph.kernels[0].name == self.kernel.name:
            self.wait()
        if self.schedule.early:
            self.let_next_start()

    def wait_before(self, *steps: Load | Eqn | Store) -> None:
        """Waits for the kernel in front, if that has not been done, before what it has written is read, and before
        anything is written: it may still be reading."""
        if any(isinstance(x, Store) or (isinstance(x, Load) and x.buffer in self.awaited) for x in steps):
            self.wait()

    def wait(self) -> None:
        if self.schedule.overlap and not self.waited:
            self.fetch_ahead()
            self.line("wait_for_data()")
            self.waited = True
            if self.releasing:
                self.let_next_start()

    def fetch_ahead(self) -> None:
        for loop, found in self.ahead.items():
            if loop is None:
                for x in found:
                    self.fetch(x, self.schedule.read)
                continue
            (d,) = loop.dims
            tiles = self.fetched_together(d, found)
            first, last = self.span(loop)
            most = self.schedule.ahead * self.block[d]
            end = f"{most}" if first == "0" else f"{first} + {most}"
            self.header(loop, first, f"min({last}, {end})", tiles)
            self.depth += 1
            for x in found:
                self.fetch(x, False, d, tiles)
            self.depth -= 1

    def fetched_together(self, d: str, found: Sequence[Fetch]) -> int:
        """Of how many iterations there are pointers in one block: if it has fewer than there are threads, several of
        them fetch the same."""
        most = max(prod(self.pointers(x, d).values()) for x in found)
        tiles = 1
        while 2 * tiles * most <= 32 * self.schedule.warps and self.schedule.ahead % (2 * tiles) == 0:
            tiles *= 2
        return tiles

    def pointers(self, x: Fetch, loop: str | None) -> dict[str, int]:
        """How many pointers there are along each dimension of a load, one into each cache line, in an iteration."""
        count = {d: self.block[d] for d in x.load.dims}
        if loop is not None and x.part is not None:
            count[loop] = x.part
        inner = x.load.dims[-1]
        return count | {inner: max(count[inner] // self.line_of(x), 1)}

    def line_of(self, x: Fetch) -> int:
        """Elements of a cache line."""
        return LINE_BYTES // DTYPE_BYTES[self.tensors[x.load.buffer].dtype]

    def fetch(self, x: Fetch, read: bool, loop: str | None = None, tiles: int = 1) -> None:
        """One pointer into each cache line of a load's block. tiles: iterations of the loop along `loop` together."""
        dims, count = x.load.dims, self.pointers(x, loop)
        inner = dims[-1]
        at: dict[str, str] = {}
        for d in {inner, loop or inner} & set(dims):
            step, together = self.line_of(x) if d == inner else 1, tiles if d == loop else 1
            at[d] = self.starts[d] + (".to(tl.int64)" if d != inner and self.huge() else "")
            if count[d] * together > 1:
                at[d] += f" + {self.first_of_each(self.block[d], count[d], step, together)}"
            count[d] *= together
        clamped = self.padded | ({loop} if tiles > 1 else set())
        at |= {d: f"tl.minimum({at.get(d, f'i_{d}')}, SIZE_{d} - 1)" for d in dims if d in clamped}
        axes = [d for d in self.order if d in dims and count[d] > 1]
        offsets = self.offsets(self.tensors[x.load.buffer], dims, axes, {d: f"({text})" for d, text in at.items()})
        self.line(f"fetch({x.load.buffer}_ptr + {offsets}, read={read})", f"[{', '.join(axes)}]")

    @staticmethod
    def first_of_each(block: int, count: int, step: int, blocks: int) -> str:
        """The first `count` positions, `step` apart, of each of so many blocks in a row."""
        lanes = f"tl.arange(0, {count * blocks})"
        if count == 1:
            step = block
        elif blocks > 1 and count * step < block:
            lanes = f"{lanes} // {count} * {block} + {lanes} % {count}"
        return f"{lanes} * {step}" if step > 1 else lanes

    def let_next_start(self) -> None:
        """Lets the kernel behind start, at once or as soon as this one has waited itself."""
        self.releasing = True
        if self.releases and not self.released:
            self.line("release_next()")
            self.released = True

    def let_next_start_in(self, loop: Loop, last: str) -> None:
        """Lets the kernel behind start in the last iterations of a loop over one dimension, which goes up to `last`."""
        if self.releases:
            (d,) = loop.dims
            self.line(f"release_before({self.bound(last)} - s_{d}, {self.schedule.lead * self.block[d]})")

    @property
    def releases(self) -> bool:
        """Whether the kernel behind may start now."""
        return self.release and (self.waited or not self.schedule.overlap)

    def prologue(self) -> int:
        """Which tiles this instance has, and the positions they cover. Returns the number of instances."""
        grid = [(d, ceil(self.sizes[d] / self.block[d])) for d in self.kernel.with_role("grid")]
        many = [(d, n) for d, n in grid if n > 1]
        split = self.kernel.split
        chunks = self.schedule.split if split else 1
        programs = chunks * prod(n for _, n in grid)
        if programs > 1:
            self.line("pid = tl.program_id(0)")
        if split and chunks > 1:
            each = prod(n for _, n in many)
            self.line(f"chunk = pid // {each}" if each > 1 else "chunk = pid")
            if each > 1:
                self.line(f"pid = pid % {each}")
        elif split:
            self.line("chunk = 0")
        group = self.schedule.group
        while many:
            if len(many) == 2 and group > 1:
                (a, na), (b, nb) = many
                self.line(
                    f"first_{a} = pid // {group * nb} * {group}", f"groups of {group} tiles of {a} share those of {b}"
                )
                self.line(f"rows_{a} = min({na} - first_{a}, {group})")
                self.line(f"t_{a} = first_{a} + pid % {group * nb} % rows_{a}")
                self.line(f"t_{b} = pid % {group * nb} // rows_{a}")
                break
            d, n = many.pop()
            self.line(f"t_{d} = pid % {n}" if many else f"t_{d} = pid")
            if many:
                self.line(f"pid = pid // {n}")
        for d in self.heavy_last() & {d for d, n in grid if n > 1}:
            self.line(f"t_{d} = {dict(grid)[d] - 1} - t_{d}", "the longest loops first")
        for d, n in grid:
            self.positions(d, f"t_{d} * BLOCK_{d}" if self.block[d] > 1 else f"t_{d}", n > 1)
        for d in self.kernel.with_role("tile"):
            self.positions(d, "", False)
        return programs

    def heavy_last(self) -> set[str]:
        """Dimensions along which loops go the further, the later the tile."""
        grows = {
            (lower, name)
            for found in self.limits.values()
            for x in found
            for lower in [x.lower]
            for (kind, name), c in x.limit.terms
            if kind == "index" and c > 0
        }
        return {d for lower, d in grows if not lower and (True, d) not in grows}

    # -- loads and stores

    def load(self, x: Load) -> None:
        axes = self.axes(x.dims)
        tensor = self.tensors[x.buffer]
        mask = self.mask(x.dims, axes)
        extra = f", mask={mask}, other=0" if mask else ""
        extra += ', eviction_policy="evict_first"' if x.out in self.streamed else ""
        note = f"[{', '.join(axes)}]"
        self.clean[x.out] = frozenset(self.padded & set(axes))
        if x.out in self.descriptors:  # what lies past the end of a dimension reads as zero
            self.line(f"{self.name(x.out)} = {self.box(x.out)}", note)
            return
        self.line(f"{self.name(x.out)} = tl.load({x.buffer}_ptr + {self.offsets(tensor, x.dims, axes)}{extra})", note)

    def box(self, value: str) -> str:
        """A load through a descriptor, brought into the form of the kernel's block."""
        d = self.descriptors[value]
        text = f"{value}_desc.load([{', '.join(self.starts[a] for a in d.dims)}])"
        have = [a for a in d.dims if self.block[a] > 1]
        if len(have) < len(d.dims):
            text = f"tl.reshape({text}, {self.shape(have)})"
        return self.permuted(text, have, self.axes(have))

    def store(self, s: Store) -> None:
        axes = self.axes(s.dims)
        tensor = self.tensors[s.buffer]
        once = [
            f"t_{d} == 0" for d in self.kernel.with_role("grid") if d not in s.dims and self.sizes[d] > self.block[d]
        ]
        split = self.kernel.split
        if split and split_axis(split) not in s.dims and split not in s.dims and self.schedule.split > 1:
            once.append("chunk == 0")
        if once:
            self.line(f"if {' and '.join(once)}:", "the same for all of these instances: one of them stores")
            self.depth += 1
        mask = self.mask(s.dims, axes)
        value = self.name(s.value)
        if self.type_of(s.value) != tensor.dtype or s.value not in self.loads:
            value = self.cast(value, self.type_of(s.value), tensor.dtype)
        value = self.spread(value, self.axes(self.dims[s.value]), axes)
        extra = f", mask={mask}" if mask else ""
        self.line(f"tl.store({s.buffer}_ptr + {self.offsets(tensor, s.dims, axes)}, {value}{extra})")
        if once:
            self.depth -= 1

    def step(self, step: Load | Eqn) -> None:
        if isinstance(step, Load):
            self.load(step)
        else:
            self.line(f"{self.name(step.out)} = {self.value(step)}", f"[{', '.join(self.axes(step.dims))}]")
            self.round(step.out)

    def round(self, value: str) -> None:
        """What later kernels read of a value is what this one goes on with too, as PyTorch does.

        Else they would disagree about it: a maximum of the one taken from an exponent of the other, say.
        """
        if value in self.narrowed:
            name = self.name(value)
            self.line(f"{name} = {self.cast(name, 'float32', self.narrowed[value])}.to(tl.float32)", "as it is stored")

    def narrowed_values(self) -> dict[str, str]:
        """Values that are stored in a narrower type for later kernels to read, with that type."""
        names = [k.name for k in self.graph.kernels]
        later = self.graph.kernels[names.index(self.kernel.name) + 1 :]
        read = {x.buffer for k in later for x in k.loads}
        stored = {s.value: self.tensors[s.buffer].dtype for s in self.kernel.stores if s.buffer in read}
        used = {v for e in self.kernel.body for v in e.values}
        return {
            v: dtype
            for v, dtype in stored.items()
            if v in used and self.type_of(v) == "float32" and dtype in ("float16", "bfloat16")
        }

    # -- loops

    def loop(self, loop: Loop) -> None:
        for name, degrees in loop.accumulators:
            if name not in loop.running and not degrees and self.deferrable(self.eqns[name]):
                self.deferred.add(name)
            self.initialise(name)
        self.running = frozenset(loop.running)
        for first, last, true in (ranges := self.ranges(loop)):
            self.true = true
            self.header(loop, first, last)
            self.depth += 1
            if loop == self.leading and last == ranges[-1][1]:
                self.let_next_start_in(loop, last)
            self.iteration(loop)
            self.depth -= 1
        self.true = self.running = frozenset()
        accumulators = dict(loop.accumulators)
        for name in accumulators:
            if name in self.deferred:
                self.line(f"{self.name(name)} = {self.across(self.eqns[name], self.name(name))}")
            self.round(name)
            self.clean[name] = frozenset()

    def iteration(self, loop: Loop) -> None:
        accumulators = dict(loop.accumulators)
        need = needed(loop, self.true)
        for step in self.wide_products_last(loop):
            if step.out in accumulators:
                assert isinstance(step, Eqn)
                if step.out in loop.running:
                    self.advance(step)
                else:
                    self.accumulate(step, accumulators[step.out])
            elif step.out in need:
                self.step(step)
        for s in loop.stores:
            self.store(s)

    def wide_products_last(self, loop: Loop) -> list[Load | Eqn]:
        """The steps of an iteration, products that nothing here waits for last, the larger the later: by the last of
        several that share an operand, Triton decides how warps stand for all of them."""
        used = {v for s in loop.steps if isinstance(s, Eqn) for v in s.values} | {s.value for s in loop.stores}
        last = [s for s in loop.steps if isinstance(s, Eqn) and s.op == "dot" and s.out not in used]
        last.sort(key=lambda e: self.count(self.axes(e.dims)))
        return [*(s for s in loop.steps if s not in last), *last]

    def deferrable(self, e: Eqn) -> bool:
        """Whether an accumulator that nothing rescales keeps the axes it reduces until after the loop.

        A reduction across lanes in every iteration costs a barrier; adding up blocks costs registers. Values that come
        from a product are laid out so that reducing them is cheap.
        """
        space = self.axes(self.space(e))
        if (e.op != "dot" and OPS[e.op].kind != "reduction") or not set(space) & set(e.axes):
            return False
        if self.count(space) > MAX_LANES * 32 * self.schedule.warps:
            return False
        return not on_matrix_units(e, self.dims, self.block) if e.op == "dot" else not self.from_product(e.values[0])

    def from_product(self, value: str) -> bool:
        e = self.eqns.get(value)
        return e is not None and (e.op == "dot" or any(self.from_product(v) for v in e.values))

    def accumulated(self, e: Eqn) -> list[str]:
        """The axes of an accumulator's block inside its loop."""
        return self.axes(self.space(e) if e.out in self.deferred else e.dims)

    def initialise(self, name: str) -> None:
        e = self.eqns[name]
        axes = self.accumulated(e)
        kind = TRITON_TYPE[self.type_of(name)]
        identity = number_literal(IDENTITY[e.op], False)
        if e.type == "int":
            identity = {"sum": "0", "max": "-2147483648", "min": "2147483647"}.get(e.op, "0")
        shape = self.shape(axes) if axes else "()"
        zero = IDENTITY[e.op] == 0.0 and axes
        self.line(
            f"{self.name(name)} = tl.zeros({shape}, {kind})"
            if zero
            else f"{self.name(name)} = tl.full({shape}, {identity}, {kind})"
        )

    def advance(self, e: Eqn) -> None:
        """Move a running maximum and note by what factor exp(-maximum) changes."""
        m = self.name(e.out)
        nan = f", {NAN_TOO}" if self.shows_nan(e) else ""
        self.line(f"{m}_next = tl.maximum({m}, {self.value(e)}{nan})", "running maximum")
        finite = f'tl.where(tl.abs({m}_next) == float("inf"), 0.0, {m}_next)'
        self.line(f"{m}_shift = {finite}" + ("" if self.single else f" * {LOG2E!r}"))
        self.line(f"{m}_scale = {self.exp_of_difference(m, f'{m}_shift')}")
        self.line(f"{m} = {m}_next")

    def accumulate(self, e: Eqn, degrees: tuple[tuple[str, int], ...]) -> None:
        acc = self.name(e.out)
        axes = self.accumulated(e)
        for m, g in degrees:
            scale = self.spread(f"{self.name(m)}_scale", self.axes(self.dims[m]), axes)
            for _ in range(abs(g)):
                self.line(
                    f"{acc} = {acc} * {scale}" if g > 0 else f"{acc} = tl.where({acc} == 0.0, 0.0, {acc} / {scale})"
                )
        deferred = e.out in self.deferred
        if e.op == "dot":
            text = f"{acc} += {self.multiplied_out(e, lanes=True)}" if deferred else f"{acc} = {self.dot(e, acc)}"
            self.line(text, f"[{', '.join(axes)}]")
            return
        block = self.reduction(e, deferred)
        nan = f", {NAN_TOO}" if self.shows_nan(e) else ""
        step = f"{acc} += {block}" if e.op == "sum" else f"{acc} = tl.{e.op}imum({acc}, {block}{nan})"
        self.line(step, f"[{', '.join(axes)}]")
