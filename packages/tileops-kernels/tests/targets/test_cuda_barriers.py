"""Generated code in which a barrier waits for threads that never come is refused before it reaches a GPU."""

from __future__ import annotations

import pytest
import tilelang.language as T

from tileops_kernels.targets import LoweringError, lower_cuda
from tileops_kernels.targets.cuda.barriers import check_barriers


def kernel(body: str, threads: int = 256) -> str:
    head = f'extern "C" __global__ void __launch_bounds__({threads}, 1) k(float* x, int seq) {{'
    return "\n".join([head, *("  " + line for line in body.strip().splitlines()), "}"])


ONE_WARP = """
if ((((int)threadIdx.x) >> 5) == 4) {
  tl::__sync_thread_partial(3, 128);
}
tl::__sync_thread_partial(3, 128);
"""
HALF_OF_ALL = """
if (((int)threadIdx.x) < 128) {
  x[0] = 0;
  __syncthreads();
}
"""
ELSE_BRANCH = """
if (((int)threadIdx.x) < 128) {
  x[0] = 0;
} else {
  for (int i = 0; i < seq; ++i) {
    tl::__sync_thread_partial(2, 256);
  }
}
"""
PRODUCER_AND_CONSUMERS = """
__syncthreads();
if (((int)threadIdx.x) < 128) {
  x[0] = 0;
} else {
  if (seq < 32) {
    tl::__sync_thread_partial(3, 128);
  }
}
"""
TWO_GROUPS_IN_TURN = """
if (((int)threadIdx.x) < 128) {
  tl::__sync_thread_partial(1, 256);
  tl::__named_barrier_arrive(2, 256);
} else {
  tl::__named_barrier_arrive(1, 256);
  tl::__sync_thread_partial(2, 256);
}
"""


SEVERAL_CONDITIONS = """
if (64 <= ((int)threadIdx.x) && ((((int)threadIdx.x) & 31) != 5) || (((int)threadIdx.x) / 2) % 4 == 1) {
  __syncthreads();
}
"""


@pytest.mark.parametrize("body", [ONE_WARP, HALF_OF_ALL, ELSE_BRANCH, SEVERAL_CONDITIONS])
def test_barrier_that_too_few_threads_reach_is_refused(body: str) -> None:
    with pytest.raises(LoweringError, match=r"k: a barrier for \d+ threads is reached by \d+ of them"):
        check_barriers(kernel(body))


@pytest.mark.parametrize("body", [PRODUCER_AND_CONSUMERS, TWO_GROUPS_IN_TURN])
def test_barrier_that_opens_is_let_through(body: str) -> None:
    check_barriers(kernel(body))


def test_every_kernel_of_a_source_is_looked_at() -> None:
    with pytest.raises(LoweringError, match="k: a barrier"):
        check_barriers(kernel(PRODUCER_AND_CONSUMERS) + "\n" + kernel(ONE_WARP))


def test_generated_code_is_looked_at_when_a_program_is_lowered() -> None:
    @T.prim_func
    def stuck(x: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128) as _:
            thread = T.get_thread_binding()
            if thread < 32:
                x[thread] = 1.0
                T.sync_threads(3, 128)

    with pytest.raises(LoweringError, match="a barrier for 128 threads is reached by 32 of them"):
        lower_cuda(stuck, "sm_90a")
