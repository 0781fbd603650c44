// C[M][N] += A[M][K] @ B[K][N], all packed. Each element of C adds its K products in order, so the result does not depend on blocking.
#pragma once

template <typename T, int M, int N, int K, int ROWS, int COLUMNS>
TL_INLINE void tl_gemm_block(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c) {
  T acc[ROWS][COLUMNS];
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS; ++j) acc[i][j] = c[i * N + j];
  for (int k = 0; k < K; ++k) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
      const T x = a[i * K + k];
#pragma GCC ivdep
      for (int j = 0; j < COLUMNS; ++j) acc[i][j] += x * b[k * N + j];
    }
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < COLUMNS; ++j) c[i * N + j] = acc[i][j];
}

template <typename T, int M, int N, int K>
static void tl_gemm(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c) {
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) {
      const T x = a[i * K + k];
#pragma GCC ivdep
      for (int j = 0; j < N; ++j) c[i * N + j] += x * b[k * N + j];
    }
}
