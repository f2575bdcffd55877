"""The fixed parts of exported files that serve several sizes, with @places@ to fill; the others are those of
`text`."""

from __future__ import annotations

import re

from mirage_cli.codegen.exported.text import CALLS, WHERE

PUBLIC_SIZED = '''
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
_INTERPRETER_LOCK = threading.Lock()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KNOWN = {}  # by device: the plans of each size's kernels
_PLANS = {}  # by device: the plan that was made last
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_forward_ad = torch.autograd.forward_ad


def _sizes(inputs):
    """The sizes that differ by call."""
    return (@sizes@,)


def _inputs(@size_names@):
    """Name, strides (None: contiguous), shape and dtype of the inputs at these sizes."""
    return @inputs@


def _outputs(@size_names@):
    """Strides, shape and dtype of the outputs at these sizes."""
    return @outputs@


@which@


def @function@(@signature@):
    """@doc@"""@into@
    if _KNOWN and not _is_compiling():
        _known = _KNOWN.get(_cuda_getDevice())
        if _known is not None:
            _alike, _trained = _known.known
            if _alike(@parameters@) and not (_trained and _is_grad_enabled()) and _forward_ad._current_level < 0:
@changes@@fast@
    return _call(@call@)


@calls@def _is_plain(inputs):
    """Whether the inputs are as they should be, and nothing but data."""
    if _is_compiling() or any(type(x) not in _PLAIN for x in inputs):
        return False
    if any(x.dim() != n for x, n in zip(inputs, _DIMS)):
        return False
    device = inputs[0].device
    recording = torch.is_grad_enabled()
    for x, (_, strides, shape, dtype) in zip(inputs, _inputs(*_sizes(inputs))):
        if (
            x.dtype is not dtype
            or x.shape != shape
            or x.device != device
            or not _lies(x, strides)
            or (recording and x.requires_grad)
            or not only_numbers(x)
        ):
            return False
    return inputs[0].is_cuda or _INTERPRETED


def _check(inputs):
    """Raises TypeError or ValueError, saying what was expected. Which sizes there are, `_run` knows: asked here, a
    graph of torch.compile would be of one of them."""
    device = getattr(inputs[0], "device", None)
    for x, n, (name, _, shape, _) in zip(inputs, _DIMS, _inputs(*_SIZE_NAMES), strict=True):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} should be a tensor, not {type(x).__name__}")
        if x.dim() != n:
            raise ValueError(f"{name} should have the shape ({', '.join(map(str, shape))}), not {tuple(x.shape)}")
    for x, (name, strides, shape, dtype) in zip(inputs, _inputs(*_sizes(inputs)), strict=True):
        if x.dtype is not dtype:
            raise TypeError(f"{name} should have the dtype {dtype}, not {x.dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} should have the shape {tuple(shape)}, not {tuple(x.shape)}")
@where@def _run(*inputs):
    sizes = _sizes(inputs)
    which = _which(*sizes)
    if _INTERPRETED:  # Triton's interpreter serves one thread at a time
        with _INTERPRETER_LOCK:
            return _by_triton(which, sizes, inputs)
    device = inputs[0].get_device()
    if device == torch.cuda.current_device():
        return _launch(device, which, sizes, inputs)
    with torch.cuda.device(device):
        return _launch(device, which, sizes, inputs)


def _by_triton(which, sizes, inputs, outputs=None):
    """All kernels for these sizes, launched as Triton does it. outputs: to be written, where they are there."""
    device = inputs[0].device@autocast@
    outputs = outputs or _empty_outputs(sizes, device)
    _LAUNCHES[which](inputs, outputs, _SCRATCH[which](device, *sizes))
    return @result@


def make_scratch(device, @size_defaults@):
    return _SCRATCH[_which(@size_names@)](device, @size_names@)


def launch(inputs, outputs, scratch):
    _LAUNCHES[_which(*_sizes(inputs))](inputs, outputs, scratch)


def _empty_outputs(sizes, device):
    return [
        torch.empty_strided(shape, strides, dtype=dtype, device=device) for strides, shape, dtype in _outputs(*sizes)
    ]

@capture@


def _fake(*inputs):
    outputs = _empty_outputs(_sizes(inputs), inputs[0].device)
    return @result@


_DIMS = @dims@
_SIZE_NAMES = @size_texts@
_LAUNCHES = @launches@
_SCRATCH = @scratch@
if not hasattr(torch.ops.mirage, "@operator@"):  # the same file may be loaded twice
@register@
    _operator.register_fake(_fake)
'''.replace("@calls@", CALLS).replace("@where@", WHERE)

