// Root mean square norms, one row of WIDTH values a group of THREADS threads. GATED 0: bf16 rows times a bf16 weight, rounded before it.
// GATED 1: fp32 rows times an fp32 weight times the sigmoid of a bf16 gate, rounded once.

#include "device.cuh"

constexpr int BLOCK = THREADS > 128 ? THREADS : 128;
constexpr int OWN = WIDTH / THREADS;

// The sum over a row, the same bits in every thread: neighbours first, then warps in ascending order.
__device__ __forceinline__ float row_sum(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
    if (THREADS == 32) return v;
    __shared__ float kept[BLOCK / 32];
    if (threadIdx.x % 32 == 0) kept[threadIdx.x / 32] = v;
    __syncthreads();
    float total = kept[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; warp++) total += kept[warp];
    return total;
}

#if GATED
extern "C" __global__ void __launch_bounds__(BLOCK)
    row_norm(const float* __restrict__ x, const float* __restrict__ weight, const u16* __restrict__ gate, u16* __restrict__ out, int rows, float eps) {
#else
extern "C" __global__ void __launch_bounds__(BLOCK)
    row_norm(const u16* __restrict__ x, const u16* __restrict__ weight, u16* __restrict__ out, int rows, float eps) {
#endif
    await_inputs();
    const int row = (blockIdx.x * BLOCK + threadIdx.x) / THREADS, lane = threadIdx.x % THREADS;
    if (row >= rows) return;
    const size_t at = (size_t)row * WIDTH;
    float v[OWN], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
#if GATED
        v[i] = x[at + i * THREADS + lane];
#else
        v[i] = from_bf16(x[at + i * THREADS + lane]);
#endif
        sum = __fmaf_rn(v[i], v[i], sum);
    }
    const float inverse = rsqrtf(__fmaf_rn(row_sum(sum), 1.0f / WIDTH, eps));
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int column = i * THREADS + lane;
#if GATED
        const float share = __fdiv_rn(1.0f, 1.0f + expf(-from_bf16(gate[at + column])));
        out[at + column] = to_bf16(v[i] * inverse * weight[column] * share);
#else
        out[at + column] = to_bf16(from_bf16(to_bf16(v[i] * inverse)) * from_bf16(weight[column]));
#endif
    }
}
