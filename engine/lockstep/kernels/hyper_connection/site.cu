// One hyper-connection site of four streams in two launches, and the return of a branch in a third. bf16 streams, fp32 arithmetic.

#include "device.cuh"

constexpr int STREAMS = 4;
constexpr int VALUES = STREAMS * (STREAMS + 2);
constexpr int SLICE = 256;
constexpr int SLICES = STREAMS * HIDDEN / SLICE;
constexpr int KEPT = VALUES + 1;
constexpr int COLUMNS = HIDDEN % 1024 == 0 ? 1024 : 256;

__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }

// Sums of 256 products for each of the 24 values, and of 256 squares. streams bf16 [rows][4 HIDDEN], fn fp32 [4 HIDDEN][24],
// sums fp32 [rows][SLICES][25]. Block: one slice of one row.
extern "C" __global__ void __launch_bounds__(SLICE)
    site_sums(const u16* __restrict__ streams, const float* __restrict__ fn, float* __restrict__ sums) {
    __shared__ float kept[SLICE / 32][KEPT];
    const int at = blockIdx.x % SLICES * SLICE + threadIdx.x, row = blockIdx.x / SLICES, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const float4* from = reinterpret_cast<const float4*>(fn + (size_t)at * VALUES);
    float4 weights[VALUES / 4];
#pragma unroll
    for (int i = 0; i < VALUES / 4; i++) weights[i] = from[i];
    await_inputs();
    const float x = from_bf16(streams[(size_t)row * STREAMS * HIDDEN + at]);
    float v[KEPT];
#pragma unroll
    for (int i = 0; i < VALUES / 4; i++) {
        v[4 * i] = x * weights[i].x, v[4 * i + 1] = x * weights[i].y, v[4 * i + 2] = x * weights[i].z, v[4 * i + 3] = x * weights[i].w;
    }
    v[VALUES] = x * x;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) v[i] += __shfl_xor_sync(~0u, v[i], distance);
        if (lane == 0) kept[warp][i] = v[i];
    }
    __syncthreads();
    if (threadIdx.x < KEPT) {
        float total = kept[0][threadIdx.x];
#pragma unroll
        for (int other = 1; other < SLICE / 32; other++) total += kept[other][threadIdx.x];
        sums[(size_t)blockIdx.x * KEPT + threadIdx.x] = total;
    }
}

// Branch input u bf16 [rows][HIDDEN], post bf16 [rows][4], comb bf16 [rows][4][4]. scale, base fp32 [24], eps fp32 [1].
// Every block of a row works out the few weights by itself; it then mixes COLUMNS columns.
extern "C" __global__ void __launch_bounds__(256)
    site_mix(const u16* __restrict__ streams, const float* __restrict__ sums, const float* __restrict__ scale, const float* __restrict__ base,
             const float* __restrict__ eps_at, u16* __restrict__ u, u16* __restrict__ post, u16* __restrict__ comb, int rounds, float norm_eps) {
    __shared__ float weights[STREAMS];
    await_inputs();
    const int row = blockIdx.x / (HIDDEN / COLUMNS), part = blockIdx.x % (HIDDEN / COLUMNS);
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x, own = lane < KEPT ? lane : VALUES;
        const float eps = eps_at[0];
        float total = 0.0f;
        // exact: slices in ascending order, whatever the number of rows.
#pragma unroll 8
        for (int slice = 0; slice < SLICES; slice++) total += sums[((size_t)row * SLICES + slice) * KEPT + own];
        const float inverse = rsqrtf(__shfl_sync(~0u, total, VALUES) * (1.0f / (STREAMS * HIDDEN)) + norm_eps);
        const float y = lane < VALUES ? base[lane] + total * inverse * scale[lane] : 0.0f;
        const float gate = sigmoid(y);
        if (lane < STREAMS) weights[lane] = eps + gate;
        if (part == 0 && lane >= STREAMS && lane < 2 * STREAMS) post[row * STREAMS + lane - STREAMS] = to_bf16(2.0f * gate);
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
        if (part == 0 && lane < STREAMS * STREAMS) comb[row * STREAMS * STREAMS + lane] = to_bf16(c);
    }
    __syncthreads();
    for (int i = threadIdx.x * 4; i < COLUMNS; i += 1024) {
        const int column = part * COLUMNS + i;
        float total[4] = {};
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const ushort4 in = *reinterpret_cast<const ushort4*>(streams + ((size_t)row * STREAMS + s) * HIDDEN + column);
            const u16 x[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
            for (int j = 0; j < 4; j++) total[j] = __fmaf_rn(weights[s], from_bf16(x[j]), total[j]);
        }
        *reinterpret_cast<ushort4*>(u + (size_t)row * HIDDEN + column) =
            make_ushort4(to_bf16(total[0]), to_bf16(total[1]), to_bf16(total[2]), to_bf16(total[3]));
    }
}

// S'_j = post_j branch + sum_i comb[i][j] S_i, the sum rounded before the branch is added. out bf16 [rows][4][HIDDEN].
extern "C" __global__ void __launch_bounds__(256)
    merge(const u16* __restrict__ streams, const u16* __restrict__ branch, const u16* __restrict__ post, const u16* __restrict__ comb,
          u16* __restrict__ out) {
    await_inputs();
    const int row = blockIdx.x / (HIDDEN / COLUMNS), part = blockIdx.x % (HIDDEN / COLUMNS);
    float mix[STREAMS][STREAMS], back[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) {
        back[i] = from_bf16(post[row * STREAMS + i]);
#pragma unroll
        for (int j = 0; j < STREAMS; j++) mix[i][j] = from_bf16(comb[(row * STREAMS + i) * STREAMS + j]);
    }
    for (int i = threadIdx.x * 4; i < COLUMNS; i += 1024) {
        const int column = part * COLUMNS + i;
        float in[STREAMS][4], own[4];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const ushort4 x = *reinterpret_cast<const ushort4*>(streams + ((size_t)row * STREAMS + s) * HIDDEN + column);
            in[s][0] = from_bf16(x.x), in[s][1] = from_bf16(x.y), in[s][2] = from_bf16(x.z), in[s][3] = from_bf16(x.w);
        }
        const ushort4 x = *reinterpret_cast<const ushort4*>(branch + (size_t)row * HIDDEN + column);
        own[0] = from_bf16(x.x), own[1] = from_bf16(x.y), own[2] = from_bf16(x.z), own[3] = from_bf16(x.w);
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            u16 made[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float total = 0.0f;
#pragma unroll
                for (int from = 0; from < STREAMS; from++) total = __fmaf_rn(mix[from][s], in[from][j], total);
                made[j] = to_bf16(__fmaf_rn(back[s], own[j], from_bf16(to_bf16(total))));
            }
            *reinterpret_cast<ushort4*>(out + ((size_t)row * STREAMS + s) * HIDDEN + column) = make_ushort4(made[0], made[1], made[2], made[3]);
        }
    }
}