RANGED = '''
def _which(@size_names@):
    """The number of the kernels that serve these sizes."""
@refused@
    return @choice@
'''

EXACT = '''
_EXACT = @exact@


def _which(@size_names@):
    """The number of the kernels for these sizes."""
    which = _EXACT.get((@size_names@,))
    if which is None:
        raise ValueError(f"there are kernels for @there@, not for @asked@")
    return which
'''

WITHOUT_AUTOCAST = """
    if torch.is_autocast_enabled(device.type):  # libraries keep to the types of their operands
        with torch.autocast(device.type, enabled=False):
            return _by_triton(which, sizes, inputs, outputs)"""

PLANNED_SIZED = '''
class _Plans(dict):
    """By number of kernels. known: what says whether inputs are like those of an earlier call but for their data and
    the sizes that differ by call, and whether any of those may be trained."""

    known = (lambda *_: False), False


def _remember(inputs):
    """Has inputs like these known at once from now on, if this PyTorch has what tells them."""
    plans = _KNOWN.get(inputs[0].get_device())
    if TensorGuards is None or plans is None:
        return
    try:
        guards = TensorGuards(*inputs, dynamic_dims_sizes=@guarded_sizes@, dynamic_dims_strides=@guarded_strides@)
    except TypeError:  # it is another PyTorch's
        return
    plans.known = guards.check, any(x.requires_grad for x in inputs)


def _launch(device, which, sizes, inputs):
    plan = _KNOWN[device].get(which) if device in _KNOWN else None
    if plan is not None:
        return _STARTS[which](plan, *sizes, *inputs)
    made = {}
    result = first_call(made, device, _KERNELS[which], inputs, lambda: _by_triton(which, sizes, inputs))
    for plan in made.values():
        _KNOWN.setdefault(device, _Plans())[which] = _PLANS[device] = plan
    return result


@starts@


_STARTS = @start_names@
'''

SELF_CHECK_SIZED = '''
def _check_this_file():
    """Checks the kernels against a float64 evaluation and, on a GPU, times them beside eager PyTorch."""

@forms@

@checks@

    gpu = torch.cuda.is_available() and not _INTERPRETED
    if not gpu and not _INTERPRETED:
        sys.exit("no GPU here: set TRITON_INTERPRET=1 to check the kernels on the CPU")
    device = torch.device("cuda" if gpu else "cpu")
    passed = True
    with torch.inference_mode():
        for which, sizes, spreads, timed, contracted, cut, lies in @on_gpu@ if gpu else @interpreted@:
            eager, stepwise, whole = @programs@[which]
            strides, shapes, dtypes = ([x[i] for x in _inputs(*sizes)] for i in (1, 2, 3))

            def run(*inputs):
                if gpu:
                    return globals()["@function@"](*inputs)
                return _by_triton(which, sizes, inputs)  # of kernels for more, at sizes that do not take minutes

            def draw_inputs(kind, seed):
                return draw(kind, shapes, dtypes, spreads, contracted, device, seed, strides)

            print(", ".join(f"{name}={size}" for name, size in zip(_SIZE_NAMES, sizes)) + f", kernels {which}")
            how = contracted, @precision@, @tolerance@, device, cut, lies
            for ok, line in check(run, eager, stepwise, draw_inputs, *how):
                print(line)
                passed = passed and ok
            if gpu and timed:
                normal = lambda seed: draw_inputs(DISTRIBUTIONS[0], seed)  # noqa: E731
                for line in time_beside_eager(run, whole, normal):
                    print(line)
                inputs = normal(0)
                run(*inputs)
                plans = {k: v[which] for k, v in _KNOWN.items() if which in v}
                print(cpu_time(lambda: globals()["@function@"](*inputs), plans, inputs[0].get_device(), globals()))
        for sizes, which in @edges@:
            try:
                found = _which(*sizes)
            except ValueError:
                found = None
            if found != which:
                print(f"{sizes} is served by the kernels {found}, not {which}")
                passed = False
    return passed


if __name__ == "__main__":
    sys.exit(0 if _check_this_file() else 1)
'''

RESERVED_SIZED = frozenset(
    re.findall(
        r"(?<![.\w])_\w+", PUBLIC_SIZED[PUBLIC_SIZED.index("def @function@(") : PUBLIC_SIZED.index("def _call(")]
    )
) - {"_graph"} | {"_kernels", "_plan", "_STARTS", "_EXACT", "_lies", "out", "_into"}
"""What the public functions use: no parameter of theirs is called so."""
