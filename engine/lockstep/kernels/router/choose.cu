// Choice of routed experts: logits of two experts a block for all rows, then the largest of each row.

#include "device.cuh"

constexpr int QUARTERS = 4;
// Values a lane reads at once, and how often.
constexpr int NEAR = INPUTS % 1024 == 0 ? 8 : 2;
constexpr int OWN = INPUTS / QUARTERS / 32 / NEAR;
constexpr int HELD = (EXPERTS + 31) / 32;
constexpr int AT_ONCE = 64;
constexpr int TOGETHER = 4;

__device__ __forceinline__ u32 order_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// All of them are on their way before the first is used.
__device__ __forceinline__ void load(u32* to, const u16* from) {
    if constexpr (NEAR == 8)
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    else
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

// x bf16 [rows][INPUTS], router fp32 [EXPERTS][INPUTS] -> logits fp32 [rows][EXPERTS] of the first `count_at[0]` rows (`counts` 0: `held`).
// Grid: pairs of experts.
extern "C" __global__ void __launch_bounds__(256)
    logits(const u16* __restrict__ x, const float* __restrict__ router, float* __restrict__ out, const int* __restrict__ count_at, int held, int counts) {
    __shared__ float kept[2][QUARTERS][AT_ONCE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, expert = blockIdx.x * 2 + warp / QUARTERS, quarter = warp % QUARTERS;
    const int begin = quarter * (INPUTS / QUARTERS) + NEAR * lane;
    float own[OWN][NEAR];
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < NEAR; j += 2) {
            const float2 pair = *reinterpret_cast<const float2*>(router + (size_t)expert * INPUTS + begin + i * 32 * NEAR + j);
            own[i][j] = pair.x, own[i][j + 1] = pair.y;
        }
    const int count = counts ? count_at[0] : held;
    await_inputs();
    for (int first = 0; first < count; first += AT_ONCE) {
        const int now = min(AT_ONCE, count - first);
        for (int r = 0; r < now; r += TOGETHER) {
            u32 pairs[TOGETHER][OWN][NEAR / 2];
#pragma unroll
            for (int t = 0; t < TOGETHER; t++)
#pragma unroll
                for (int i = 0; i < OWN; i++) load(pairs[t][i], x + (size_t)(first + min(r + t, now - 1)) * INPUTS + begin + i * 32 * NEAR);
#pragma unroll
            for (int t = 0; t < TOGETHER; t++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < OWN; i++)
#pragma unroll
                    for (int j = 0; j < NEAR / 2; j++) {
                        sum = __fmaf_rn(from_bf16(pairs[t][i][j] & 0xFFFFu), own[i][2 * j], sum);
                        sum = __fmaf_rn(from_bf16(pairs[t][i][j] >> 16), own[i][2 * j + 1], sum);
                    }
                sum = warp_sum(sum);
                if (lane == 0 && r + t < now) kept[warp / QUARTERS][quarter][r + t] = sum;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * now; i += 256) {
            const float* const part = &kept[i & 1][0][i / 2];
            // exact: quarters in ascending order.
            out[(size_t)(first + i / 2) * EXPERTS + blockIdx.x * 2 + (i & 1)] =
                __fadd_rn(__fadd_rn(__fadd_rn(part[0], part[AT_ONCE]), part[2 * AT_ONCE]), part[3 * AT_ONCE]);
        }
        __syncthreads();
    }
}

// correction fp32 [EXPERTS]; chosen int64 and weights fp32 [rows][SLOTS], -1 and 0 for rows without logits. Grid: rows, a warp each.
extern "C" __global__ void __launch_bounds__(32)
    choose(const float* __restrict__ logits, const float* __restrict__ correction, long long* __restrict__ chosen, float* __restrict__ weights,
           const int* __restrict__ count_at, int held, int counts, float factor) {
    const int row = blockIdx.x, lane = threadIdx.x;
    const int count = counts ? count_at[0] : held;
    float by[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) by[i] = i * 32 + lane < EXPERTS ? correction[i * 32 + lane] : 0.0f;
    await_inputs();
    long long picked = -1;
    float share = 0.0f;
    if (row < count) {
        float score[HELD];
        u32 order[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int at = i * 32 + lane;
            score[i] = at < EXPERTS ? sigmoid(logits[(size_t)row * EXPERTS + at]) : 0.0f;
            order[i] = at < EXPERTS ? order_of(__fadd_rn(score[i], by[i])) : 0;
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
