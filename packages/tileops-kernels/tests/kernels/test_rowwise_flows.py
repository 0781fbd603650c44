"""How flows of elementwise and row-wise ops cut a call into launches, counted on a stub: nothing compiles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.rms_norm import RMSNormKernel
from tileops_kernels.ops.flows import _layout, _rows, _splits, elementwise
from tileops_kernels.ops.flows._axes import Stage
from tileops_kernels.ops.flows._splits import split_of
from tileops_kernels.ops.registry import FLOWS
from tileops_manifest import TensorMeta, load_manifest


class Program:
    """Stands in for a compiled program; logs the calls of its launchers."""

    def __init__(self, log, kernel, static):
        self.log, self.kernel, self.static = log, kernel, static

    def bound(self, *example):
        sizes = [t.numel() for t in example if isinstance(t, torch.Tensor)]
        return lambda *args: self.log.append(SimpleNamespace(program=self, args=args, sizes=sizes))

    def launcher(self, *args):
        sizes = [t.numel() for t in args if isinstance(t, torch.Tensor)]
        self.log.append(SimpleNamespace(program=self, args=args, sizes=sizes))


@pytest.fixture
def log(monkeypatch):
    calls = []
    monkeypatch.setattr(
        Kernel,
        "compiled",
        classmethod(lambda cls, device, config=None, **static: Program(calls, cls.__name__, static)),
    )
    return calls


def call(op, *inputs, **params):
    entry = load_manifest()[op]
    metas = {
        name: None if t is None else TensorMeta(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(entry.inputs, inputs, strict=True)
    }
    return FLOWS[op].prepare(entry.bind(metas, params), inputs)(*inputs)


def kernels(log):
    return [entry.program.kernel for entry in log]


def test_contiguous_operands_take_one_flat_launch(log):
    x = torch.empty(8, 16, dtype=torch.bfloat16)
    call("AddFwdOp", x, x)
    (launch,) = log
    assert (launch.program.kernel, launch.program.static["vec"]) == ("ElementwiseKernel", 8)
    assert launch.sizes == [128, 128, 128]


def test_broadcasting_materialises_nothing(log):
    features, bias = torch.empty(2, 6, 8, 8), torch.empty(6, 1, 1)
    call("AddFwdOp", features, bias)
    (launch,) = log
    assert launch.program.static["kinds"] == ("flat", "scalar")
    assert launch.args[0] is features
    assert launch.args[1] is bias


def test_only_what_lies_as_the_output_does_is_read_at_its_index(log):
    x, wide = torch.empty(4, 8), torch.empty(4, 16)
    for other, kind in (
        (wide[:, :8], "vector"),
        (torch.empty(8), "vector"),
        (torch.empty(8, 4).t(), "strided"),
    ):
        call("AddFwdOp", x, other)
        assert log[-1].program.static["kinds"] == ("flat", kind)


def test_more_dims_than_the_kernel_walks_are_copied(log):
    x = torch.empty(2, 3, 2, 3, 2, 3)
    call("AddFwdOp", x, x[:, :1, :, :1, :, :1])
    assert kernels(log) == ["ElementwiseKernel"]
    assert all(t.is_contiguous() for t in log[0].args[:2])


def test_in_place_writes_the_input_and_returns_it(log):
    x = torch.empty(4, 6).t()
    assert call("ReluFwdOp", x, inplace=True) is x
    assert log[0].args[0] is log[0].args[1] is x


def test_misaligned_input_narrows_the_access(log):
    call("ReluFwdOp", torch.empty(65)[1:])
    assert log[0].program.static["vec"] == 1


def test_huge_tensors_are_cut_into_launches_that_cover_them(log, monkeypatch):
    monkeypatch.setattr(elementwise, "MAX_ELEMENTS", 1000)
    call("ReluFwdOp", torch.empty(2500))
    assert [launch.sizes for launch in log] == [[1000, 1000], [1000, 1000], [500, 500]]


def test_huge_strided_tensors_are_cut_along_the_first_dims(log, monkeypatch):
    monkeypatch.setattr(elementwise, "MAX_ELEMENTS", 1000)
    call("AddFwdOp", torch.empty(10, 300), torch.empty(300))
    assert sum(launch.sizes[-1] for launch in log) == 3000
    assert max(max(launch.sizes) for launch in log) <= 1000


def test_rows_of_a_wider_tensor_are_read_in_place(log):
    x, weight = torch.empty(4, 64, dtype=torch.bfloat16), torch.empty(32, dtype=torch.bfloat16)
    part = x[:, 32:]
    call("RMSNormFwdOp", part, weight, normalized_shape=[32])
    (launch,) = log
    assert launch.args[0] is part
    assert launch.args[3:5] == (4, 64 // launch.program.static["vec"])


def test_rows_without_unit_stride_are_copied_once(log):
    x = torch.empty(32, 4).t()
    call("RMSNormFwdOp", x, torch.empty(32), normalized_shape=[32])
    assert log[0].args[0].is_contiguous()


@pytest.mark.parametrize("op", ["AdaLayerNormFwdOp", "AdaLayerNormZeroFwdOp"])
def test_parts_of_one_modulation_are_read_in_place(log, op):
    x, parts = torch.empty(6, 64), 2 if op == "AdaLayerNormFwdOp" else 3
    modulation = torch.empty(6, parts * 64).chunk(parts, dim=-1)
    call(op, x, *modulation)
    (launch,) = log
    assert all(found is given for found, given in zip(launch.args, (x, *modulation), strict=False))
    assert launch.args[parts + 2 :] == (6, 16, *[parts * 16] * parts, 1e-5)


@pytest.mark.parametrize(
    ("vectors", "vec", "lanes"), [(512, 8, 128), (4095, 1, 256), (2048, 1, 128), (331, 1, 32), (4096, 8, 512)]
)
def test_narrow_accesses_are_shared_by_more_threads_of_a_row(vectors, vec, lanes):
    sizes = {"vectors": vectors, "vec": vec, "dtype": "bfloat16"}
    assert RMSNormKernel.default_config(target="cuda", arch="sm_90a", **sizes).lanes == lanes


def test_group_norm_parts_hold_whole_samples(log, monkeypatch):
    monkeypatch.setattr(_rows, "MAX_ELEMENTS", 100)
    call("GroupNormFwdOp", torch.empty(3, 4, 10), None, None, num_groups=2)
    assert [launch.args[-2] for launch in log] == [4, 2]


@pytest.mark.parametrize(
    ("shape", "dim", "expected"),
    [
        ((4, 8), -1, ["ReduceKernel"]),
        ((4, 8), 0, ["ColumnReduceKernel"]),
        ((2, 4, 8), [0, 1], ["ColumnReduceKernel"]),
        ((2, 4, 8), [0, 2], ["ReduceKernel", "ColumnReduceKernel"]),
        ((5, 37, 131), [0, 2], ["ReduceKernel"]),
        ((3, 5, 4, 131), [1, 3], ["ReduceKernel"]),
        ((3, 5, 4, 131), [0, 1, 3], ["ReduceKernel"]),
        ((3, 5, 4, 2, 131), [0, 2, 4], ["ReduceKernel", "ColumnReduceKernel"]),
        ((2, 4, 8), None, ["ReduceKernel"]),
        ((), None, ["ReduceKernel"]),
    ],
)
def test_a_reduction_takes_one_launch_per_group_of_axes(log, shape, dim, expected):
    call("SumFwdOp", torch.empty(shape), dim=dim)
    assert kernels(log) == expected


def test_intermediate_results_are_states_and_only_the_last_launch_finishes(log):
    call("MeanFwdOp", torch.empty(2, 4, 8, dtype=torch.float16), dim=[0, 2])
    first, last = (launch.program.static for launch in log)
    assert (first["dtype"], first["out_dtype"]) == ("float16", "state")
    assert (last["dtype"], last["out_dtype"]) == ("state", "float16")
    assert log[0].args[-1] == log[1].args[-1] == 16.0


def test_few_long_rows_are_split_and_finished_by_a_second_launch(log):
    call("SumFwdOp", torch.empty(1, 1 << 16), dim=-1)
    assert kernels(log) == ["ReduceKernel", "ReduceKernel"]
    assert log[0].sizes[1] > 1


def test_rows_joined_from_runs_carry_their_geometry(log):
    call("SumFwdOp", torch.empty(3, 5, 4, 131), dim=[1, 3])
    (launch,) = log
    assert (launch.program.static["joined"], launch.program.static["vec"]) == (True, 1)
    assert launch.sizes == [3 * 5 * 4 * 131, 12]
    assert launch.args[2:] == (4, 131, 5 * 131, 3, 5 * 4 * 131, 5 * 131.0)


@pytest.mark.parametrize("op", ["VarFwdOp", "LogSumExpFwdOp"])
def test_statistics_join_rows_too(log, op):
    call(op, torch.empty(5, 37, 131), dim=[0, 2])
    assert [launch.program.static["joined"] for launch in log] == [True]


@pytest.mark.parametrize(
    ("shape", "why"),
    [((2, 2, 1 << 16), "rows are split"), ((8, 16, 30), "runs are short"), ((1 << 16, 2, 2, 64), "outer")],
)
def test_rows_are_not_joined(log, shape, why):
    call("SumFwdOp", torch.empty(shape), dim=[-3, -1])
    assert kernels(log)[-1] == "ColumnReduceKernel", why
    assert not log[0].program.static.get("joined"), why


def test_a_tensor_beyond_32_bits_is_not_joined(log, monkeypatch):
    monkeypatch.setattr(_splits, "MAX_ELEMENTS", 1000)
    call("SumFwdOp", torch.empty(5, 37, 131), dim=[0, 2])
    assert kernels(log)[-1] == "ColumnReduceKernel"


@pytest.mark.parametrize(
    ("op", "shape", "dim", "whole"),
    [
        ("SumFwdOp", (4, 32), -1, True),
        ("SumFwdOp", (4, 4096), -1, False),
        ("VarFwdOp", (5, 37, 131), 1, True),
        ("VarFwdOp", (300, 8), 0, False),
        ("SoftmaxFwdOp", (3, 37, 211), 0, True),
        ("LogSumExpFwdOp", (5, 37, 131), 1, True),
    ],
)
def test_a_program_knows_when_one_chunk_is_all(log, op, shape, dim, whole):
    call(op, torch.empty(shape), dim=dim)
    assert [launch.program.static["whole"] for launch in log] == [whole]


def test_variance_merges_splits_and_further_axes(log):
    call("VarFwdOp", torch.empty(3, 2, 1 << 15), dim=[0, 2])
    assert kernels(log)[0] == "VarianceKernel"
    assert set(kernels(log)[1:]) == {"VarianceMergeKernel"}
    assert log[-1].args[-2] == 3 * (1 << 15)


def test_variance_and_mean_come_from_the_same_launches(log):
    variance, mean = call("VarMeanFwdOp", torch.empty(4, 64), dim=-1)
    assert kernels(log) == ["VarianceKernel"]
    assert [log[0].args[1] is variance, log[0].args[2] is mean] == [True, True]


def test_the_last_merge_writes_the_mean_in_the_dtype_of_the_outputs(log):
    variance, mean = call("VarMeanFwdOp", torch.empty(3, 2, 1 << 15, dtype=torch.float16), dim=[0, 2])
    *states, last = log
    assert {launch.program.static["out_dtype"] for launch in states} == {"state"}
    assert [last.args[2] is variance, last.args[3] is mean] == [True, True]
    assert last.sizes[2] == last.sizes[3] == mean.numel()
    assert variance.dtype == mean.dtype == torch.float16


def test_without_a_mean_the_last_merge_has_one_element_to_ignore(log):
    call("VarFwdOp", torch.empty(3, 2, 1 << 15), dim=[0, 2])
    assert log[-1].sizes[2:] == [2, 1]
    assert not log[-1].program.static["mean"]


def test_complex_elements_are_counted_by_either_part(log):
    call("CountNonzeroFwdOp", torch.empty(4, 6, dtype=torch.complex64))
    first, last = (launch.program.static for launch in log)
    assert (first["op"], first["out_dtype"]) == ("any", "bool")
    assert (last["op"], last["dtype"], last["out_dtype"]) == ("count_nonzero", "bool", "int64")


def test_numbers_for_infinities_default_to_the_ends_of_the_dtype(log):
    call("NanToNumFwdOp", torch.empty(64, dtype=torch.float16), neginf=-2.0)
    assert log[0].args[3:5] == (65504.0, -2.0)


def test_a_number_for_nan_beyond_the_dtype_is_no_error(log):
    x = torch.empty(64)
    call("NanToNumFwdOp", x, nan=1e300)
    assert log[0].args[1].dtype == x.dtype


@pytest.mark.parametrize("op", ["SumFwdOp", "MeanFwdOp", "AllFwdOp", "AnyFwdOp"])
def test_the_reduction_of_nothing_is_filled_without_a_launch(log, op):
    dtype = torch.bool if op in ("AllFwdOp", "AnyFwdOp") else torch.float32
    result = call(op, torch.empty(0, 3, dtype=dtype), dim=0)
    assert log == []
    assert (result.shape, result.dtype) == ((3,), dtype)


def test_softmax_takes_one_launch_if_a_row_fits_in_registers_and_two_if_not(log, monkeypatch):
    call("SoftmaxFwdOp", torch.empty(4, 1000), dim=-1)
    call("SoftmaxFwdOp", torch.empty(4, 1 << 18), dim=-1)
    call("SoftmaxFwdOp", torch.empty(4, 1000), dim=0)
    assert kernels(log) == ["SoftmaxKernel", "LogSumExpKernel", "SoftmaxApplyKernel", "ColumnSoftmaxKernel"]


def test_no_flow_launches_for_an_empty_output(log):
    assert call("CumsumFwdOp", torch.empty(0, 3)).shape == (0, 3)
    assert call("SiluAndMulFwdOp", torch.empty(0, 6)).shape == (0, 3)
    assert call("SoftmaxFwdOp", torch.empty(2, 0), dim=-1).shape == (2, 0)
    assert log == []


@pytest.mark.parametrize("length", [1, 7, 1024, 5000, 100_000])
def test_splits_are_whole_tiles_and_cover_the_length(length):
    config = SimpleNamespace(target_blocks=264)
    split = split_of(length, 256, 8, 4, config)
    assert split.length % 256 == 0
    assert (split.count - 1) * split.length < length <= split.count * split.length


def test_what_needs_a_second_launch_is_split_as_far_as_there_are_blocks():
    config = SimpleNamespace(target_blocks=264)
    assert split_of(24235, 1024, 1, 1, config).count == 24
    assert split_of(8191, 1024, 1, 1, config).count == 1
    assert split_of(1 << 20, 1024, 1, 100, config).count == 2


def test_merging_dims_keeps_every_operand_addressable():
    sizes, (a, b) = _layout.merge_dims([2, 3, 4], [[12, 4, 1], [0, 4, 1]])
    assert (sizes, a, b) == ([2, 12], [12, 1], [0, 1])


def test_stages_shrink_what_the_next_one_reads():
    from tileops_kernels.ops.flows._axes import stages

    assert stages([2, 3, 4, 5], [1, 3]) == [Stage(24, 5, 1), Stage(2, 3, 4)]


def test_quantisation_is_one_launch_over_rows_in_place(log):
    x = torch.empty(2, 3, 1, 128, dtype=torch.bfloat16)[..., :64]
    scale, output = call("FP8QuantFwdOp", x)
    (launch,) = log
    assert launch.args[0] is x
    assert launch.args[3:] == (6, 128 // launch.program.static["vec"])
    assert (scale.shape, output.shape, output.dtype) == ((2, 3, 1), x.shape, torch.float8_e4m3fn)


@pytest.mark.parametrize("params", [{"training": False}, {"p": 0.0}], ids=str)
def test_where_nothing_is_dropped_the_input_is_copied(log, params):
    x = torch.ones(4, 4)
    result = call("DropoutFwdOp", x, **params)
    assert log == []
    assert result is not x
    assert result.data_ptr() != x.data_ptr()


def test_dropout_cuts_its_seed_in_halves_and_counts_on_where_the_last_launch_ended(log, monkeypatch):
    from tileops_kernels.ops.flows import dropout

    monkeypatch.setattr(dropout, "MAX_ELEMENTS", 64)
    call("DropoutFwdOp", torch.ones(150), p=0.25, seed=-1)
    assert [launch.sizes for launch in log] == [[64, 64], [64, 64], [22, 22]]
    assert [launch.args[2:] for launch in log] == [
        (first, 0xFFFFFFFF, 0xFFFFFFFF, 1 << 30, 1 / 0.75) for first in (0, 16, 32)
    ]


@pytest.mark.parametrize("p", [1.0, 1 - 2.0**-40])
def test_a_probability_that_no_word_reaches_drops_all(log, p):
    call("DropoutFwdOp", torch.ones(8), p=p)
    assert log[0].args[-2:] == (0xFFFFFFFF, 0.0)


def test_a_table_of_many_heads_is_cut_between_heads(log, monkeypatch):
    monkeypatch.setattr(_rows, "MAX_ELEMENTS", 64)
    call("AlibiFwdOp", seq_len=4, num_heads=6, dtype="float32")
    assert [launch.sizes for launch in log] == [[4, 64], [2, 32]]
    assert [launch.args[2:] for launch in log] == [(4, 1), (4, 1)]


def test_columns_of_a_table_are_read_in_pairs(log):
    call("SinusoidalFwdOp", seq_len=5, d_model=6, dtype="float16")
    (launch,) = log
    assert launch.program.static["vec"] == 2
    assert launch.sizes == [3, 30]
    assert launch.args[2:] == (5, 3)
