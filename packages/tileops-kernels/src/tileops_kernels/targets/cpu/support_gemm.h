// C[M][N] += A[M][K] @ B[K][N], all packed. Every element of C adds its K products in order, whatever the blocking.
#pragma once

// ROWS rows of C by DEPTH steps of k: C is loaded and stored once per DEPTH products.
template <typename T, int N, int K, int ROWS, int DEPTH>
TL_INLINE void tl_gemm_panel(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c) {
  T x[ROWS][DEPTH];
  for (int i = 0; i < ROWS; ++i)
    for (int k = 0; k < DEPTH; ++k) x[i][k] = a[i * K + k];
#pragma GCC ivdep
  for (int j = 0; j < N; ++j) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
      T sum = c[i * N + j];
#pragma GCC unroll 8
      for (int k = 0; k < DEPTH; ++k) sum += x[i][k] * b[k * N + j];
      c[i * N + j] = sum;
    }
  }
}

template <typename T, int N, int K, int ROWS>
TL_INLINE void tl_gemm_rows(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c) {
  int k = 0;
  for (; k + 4 <= K; k += 4) tl_gemm_panel<T, N, K, ROWS, 4>(a + k, b + k * N, c);
  for (; k < K; ++k) tl_gemm_panel<T, N, K, ROWS, 1>(a + k, b + k * N, c);
}

template <typename T, int M, int N, int K>
static void tl_gemm(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ c) {
  int i = 0;
  for (; i + 4 <= M; i += 4) tl_gemm_rows<T, N, K, 4>(a + i * K, b, c + i * N);
  for (; i < M; ++i) tl_gemm_rows<T, N, K, 1>(a + i * K, b, c + i * N);
}
