"""The fixed parts of exported files, with @places@ to fill: the public functions, and what `python FILE` does."""

from __future__ import annotations

import re

CALLS = '''def @graph@(@parameters@):
    """One call for these very tensors as a CUDA graph: `replay()` computes anew from what they hold by then.

    replay() returns the same output each time, written over, on the current stream. `replay.inputs` are the tensors.
    """
    return _capture(@call@)


def _call(inputs):
    """Runs plain inputs. All else is checked, and then runs as a torch operator."""
    plain = _is_plain(inputs)
    if not plain:
        _check(inputs)@trained@@apart@@tables@
    if not plain:
        return torch.ops.mirage.@operator@(*inputs)@call_changes@
    result = _run(*inputs)
    _remember(inputs)
    return result


def _lies(x, strides):
    """Whether a tensor has these strides (None: is contiguous). Those of axes with one position do not matter."""
    if strides is None:
        return x.is_contiguous()
    return all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), strides))


'''
"""The second public function, and what both come to where a call is no usual one."""
WHERE = '''\
        if x.device != device:
            raise ValueError(f"{name} should be on {device} like the first input, not on {x.device}")
        if not _lies(x, strides):
            if strides is None:
                raise ValueError(f"{name} should be contiguous: pass {name}.contiguous()")
            raise ValueError(f"{name} should have the strides {strides}, not {x.stride()}")
        if has_tangent(x):
            raise NotImplementedError(f"{name} has a tangent, and there is no derivative")
    if device.type != "cuda" and not _INTERPRETED:
        raise ValueError(f"inputs should be on a CUDA device, not on {device} (unless TRITON_INTERPRET=1 is set)")


def _run_checked(*inputs):
    """The operator, which may be called by itself."""
    _check(inputs)
    return _run(*inputs)


'''
"""Where tensors should be, which `_check` ends with, and the operator, which begins with `_check`."""
PUBLIC = '''
_INPUTS = @inputs@
_OUTPUTS = @outputs@  # strides, shape, dtype
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
_INTERPRETER_LOCK = threading.Lock()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_PLANS = {}  # by device
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_forward_ad = torch.autograd.forward_ad


def @function@(@signature@):
    """@doc@"""@into@
    if not _is_compiling() and _PLANS:
        _plan = _PLANS.get(_cuda_getDevice())
        if _plan is not None:
            _alike, _trained = _plan.known
            if _alike(@parameters@) and not (_trained and _is_grad_enabled()) and _forward_ad._current_level < 0:
@changes@                return _start(_plan, @parameters@)
    return _call(@call@)


@calls@def _is_plain(inputs):
    """Whether the inputs are as they should be, and nothing but data: the usual case, quickly."""
    if _is_compiling():
        return False
    device = getattr(inputs[0], "device", None)
    recording = torch.is_grad_enabled()
    for x, (_, strides, shape, dtype) in zip(inputs, _INPUTS):
        if (
            type(x) not in _PLAIN
            or x.dtype is not dtype
            or x.shape != shape
            or x.device != device
            or not _lies(x, strides)
            or (recording and x.requires_grad)
            or not only_numbers(x)
        ):
            return False
    return inputs[0].is_cuda or _INTERPRETED


def _check(inputs):
    """Raises TypeError or ValueError, saying what was expected."""
    device = getattr(inputs[0], "device", None)
    for x, (name, strides, shape, dtype) in zip(inputs, _INPUTS, strict=True):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} should be a tensor, not {type(x).__name__}")
        if x.dtype is not dtype:
            raise TypeError(f"{name} should have the dtype {dtype}, not {x.dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} should have the shape {shape}, not {tuple(x.shape)}")
@where@def _run(*inputs):
    if _INTERPRETED:  # Triton's interpreter serves one thread at a time
        with _INTERPRETER_LOCK:
            return _by_triton(inputs)
    device = inputs[0].get_device()
    if device == torch.cuda.current_device():
        return _launch(device, inputs)
    with torch.cuda.device(device):
        return _launch(device, inputs)


def _by_triton(inputs, outputs=None):
    """All kernels, launched as Triton does it. outputs: to be written, where they are there."""
    device = inputs[0].device@autocast@
    outputs = outputs or _empty_outputs(device)
    launch(inputs, outputs, make_scratch(device))
    return @result@


def _empty_outputs(device):
    return [torch.empty_strided(shape, strides, dtype=dtype, device=device) for strides, shape, dtype in _OUTPUTS]


@capture@


def _fake(*inputs):
    outputs = _empty_outputs(inputs[0].device)
    return @result@


if not hasattr(torch.ops.mirage, "@operator@"):  # the same file may be loaded twice
@register@
    _operator.register_fake(_fake)
'''.replace("@calls@", CALLS).replace("@where@", WHERE)

