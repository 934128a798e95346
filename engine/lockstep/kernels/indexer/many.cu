// Which pools a prompt slice's rows attend: scores of the pools each row sees, then its POOLS largest, ties to the lower pool. Rows with no more pools than
// that choose nothing. Row r stands at position first + r. FP8 1: stored keys are e4m3 codes and an exponent. Layouts as in `paged.cu`.

#include "device.cuh"
#include "pools.cuh"

constexpr int ROWS = 64;

// 8 stored values, 16 bytes of bf16 or 8 of codes, as bf16.
__device__ __forceinline__ uint4 values_of(const unsigned char* from, int chunk) {
    if (!FP8) return reinterpret_cast<const uint4*>(from)[chunk];
    const uint2 codes = *reinterpret_cast<const uint2*>(from + chunk * 8);
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 pair = (i < 2 ? codes.x : codes.y) >> 16 * (i & 1);
        out[i] = to_bf16(half_to_float(e4m3_to_half(pair & 0xFFu))) | (u32)to_bf16(half_to_float(e4m3_to_half(pair >> 8 & 0xFFu))) << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// scores fp32 [rows][reach]. A block has 128 pools, a warp 16 of them, and 64 rows. Grid: tiles of rows by `chunks`.
extern "C" __global__ void __launch_bounds__(256)
    score(const u16* __restrict__ queries, const u16* __restrict__ projected, const unsigned char* __restrict__ pooled, const int* __restrict__ pages,
          float* __restrict__ scores, int first, int count, int reach, int chunks, float scale) {
    await_inputs();
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = lane / 4, quarter = lane & 3;
    const int begin = blockIdx.x / chunks * ROWS, until = min(begin + ROWS, count), pools = blockIdx.x % chunks * CHUNK + warp * 16;
    const int whole = (first + until) / MEMBERS;
    if (begin >= until || pools >= whole || whole <= POOLS) return;
    // exact: inputs of a product come in one order for keys and queries: 8 in a row of each lane.
    u32 keys[STEPS][8];
    float by[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = min(pools + group + 8 * half, whole - 1);
        const unsigned char* const from = pooled + ((size_t)pages[at / PAGE_POOLS] * PAGE_POOLS + at % PAGE_POOLS) * KEY_ROW;
        by[half] = FP8 ? power_of_two((signed char)from[KEY]) : 1.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const uint4 x = values_of(from, step * 4 + quarter);
            keys[step][half] = x.x, keys[step][2 + half] = x.y, keys[step][4 + half] = x.z, keys[step][6 + half] = x.w;
        }
    }
    for (int row = begin; row < until; row++) {
        if ((first + row + 1) / MEMBERS <= max(POOLS, pools)) continue;
        const u16* const query = queries + (size_t)row * QUERIES + OFFSET;
        float total[2] = {};
#pragma unroll
        for (int heads = 0; heads < HEADS; heads += 8) {
            float near[4] = {};
            const uint4* const from = reinterpret_cast<const uint4*>(query + (heads + group) * KEY);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const uint4 x = from[step * 4 + quarter];
                multiply(near, keys[step][0], keys[step][1], keys[step][2], keys[step][3], x.x, x.y);
                multiply(near, keys[step][4], keys[step][5], keys[step][6], keys[step][7], x.z, x.w);
            }
            const u32 two = *reinterpret_cast<const u32*>(projected + (size_t)row * PITCH + WEIGHTS_OFFSET + heads + 2 * quarter);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float weight = __fmul_rn(from_bf16(i & 1 ? two >> 16 : two & 0xFFFFu), scale);
                total[i / 2] = __fmaf_rn(fmaxf(near[i] * by[i / 2], 0.0f), weight, total[i / 2]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = __fadd_rn(total[half], __shfl_xor_sync(~0u, total[half], 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
            const int pool = pools + group + 8 * half;
            if (quarter == 0 && pool < (first + row + 1) / MEMBERS) scores[(size_t)row * reach + pool] = sum;
        }
    }
}

constexpr int THREADS = 256;

// chosen int32 [rows][POOLS], ascending. A block has a row: the cut is found in three rounds of counting, 11, 11 and 10 bits.
extern "C" __global__ void __launch_bounds__(THREADS)
    select(const float* __restrict__ scores, int* __restrict__ chosen, int first, int count, int reach) {
    __shared__ u32 bins[BINS], sums[THREADS / 32][2], found[2];
    await_inputs();
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x & 31, whole = (first + row + 1) / MEMBERS;
    if (row >= count || whole <= POOLS) return;
    const float* const own = scores + (size_t)row * reach;
    u32 cut = 0, room = POOLS;
#pragma unroll 1
    for (int round = 0; round < 3; round++) {
        const int shift = round == 0 ? 21 : round == 1 ? 10 : 0, width = round == 2 ? 1024 : BINS;
        for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < whole; i += THREADS) {
            const u32 order = order_of(own[i]);
            if (round == 0 || (order ^ cut) >> shift < width) atomicAdd(&bins[order >> shift & (width - 1)], 1u);
        }
        __syncthreads();
        // From the top: the bin in which the last one taken lies.
        if (warp == 0) {
            const int each = width / 32, top = width - 1 - lane * each;
            u32 mine = 0;
            for (int i = 0; i < each; i++) mine += bins[top - i];
            u32 before = mine;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const u32 other = __shfl_up_sync(~0u, before, distance);
                if (lane >= distance) before += other;
            }
            before -= mine;
            if (before < room && before + mine >= room) {
                int i = 0;
                for (; before + bins[top - i] < room; i++) before += bins[top - i];
                found[0] = cut | (u32)(top - i) << shift, found[1] = room - before;
            }
        }
        __syncthreads();
        cut = found[0], room = found[1];
        __syncthreads();
    }
    // All above the cut, and the first `room` that equal it.
    u32 above = 0, equal = 0;
    int* const to = chosen + (size_t)row * POOLS;
    const u32 lower = (1u << lane) - 1;
    for (int start = 0; start < whole; start += THREADS) {
        const int i = start + threadIdx.x;
        const u32 order = i < whole ? order_of(own[i]) : 0;
        const u32 over = __ballot_sync(~0u, order > cut), same = __ballot_sync(~0u, order == cut);
        if (lane == 0) sums[warp][0] = __popc(over), sums[warp][1] = __popc(same);
        __syncthreads();
        u32 before = above + __popc(over & lower), ties = equal + __popc(same & lower);
#pragma unroll
        for (int other = 0; other < THREADS / 32; other++) {
            if (other < warp) before += sums[other][0], ties += sums[other][1];
            above += sums[other][0], equal += sums[other][1];
        }
        if (order > cut || (order == cut && ties < room)) to[before + min(ties, room)] = i;
        __syncthreads();
    }
}
