// Hyper-connections of four bf16 streams, fp32 arithmetic: one launch turns streams into a normed branch input, one returns a branch to the streams
// and adds up for the next site what its weights make of them.

#include "device.cuh"

constexpr int STREAMS = 4;
constexpr int VALUES = STREAMS * (STREAMS + 2);
constexpr int KEPT = VALUES + 1;
constexpr int SLICE = 128;
constexpr int SLICES = HIDDEN / SLICE;
constexpr int MOST_GROUP = 8;
constexpr int MIX_THREADS = HIDDEN / 8;

// What a site's weights make of a row: 24 values and the inverse root mean square, lane i has value i. `sums` fp32 [rows][SLICES][25].
__device__ __forceinline__ float site_value(const float* sums, const float* scale, const float* base, int row, float norm_eps) {
    const int lane = threadIdx.x & 31, own = lane < KEPT ? lane : VALUES;
    float total = 0.0f;
    // exact: slices in ascending order, whatever the number of rows.
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) total = __fadd_rn(total, sums[((size_t)row * SLICES + slice) * KEPT + own]);
    const float inverse = rsqrtf(__shfl_sync(~0u, total, VALUES) * (1.0f / (STREAMS * HIDDEN)) + norm_eps);
    return lane < VALUES ? base[lane] + total * inverse * scale[lane] : 0.0f;
}

// Lane i of a warp gets the sum of all lanes' `v[i]`: neighbours 16 apart first.
template <int DISTANCE>
__device__ __forceinline__ float sums_of_lanes(float* v) {
    const bool upper = threadIdx.x & DISTANCE;
#pragma unroll
    for (int i = 0; i < DISTANCE; i++) {
        const float mine = upper ? v[i + DISTANCE] : v[i], given = upper ? v[i] : v[i + DISTANCE];
        v[i] = __fadd_rn(mine, __shfl_xor_sync(~0u, given, DISTANCE));
    }
    if constexpr (DISTANCE > 1) return sums_of_lanes<DISTANCE / 2>(v);
    return v[0];
}

// The weights of one column of each stream, fn fp32 [4 HIDDEN][24].
struct Weights {
    float4 of[STREAMS][VALUES / 4];
    __device__ __forceinline__ Weights(const float* fn, int column) {
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const float4* const from = reinterpret_cast<const float4*>(fn + ((size_t)s * HIDDEN + column) * VALUES);
#pragma unroll
            for (int i = 0; i < VALUES / 4; i++) of[s][i] = from[i];
        }
    }
    __device__ __forceinline__ float sums(const float* x) const {
        float v[32] = {};
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
#pragma unroll
            for (int i = 0; i < VALUES / 4; i++) {
                v[4 * i] = __fmaf_rn(x[s], of[s][i].x, v[4 * i]), v[4 * i + 1] = __fmaf_rn(x[s], of[s][i].y, v[4 * i + 1]);
                v[4 * i + 2] = __fmaf_rn(x[s], of[s][i].z, v[4 * i + 2]), v[4 * i + 3] = __fmaf_rn(x[s], of[s][i].w, v[4 * i + 3]);
            }
            v[VALUES] = __fmaf_rn(x[s], x[s], v[VALUES]);
        }
        return sums_of_lanes<16>(v);
    }
};

// Each warp's sums of `count` rows to `sums`, warps in ascending order.
__device__ __forceinline__ void store_sums(float (*kept)[SLICE / 32][KEPT], float* sums, int first, int count, int slice) {
    __syncthreads();
    for (int i = threadIdx.x; i < count * KEPT; i += SLICE) {
        const int r = i / KEPT, own = i % KEPT;
        float total = kept[r][0][own];
#pragma unroll
        for (int warp = 1; warp < SLICE / 32; warp++) total = __fadd_rn(total, kept[r][warp][own]);
        sums[((size_t)(first + r) * SLICES + slice) * KEPT + own] = total;
    }
}

// The first site's sums: streams bf16 [rows][4][HIDDEN]. Grid: groups of `group` rows by slices of 128 columns.
extern "C" __global__ void __launch_bounds__(SLICE)
    begin(const u16* __restrict__ streams, const float* __restrict__ fn, float* __restrict__ sums, int rows, int group) {
    __shared__ float kept[MOST_GROUP][SLICE / 32][KEPT];
    const int slice = blockIdx.x % SLICES, first = blockIdx.x / SLICES * group, count = min(group, rows - first);
    const int column = slice * SLICE + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const Weights weights(fn, column);
    await_inputs();
    for (int r = 0; r < count; r++) {
        float x[STREAMS];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) x[s] = from_bf16(streams[((size_t)(first + r) * STREAMS + s) * HIDDEN + column]);
        const float sum = weights.sums(x);
        if (lane < KEPT) kept[r][warp][lane] = sum;
    }
    store_sums(kept, sums, first, count, slice);
}