INTO = """
    if out is not None:
        return _into(@call@, out)"""
"""What the function does first whose results `out` may take."""

WRITE = '''
def _into(inputs, out):
    """Writes `out`, a tensor or several in the order of the outputs, and returns it."""
    tensors = (out,) if isinstance(out, torch.Tensor) else out
    if not isinstance(tensors, (tuple, list)) or [isinstance(y, torch.Tensor) for y in tensors] != [True] * @results@:
        raise TypeError("out should be @out@")
    if _is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*inputs, *tensors)):
        raise NotImplementedError("what is written into out has no gradient: call this under torch.no_grad()")
    torch.ops.mirage.@operator@_out(*inputs, *tensors)
    return out


def _write(*tensors):
    """The operator that writes outputs which are there. Triton launches."""
    inputs, outputs = tensors[:@count@], tensors[@count@:]
    _check(inputs)
    for i, (y, (_, shape, dtype)) in enumerate(zip(outputs, @there@, strict=True)):
        if y.dtype is not dtype or y.shape != shape or y.device != inputs[0].device or not y.is_contiguous():
            wanted, given = f"{dtype}{list(shape)} on {inputs[0].device}", f"{y.dtype}{list(y.shape)} on {y.device}"
            raise ValueError(f"out should be contiguous {wanted}, not {given} with the strides {y.stride()}")
        if any(_meet(x, y) for x in (*inputs, *outputs[:i])):
            raise ValueError("out should share no memory with an input, or with other outputs")
    if _INTERPRETED:
        with _INTERPRETER_LOCK:
            _by_triton(@sizes_of_inputs@inputs, outputs)
    else:
        with torch.cuda.device(inputs[0].device):
            _by_triton(@sizes_of_inputs@inputs, outputs)


def _meet(x, y):
    """Whether two tensors may share memory: one begins before the other ends."""
    ends = (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) for t in (x, y))
    x_end, y_end = (t.data_ptr() + t.element_size() * n for t, n in zip((x, y), ends))
    return x.data_ptr() < y_end and y.data_ptr() < x_end


if not hasattr(torch.ops.mirage, "@operator@_out"):
@register_out@
    _operator.register_fake(lambda *_: None)
'''
"""What follows the public functions of a program that returns anything."""

CAPTURE = """
def _capture(inputs):
    _check(inputs)@captured_apart@
    device = inputs[0].device
    if device.type != "cuda":
        raise ValueError(f"a CUDA graph needs inputs on a CUDA device, not on {device}")
    with torch.no_grad(), torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
@compile@
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = _run(*inputs)

    def replay():
        graph.replay()
        return result

    replay.inputs = inputs
    return replay
"""
"""What makes a CUDA graph of a call."""
COMPILE = """\
            _run(*inputs)  # compiles what is not compiled yet"""
COMPILE_BESIDE_STATE = """\
            kept = [x.clone() for x in @state@]
            _run(*inputs)  # compiles what is not compiled yet
            for x, before in zip(@state@, kept):  # no call of the user's
                x.copy_(before)"""
"""What stands in it in front of the capture; and where a call reads what it changes."""

TABLES = '''
def _check_tables(inputs):
    """Raises ValueError where a table names what is not there."""
    for i, name, first, below, distinct in _tables(@table_sizes@):
        least, most = (int(x) for x in torch.aminmax(inputs[i]))
        if least < first or most >= below:
            raise ValueError(f"{name} should be from {first} to {below - 1}, and holds {least} to {most}")
        named = inputs[i][inputs[i] >= 0]
        if distinct and len(torch.unique(named)) < named.numel():
            raise ValueError(f"{name} should hold no number twice")


def _tables(@size_names@):
    """Which inputs are looked up, their names, the least of their integers and what they are less than, and whether
    none from 0 on is there twice."""
    return @entries@
'''
"""What stands in front of the public functions where indices are looked up."""

CHECKED_TABLES = """
    if os.environ.get("MIRAGE_CHECK_TABLES") and not _is_compiling():  # calls like an earlier one do not come here
        _check_tables(inputs)"""

TRAINED = """
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            message = "no gradient passes through the change of @changed@ in place: call this under torch.no_grad()"
            raise NotImplementedError(message)"""
"""What a call asks in front of the operator where it changes inputs: PyTorch would lose their gradients in silence."""

CHECKED_APART = """
    if plain:
        _check_apart(inputs)"""
CAPTURED_APART = """
    _check_apart(inputs)"""
"""Where a program changes inputs: calls like an earlier one do not come here."""
CALL_CHANGES = """
    for i in @changed_places@:
        _changes(inputs[i])"""

