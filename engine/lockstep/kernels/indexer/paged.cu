// Which pools a step's rows attend: scores of every pool a row may choose, read once for all rows of a sequence, then the POOLS largest of each row
// with ties to the lower pool. Rows that have no more pools than that choose nothing here. FP8 1: stored keys are e4m3 codes and an exponent.
//
// A row's query is HEADS by KEY values behind OFFSET in a row of QUERIES; weights are WEIGHTS values behind WEIGHTS_OFFSET in a row of PITCH.

#include "device.cuh"
#include "pools.cuh"

// 8 stored values, 16 bytes of bf16 or 8 of codes, as bf16.
__device__ __forceinline__ uint4 values_of(const unsigned char* from, int chunk) {
    if (!FP8) return __ldcs(reinterpret_cast<const uint4*>(from) + chunk);
    const uint2 codes = *reinterpret_cast<const uint2*>(from + chunk * 8);
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 halves;
        asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(halves) : "r"((i < 2 ? codes.x : codes.y) >> 16 * (i & 1)));
        float low, high;
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(halves));
        out[i] = to_bf16(low) | (u32)to_bf16(high) << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// scores fp32 [rows][reach]; a block has 128 pools of one sequence, a warp 16 of them, for all rows of the sequence. Any grid.
extern "C" __global__ void __launch_bounds__(256)
    score(const u16* __restrict__ queries, const u16* __restrict__ projected, const unsigned char* __restrict__ pooled, const int* __restrict__ plan_at,
          const int* __restrict__ pages, float* __restrict__ scores, int rows, int most, int pitch, int reach, float scale) {
    await_inputs();
    const Plan plan(plan_at, rows, most);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = lane / 4, quarter = lane & 3;
    for (int item = blockIdx.x, sequence = 0; sequence < plan.sequences; sequence++) {
        const int count = plan.rows_of(sequence), whole = (plan.positions[plan.offsets[count - 1] + sequence] + 1) / MEMBERS;
        const int chunks = whole > POOLS ? (whole + CHUNK - 1) / CHUNK : 0;
        // Positions ascend, so rows without a choice come first.
        const int skipped = max(0, count - (whole * MEMBERS + (plan.positions[plan.offsets[count - 1] + sequence] + 1) % MEMBERS - MEMBERS * (POOLS + 1) + 1));
        const int* const own_pages = pages + (size_t)sequence * pitch;
        for (; item < chunks; item += gridDim.x) {
            const int first = item * CHUNK + warp * 16;
            // exact: inputs of a product come in one order for keys and queries: 8 in a row of each lane.
            u32 keys[STEPS][8];
            float by[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pool = first + group + 8 * half, at = pool < whole ? pool : whole - 1;
                const unsigned char* const from = pooled + ((size_t)own_pages[at / PAGE_POOLS] * PAGE_POOLS + at % PAGE_POOLS) * KEY_ROW;
                by[half] = FP8 ? power_of_two((signed char)from[KEY]) : 1.0f;
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    const uint4 x = values_of(from, step * 4 + quarter);
                    keys[step][half] = x.x, keys[step][2 + half] = x.y, keys[step][4 + half] = x.z, keys[step][6 + half] = x.w;
                }
            }
            for (int step_of = skipped; step_of < count; step_of++) {
                const int row = plan.offsets[step_of] + sequence;
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
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float weight = __fmul_rn(from_bf16(projected[(size_t)row * PITCH + WEIGHTS_OFFSET + heads + 2 * quarter + (i & 1)]), scale);
                        total[i / 2] = __fmaf_rn(fmaxf(near[i] * by[i / 2], 0.0f), weight, total[i / 2]);
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float sum = __fadd_rn(total[half], __shfl_xor_sync(~0u, total[half], 1));
                    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
                    const int pool = first + group + 8 * half;
                    if (quarter == 0 && pool < whole) scores[(size_t)row * reach + pool] = sum;
                }
            }
        }
        item -= chunks;
    }
}

constexpr int CLUSTER = 8;
constexpr int THREADS = 1024;
constexpr int MOST_OWN = 32;