// Branch input out bf16 [rows][HIDDEN], through the norm of the branch. scale, base fp32 [24], eps fp32 [1], norm bf16 [HIDDEN]. Grid: rows.
extern "C" __global__ void __launch_bounds__(MIX_THREADS)
    mix(const u16* __restrict__ streams, const float* __restrict__ sums, const float* __restrict__ scale, const float* __restrict__ base,
        const float* __restrict__ eps_at, const u16* __restrict__ norm, u16* __restrict__ out, float norm_eps, float branch_eps) {
    __shared__ float kept[MIX_THREADS / 32];
    const int row = blockIdx.x, column = threadIdx.x * 8;
    const uint4 by = *reinterpret_cast<const uint4*>(norm + column);
    await_inputs();
    uint4 in[STREAMS];
#pragma unroll
    for (int s = 0; s < STREAMS; s++) in[s] = *reinterpret_cast<const uint4*>(streams + ((size_t)row * STREAMS + s) * HIDDEN + column);
    const float pre = eps_at[0] + sigmoid(site_value(sums, scale, base, row, norm_eps));
    float u[8] = {};
#pragma unroll
    for (int s = 0; s < STREAMS; s++) {
        const float share = __shfl_sync(~0u, pre, s);
        const u32 words[4] = {in[s].x, in[s].y, in[s].z, in[s].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[2 * i] = __fmaf_rn(share, from_bf16(words[i] & 0xFFFFu), u[2 * i]);
            u[2 * i + 1] = __fmaf_rn(share, from_bf16(words[i] >> 16), u[2 * i + 1]);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = as_bf16(u[i]), sum = __fmaf_rn(u[i], u[i], sum);
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) kept[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = kept[0];
#pragma unroll
    for (int warp = 1; warp < MIX_THREADS / 32; warp++) sum = __fadd_rn(sum, kept[warp]);
    const float inverse = rsqrtf(__fmaf_rn(sum, 1.0f / HIDDEN, branch_eps));
    const u32 weights[4] = {by.x, by.y, by.z, by.w};
    u32 made[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        made[i] = to_bf16(as_bf16(u[2 * i] * inverse) * from_bf16(weights[i] & 0xFFFFu)) |
                  (u32)to_bf16(as_bf16(u[2 * i + 1] * inverse) * from_bf16(weights[i] >> 16)) << 16;
    *reinterpret_cast<uint4*>(out + (size_t)row * HIDDEN + column) = make_uint4(made[0], made[1], made[2], made[3]);
}

// S'_j = post_j branch + sum_i comb[i][j] S_i, the sum rounded before the branch is added, and the next site's sums of S'. `sums`, scale, base, eps
// belong to the site that is left; out bf16 [rows][4][HIDDEN], next_sums as `sums`. Grid as for `begin`.
extern "C" __global__ void __launch_bounds__(SLICE)
    merge(const u16* __restrict__ streams, const u16* __restrict__ branch, const float* __restrict__ sums, const float* __restrict__ scale,
          const float* __restrict__ base, const float* __restrict__ eps_at, const float* __restrict__ next_fn, u16* __restrict__ out,
          float* __restrict__ next_sums, int rows, int group, int rounds, float norm_eps) {
    __shared__ float kept[MOST_GROUP][SLICE / 32][KEPT];
    __shared__ float back[MOST_GROUP][STREAMS], comb[MOST_GROUP][STREAMS][STREAMS];
    const int slice = blockIdx.x % SLICES, first = blockIdx.x / SLICES * group, count = min(group, rows - first);
    const int column = slice * SLICE + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const Weights weights(next_fn, column);
    // Streams and sums are older than the branch, so the mixing weights are worked out while it is still being made.
    for (int r = warp; r < count; r += SLICE / 32) {
        const float y = site_value(sums, scale, base, first + r, norm_eps), eps = eps_at[0];
        if (lane >= STREAMS && lane < 2 * STREAMS) back[r][lane - STREAMS] = as_bf16(2.0f * sigmoid(y));
        float c = __shfl_sync(~0u, y, 2 * STREAMS + (lane & 15));
        float most = fmaxf(c, __shfl_xor_sync(~0u, c, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        c = expf(c - most);
        float all = c + __shfl_xor_sync(~0u, c, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        c = __fdiv_rn(c, all) + eps;
        for (int i = 0; i < 2 * rounds - 1; i++) {
            const int near = i & 1 ? 1 : STREAMS, far = 2 * near;
            float sum = c + __shfl_xor_sync(~0u, c, near);
            sum += __shfl_xor_sync(~0u, sum, far);
            c = __fdiv_rn(c, sum + eps);
        }
        if (lane < STREAMS * STREAMS) comb[r][lane / STREAMS][lane % STREAMS] = as_bf16(c);
    }
    u16 ahead[STREAMS];
#pragma unroll
    for (int s = 0; s < STREAMS; s++) ahead[s] = streams[((size_t)first * STREAMS + s) * HIDDEN + column];
    __syncthreads();
    await_inputs();
    u16 branch_ahead = branch[(size_t)first * HIDDEN + column];
    for (int r = 0; r < count; r++) {
        const size_t at = (size_t)(first + r) * STREAMS * HIDDEN + column;
        const float own = from_bf16(branch_ahead);
        float in[STREAMS], x[STREAMS];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) in[s] = from_bf16(ahead[s]);
        if (r + 1 < count) {
#pragma unroll
            for (int s = 0; s < STREAMS; s++) ahead[s] = streams[at + (size_t)(STREAMS + s) * HIDDEN];
            branch_ahead = branch[(size_t)(first + r + 1) * HIDDEN + column];
        }
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            float total = 0.0f;
#pragma unroll
            for (int from = 0; from < STREAMS; from++) total = __fmaf_rn(comb[r][from][s], in[from], total);
            const u16 made = to_bf16(__fmaf_rn(back[r][s], own, as_bf16(total)));
            out[at + (size_t)s * HIDDEN] = made;
            x[s] = from_bf16(made);
        }
        const float sum = weights.sums(x);
        if (lane < KEPT) kept[r][warp][lane] = sum;
    }
    store_sums(kept, next_sums, first, count, slice);
}