APART = '''
_changes = torch.autograd.graph.increment_version  # else what autograd has kept of a tensor would be taken as it was


def _check_apart(inputs):
    """Raises ValueError where what is changed is known to lie where another input does: both begin there, or have no
    gaps."""
    for i in @changed_places@:
        x, start = inputs[i], inputs[i].data_ptr()
        for y in (*inputs[:i], *inputs[i + 1 :]):
            other, whole = y.data_ptr(), x.is_contiguous() and y.is_contiguous()
            if start == other or (whole and start < other + y.nbytes and other < start + x.nbytes):
                raise ValueError("@changed@ should share no memory with other inputs: the call changes it in place")
'''
"""What follows the public functions of a program that changes inputs."""

BUILTIN = '''
_@name@.__name__ = _@name@.__qualname__ = "@name@"


def __getattr__(name):
    """`@name@` is the function above for those who import it, and Python's own to what stands in this file."""
    if name == "@name@":
        return _@name@
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
'''
"""What follows the public functions where the spec's name is that of a builtin."""

WITHOUT_AUTOCAST = """
    if torch.is_autocast_enabled(device.type):  # libraries keep to the types of their operands
        with torch.autocast(device.type, enabled=False):
            return _by_triton(inputs, outputs)"""

ALLOCATORS = """
@recorded@
_KERNELS = @kernels@
_FILLED = memory_of_tensors()
_is_deterministic = torch.are_deterministic_algorithms_enabled
try:  # what the code that torch.compile makes allocates with, in half the time, and by which it knows its inputs
    from torch._C import _cuda_cudaCachingAllocator_raw_alloc as _allocate
    from torch._C import _cuda_cudaCachingAllocator_raw_delete as _free
    from torch._C import _cuda_getDevice
    from torch._C._dynamo.guards import TensorGuards, _empty_strided_cuda

    _FRESH = Memory(_empty_strided_cuda, _allocate, _free)
except ImportError:
    TensorGuards, _cuda_getDevice, _FRESH = None, torch.cuda.current_device, _FILLED
"""
"""The recorded launches, the file's kernels, and the functions of PyTorch that allocate memory and guard inputs."""

PLANNED = '''
def _remember(inputs):
    """Has inputs like these known at once from now on, if this PyTorch has what tells them."""
    plan = _PLANS.get(inputs[0].get_device())
    if TensorGuards is None or plan is None:
        return
    try:
        guards = TensorGuards(*inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    except TypeError:  # it is another PyTorch's
        return
    plan.known = guards.check, any(x.requires_grad for x in inputs)


def _launch(device, inputs):
    plan = _PLANS.get(device)
    if plan is not None:
        return _start(plan, *inputs)
    return first_call(_PLANS, device, _KERNELS, inputs, lambda: _by_triton(inputs))


def _start(plan, @names@):
    """What `launch` does, by the plan: it starts what Triton has compiled, on the current stream."""
@start@
'''

RESERVED = frozenset(
    re.findall(r"(?<![.\w])_\w+", PUBLIC[PUBLIC.index("def @function@(") : PUBLIC.index("def _call(")])
) - {"_graph"} | {"out", "_into", "_changes"}
"""What the public functions use: no parameter of theirs is called so."""

SELF_CHECK = '''
def _check_this_file():
    """Checks the kernel against a float64 evaluation and, on a GPU, times it beside eager PyTorch."""

@eager@

@stepwise@

@checks@

    run = globals()["@function@"]  # something above may have the same name
    gpu = torch.cuda.is_available() and not _INTERPRETED
    if not gpu and not _INTERPRETED:
        sys.exit("no GPU here: set TRITON_INTERPRET=1 to check the kernel on the CPU")
    device = torch.device("cuda" if gpu else "cpu")
    strides, shapes, dtypes = ([x[i] for x in _INPUTS] for i in (1, 2, 3))
    spreads, contracted = @spreads@, @contracted@
    cut, lies = @cut@, @lies@

    def draw_inputs(kind, seed):
        return draw(kind, shapes, dtypes, spreads, contracted, device, seed, strides)

    passed = True
    with torch.inference_mode():
@check@
        for ok, line in results:
            print(line)
            passed = passed and ok
        if gpu:
            normal = lambda seed: draw_inputs(DISTRIBUTIONS[0], seed)  # noqa: E731
            for line in time_beside_eager(run, @whole@, normal):
                print(line)
            inputs = normal(0)
            print(cpu_time(lambda: run(*inputs), @cpu@, inputs[0].get_device(), globals()))
    return passed


if __name__ == "__main__":
    sys.exit(0 if _check_this_file() else 1)
'''
