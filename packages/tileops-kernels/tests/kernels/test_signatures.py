"""Programs whose arguments are a table."""

import tilelang.language as T
import tvm

from tileops_kernels.kernels.signatures import flat_tensors, prim_func


@T.macro
def _scaled(x, output, count, factor):
    with T.Kernel(T.ceildiv(count, 32), threads=32) as block:
        for t in T.Parallel(32):
            if block * 32 + t < count:
                output[block * 32 + t] = x[block * 32 + t] * factor


def test_a_program_is_the_one_that_python_would_spell():
    n = T.dynamic("n")

    @T.prim_func
    def scale(
        x: T.Tensor((n,), "float32"), output: T.Tensor((n,), "float32"), count: T.int32, factor: T.float32
    ):
        _scaled(x, output, count, factor)

    parameters = {
        **flat_tensors("float32", x=n, output=n),
        "count": T.int32,
        "factor": T.float32,
    }
    made = prim_func("scale", parameters, lambda **given: _scaled(*given.values()))
    tvm.ir.assert_structural_equal(made, scale, map_free_vars=True)


def test_arguments_keep_their_order_and_sizes_that_share_a_variable_are_one():
    n, m = T.dynamic("n"), T.dynamic("m")
    parameters = {"count": T.int64, **flat_tensors("float16", b=n, a=n), **flat_tensors("int32", c=m)}
    seen = []

    def body(**given):
        seen.extend(given)

    program = prim_func("empty", parameters, body)
    assert seen == list(parameters)
    assert program.params[0].dtype == "int64"
    b, a, c = (program.buffer_map[p] for p in program.params[1:])
    assert [t.dtype for t in (b, a, c)] == ["float16", "float16", "int32"]
    assert b.shape[0].same_as(a.shape[0])
    assert not b.shape[0].same_as(c.shape[0])
