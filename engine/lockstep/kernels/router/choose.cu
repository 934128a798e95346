// Choice of routed experts in one launch: blocks work out two experts' logits for all rows, the last block done chooses for each row.

#include "device.cuh"

constexpr int QUARTERS = 4;
constexpr int OWN = INPUTS / QUARTERS / 64;
constexpr int HELD = (EXPERTS + 31) / 32;
constexpr int AT_ONCE = 64;

__device__ __forceinline__ u32 order_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// x bf16 [rows][INPUTS], router fp32 [EXPERTS][INPUTS], correction fp32 [EXPERTS], logits fp32 [rows][EXPERTS]; chosen int64 and weights fp32
// [rows][SLOTS], -1 and 0 for rows behind the first `count_at[0]` (`counts` 0: `held`); ticket int32 [1], 0 between launches.
extern "C" __global__ void __launch_bounds__(256)
    choose(const u16* __restrict__ x, const float* __restrict__ router, const float* __restrict__ correction, float* logits, long long* __restrict__ chosen,
           float* __restrict__ weights, int* ticket, const int* __restrict__ count_at, int rows, int held, int counts, float factor) {
    __shared__ float kept[2][QUARTERS][AT_ONCE];
    __shared__ bool last;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, expert = blockIdx.x * 2 + warp / QUARTERS, quarter = warp % QUARTERS;
    const int begin = quarter * (INPUTS / QUARTERS) + 2 * lane;
    float2 own[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) own[i] = *reinterpret_cast<const float2*>(router + (size_t)expert * INPUTS + begin + i * 64);
    await_inputs();
    const int count = counts ? count_at[0] : held;
    for (int first = 0; first < count; first += AT_ONCE) {
        const int now = min(AT_ONCE, count - first);
#pragma unroll 2
        for (int r = 0; r < now; r++) {
            const u16* const from = x + (size_t)(first + r) * INPUTS + begin;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const u32 pair = *reinterpret_cast<const u32*>(from + i * 64);
                sum = __fmaf_rn(from_bf16(pair & 0xFFFFu), own[i].x, sum);
                sum = __fmaf_rn(from_bf16(pair >> 16), own[i].y, sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) kept[warp / QUARTERS][quarter][r] = sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * now; i += 256) {
            const float* const part = &kept[i & 1][0][i / 2];
            // exact: quarters in ascending order.
            logits[(size_t)(first + i / 2) * EXPERTS + blockIdx.x * 2 + (i & 1)] =
                __fadd_rn(__fadd_rn(__fadd_rn(part[0], part[AT_ONCE]), part[2 * AT_ONCE]), part[3 * AT_ONCE]);
        }
        __syncthreads();
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) *ticket = 0;
    for (int row = warp; row < rows; row += 8) {
        long long picked = -1;
        float share = 0.0f;
        if (row < count) {
            float score[HELD];
            u32 order[HELD];
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const int at = i * 32 + lane;
                score[i] = at < EXPERTS ? sigmoid(__ldcg(logits + (size_t)row * EXPERTS + at)) : 0.0f;
                order[i] = at < EXPERTS ? order_of(__fadd_rn(score[i], correction[at])) : 0;
            }
            float total = 0.0f;
            for (int slot = 0; slot < SLOTS; slot++) {
                u32 most = 0, at = EXPERTS;
#pragma unroll
                for (int i = 0; i < HELD; i++) most = max(most, order[i]);
                most = __reduce_max_sync(~0u, most);
                float own_score = 0.0f;
                // exact: of equal values the lower id.
#pragma unroll
                for (int i = HELD - 1; i >= 0; i--)
                    if (order[i] == most) at = i * 32 + lane, own_score = score[i];
                const u32 best = __reduce_min_sync(~0u, at);
                own_score = __shfl_sync(~0u, own_score, best & 31);
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    if (i * 32 + lane == best) order[i] = 0;
                if (lane == slot) picked = best, share = own_score;
                total = __fadd_rn(total, own_score);
            }
            share = __fmul_rn(__fdiv_rn(share, total + 1e-20f), factor);
        }
        if (lane < SLOTS) chosen[(size_t)row * SLOTS + lane] = picked, weights[(size_t)row * SLOTS + lane] = share;
    }
}