__device__ __forceinline__ u32 rank_of(u32* mine, int rank, int index) {
    u32 at = (u32)__cvta_generic_to_shared(mine + index), value;
    asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.u32 %0, [a];}" : "=r"(value) : "r"(at), "r"(rank) : "memory");
    return value;
}
__device__ __forceinline__ void all_blocks() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// chosen int32 [rows][POOLS], ascending. A cluster of 8 blocks has a row: the cut is found in three rounds of counting, 11, 11 and 10 bits.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
    select(const float* __restrict__ scores, const int* __restrict__ plan_at, int* __restrict__ chosen, int rows, int most, int reach) {
    __shared__ u32 bins[BINS], totals[BINS], sums[THREADS / 32][2], found[4];
    await_inputs();
    const Plan plan(plan_at, rows, most);
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int whole = row < plan.count ? (plan.positions[row] + 1) / MEMBERS : 0;
    if (whole <= POOLS) return;
    // A warp's scores lie in a row: `own` rounds of 32.
    const int own = (whole + CLUSTER * THREADS - 1) / (CLUSTER * THREADS), begin = ((rank * THREADS / 32 + warp) * own) * 32 + lane;
    u32 held[MOST_OWN];
#pragma unroll
    for (int i = 0; i < MOST_OWN; i++) held[i] = i < own && begin + i * 32 < whole ? order_of(scores[(size_t)row * reach + begin + i * 32]) : 0;
    u32 cut = 0, room = POOLS;
#pragma unroll 1
    for (int round = 0; round < 3; round++) {
        const int shift = round == 0 ? 21 : round == 1 ? 10 : 0, width = round == 2 ? 1024 : BINS;
        for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < MOST_OWN; i++) {
            if (held[i] && (round == 0 || (held[i] ^ cut) >> shift < width)) atomicAdd(&bins[held[i] >> shift & (width - 1)], 1u);
        }
        __syncthreads();
        all_blocks();
        for (int i = threadIdx.x; i < width; i += THREADS) {
            u32 total = 0;
#pragma unroll
            for (int other = 0; other < CLUSTER; other++) total += rank_of(bins, other, i);
            totals[i] = total;
        }
        all_blocks();
        __syncthreads();
        // From the top: the bin in which the last one taken lies. A warp sums up what each lane's bins hold, then walks one lane's.
        if (warp == 0) {
            const int each = width / 32, top = width - 1 - lane * each;
            u32 mine = 0;
            for (int i = 0; i < each; i++) mine += totals[top - i];
            u32 before = mine;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const u32 other = __shfl_up_sync(~0u, before, distance);
                if (lane >= distance) before += other;
            }
            before -= mine;
            if (before < room && before + mine >= room) {
                int i = 0;
                for (; before + totals[top - i] < room; i++) before += totals[top - i];
                found[0] = cut | (u32)(top - i) << shift, found[1] = room - before;
            }
        }
        __syncthreads();
        cut = found[0], room = found[1];
    }
    // All above the cut, and the first `room` that equal it.
    u32 above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < MOST_OWN; i++) {
        above += __popc(__ballot_sync(~0u, held[i] > cut)), equal += __popc(__ballot_sync(~0u, held[i] == cut));
    }
    if (lane == 0) sums[warp][0] = above, sums[warp][1] = equal;
    __syncthreads();
    u32 all_above = 0, all_equal = 0;
    for (int other = 0; other < THREADS / 32; other++) {
        if (other < warp) all_above += sums[other][0], all_equal += sums[other][1];
    }
    if (threadIdx.x == THREADS - 1) found[2] = all_above + above, found[3] = all_equal + equal;
    __syncthreads();
    all_blocks();
    for (int other = 0; other < rank; other++) all_above += rank_of(found, other, 2), all_equal += rank_of(found, other, 3);
    all_blocks();
    int* const to = chosen + (size_t)row * POOLS;
    const u32 lower = (1u << lane) - 1;
#pragma unroll
    for (int i = 0; i < MOST_OWN; i++) {
        const u32 over = __ballot_sync(~0u, held[i] > cut), same = __ballot_sync(~0u, held[i] == cut);
        const u32 before = all_above + __popc(over & lower), ties = all_equal + __popc(same & lower);
        if (held[i] > cut || (held[i] == cut && ties < room)) to[before + min(ties, room)] = begin + i * 32;
        all_above += __popc(over), all_equal += __popc(same);
    }
}
