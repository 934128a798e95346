// EXL3 experts of a few rows: each distinct expert's weights are read once, by all rows that chose it. Four bits a weight.
//
// Shapes come as macros: K inputs, N outputs of one product; SIDES inputs a pair has (2 for gate and up); SLICES fixed ranges of K whose fp32
// sums are added in ascending order; WARPS, BLOCKS (a multiprocessor), STAGES (2 KiB pieces in flight a warp), BUFFERS (of
// sums), UNROLL, EARLY (1: the plan is older than the launch in front). VARIANT 0 is the
// kernel; 1 loads the same bytes and does not decode; 2 decodes the same number of weights from a block that stays in the L2 cache.
// CODEBOOK 0 3inst, 1 mcg, 2 mul1. HIDDEN, WIDTH, SLOTS, MOST_PAIRS belong to the small kernels around the product.
//
// Packed weights, 16 bytes a lane: [expert][64 outputs][64 inputs][strip of 16 outputs][lane][word]. Lane 4 g + t holds words 4 g .. 4 g + 3 of
// the tile of inputs 16 t ..: all inputs of columns g and g + 8. Only the word before them comes from a neighbour, lane 4 (g - 1) + t.

#include "device.cuh"
#include "trellis.cuh"

constexpr int PIECE = 2048;
constexpr int ITEM_ROWS = 8;

// plan: [0] items, then per item expert, rows, and the pair of each of 8 rows.
__device__ __forceinline__ const int* experts_of(const int* plan) { return plan + 1; }
__device__ __forceinline__ const int* rows_of(const int* plan) { return plan + 1 + MOST_PAIRS; }
__device__ __forceinline__ const int* pairs_of(const int* plan) { return plan + 1 + 2 * MOST_PAIRS; }

#ifdef K

constexpr int GROUPS = WARPS / SLICES;
constexpr int STRIPS = N / 64;
constexpr int UNITS = STRIPS / GROUPS;
constexpr int BLOCKS_K = K / 64;
constexpr int PIECES = BLOCKS_K / SLICES;
constexpr int PAD = 68;
constexpr int SUMS = WARPS * ITEM_ROWS * PAD;
static_assert(STAGES <= PIECES && (STAGES & (STAGES - 1)) == 0, "a ring reaches into the next unit only");
static_assert(STRIPS % GROUPS == 0 && BLOCKS_K % SLICES == 0 && WARPS % SLICES == 0, "shape does not divide");

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void expect_and_copy(u32 to, const unsigned char* from, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(PIECE) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(PIECE),
                 "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

__device__ __forceinline__ void multiply(float* sums, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One ring word: 4 inputs of columns g and g + 8, times the inputs in the order of `place`.
__device__ __forceinline__ void decode_word(float* sums, u32 before, u32 word, u32 b0, u32 b1, u32 own0, u32 own1, u32 mask) {
    u32 a[4];
    weights_of_word(a, before, word, own0, own1, mask);
    multiply(sums, a[0], a[1], a[2], a[3], b0, b1);
}

__device__ __forceinline__ void decode_piece(float (*sums)[4], const uint4* words, const u32* last, uint4 x0, uint4 x1, u32 own0, u32 own1,
                                             u32 mask) {
    const u32 x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
    u32 before[4] = {last[0], last[1], last[2], last[3]};
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 word = m == 0 ? words[s].x : m == 1 ? words[s].y : m == 2 ? words[s].z : words[s].w;
            decode_word(sums[s], before[s], word, x[2 * m], x[2 * m + 1], own0, own1, mask);
            before[s] = word;
        }
    }
}

// What a lane without a row multiplies with.
__device__ const uint4 nothing[2] = {};

// Where this lane's row of a unit has its rotated inputs, and how far the next 64 are: x fp16 [SIDES][pairs][K].
struct Inputs {
    const uint4* from;
    int step;
};

__device__ __forceinline__ Inputs inputs_of(const u16* x, const int* plan, int pairs, int unit, int slice, int group, int lane) {
    const int item = unit / UNITS, strip = unit % UNITS * GROUPS + group, row = lane >> 2;
    const int rows = rows_of(plan)[item], pair = pairs_of(plan)[item * ITEM_ROWS + row];
    const u16* from = x + ((size_t)(strip / (STRIPS / SIDES)) * pairs + pair) * K + slice * PIECES * 64 + (lane & 3) * 16;
    return row < rows ? Inputs{reinterpret_cast<const uint4*>(from), 8} : Inputs{nothing, 0};
}

__device__ __forceinline__ const unsigned char* source_of(const unsigned char* weights, const int* plan, int unit, int slice, int group) {
    const int expert = experts_of(plan)[unit / UNITS], strip = unit % UNITS * GROUPS + group;
    size_t at = (((size_t)expert * STRIPS + strip) * BLOCKS_K + slice * PIECES) * PIECE;
#if VARIANT == 2
    at &= (1u << 21) - 1;
#endif
    return weights + at;
}

// z fp32 [pairs][N], before the output rotation.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    product(const unsigned char* __restrict__ weights, const u16* __restrict__ x, float* __restrict__ z, const int* __restrict__ plan, int pairs,
            u32 mask) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* const kept = reinterpret_cast<float*>(memory + WARPS * STAGES * PIECE);
    u64* const barriers = reinterpret_cast<u64*>(kept + BUFFERS * SUMS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, slice = warp % SLICES, group = warp / SLICES;
    const u32 ring = shared_address(memory) + warp * STAGES * PIECE, barrier = shared_address(barriers + warp * STAGES);
    if (lane == 0) {
        for (int stage = 0; stage < STAGES; stage++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + 8 * stage) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    // Plan and weights: the product of down has its plan from an older launch, so its first pieces come while its inputs are made.
    if (!EARLY) await_inputs();
    // The plan has room for more units than a grid has blocks, so a block may look before it knows whether it has one.
    const unsigned char* from = source_of(weights, plan, blockIdx.x, slice, group);
    Inputs inputs = inputs_of(x, plan, pairs, blockIdx.x, slice, group, lane);
    const int units = plan[0] * UNITS;
    for (int stage = 0; stage < STAGES; stage++)
        if (lane == 0 && blockIdx.x < units) expect_and_copy(ring + stage * PIECE, from + stage * PIECE, barrier + 8 * stage);
    if (EARLY) await_inputs();
    if (blockIdx.x >= units) return;
    const u32 own0 = lane / 4 == lane % 4 ? BOTH : 0, own1 = lane / 4 == lane % 4 + 4 ? BOTH : 0;
    int buffer = 0;
    u32 count = 0;
    uint4 x0 = inputs.from[0], x1 = inputs.from[1];
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const bool more = unit + gridDim.x < units;
        const int then = more ? unit + gridDim.x : unit;
        const unsigned char* const from_then = source_of(weights, plan, then, slice, group);
        const Inputs inputs_then = inputs_of(x, plan, pairs, then, slice, group, lane);
        float sums[4][4] = {};
#pragma unroll UNROLL
        for (int piece = 0; piece < PIECES; piece++, count++) {
            const int stage = count % STAGES;
            const uint4* const ahead = piece < PIECES - 1 ? inputs.from + (piece + 1) * inputs.step : inputs_then.from;
            const uint4 next0 = ahead[0], next1 = ahead[1];
            wait(barrier + 8 * stage, count / STAGES & 1);
            uint4 words[4];
            u32 last[4];
#pragma unroll
            for (int s = 0; s < 4; s++) words[s] = *reinterpret_cast<const uint4*>(memory + (warp * STAGES + stage) * PIECE + s * 512 + lane * 16);
#pragma unroll
            for (int s = 0; s < 4; s++) last[s] = __shfl_sync(~0u, words[s].w, (lane + 28) & 31);
            if (lane == 0 && (more || piece < PIECES - STAGES))
                expect_and_copy(ring + stage * PIECE, piece < PIECES - STAGES ? from + (piece + STAGES) * PIECE : from_then + (piece + STAGES - PIECES) * PIECE,
                                barrier + 8 * stage);
#if VARIANT == 1
#pragma unroll
            for (int s = 0; s < 4; s++) {
                sums[s][0] = __uint_as_float(__float_as_uint(sums[s][0]) ^ words[s].x ^ last[s]);
                sums[s][1] = __uint_as_float(__float_as_uint(sums[s][1]) ^ words[s].y ^ x0.x);
                sums[s][2] = __uint_as_float(__float_as_uint(sums[s][2]) ^ words[s].z ^ x1.x);
                sums[s][3] = __uint_as_float(__float_as_uint(sums[s][3]) ^ words[s].w);
            }
#else
            decode_piece(sums, words, last, x0, x1, own0, own1, mask);
#endif
            x0 = next0;
            x1 = next1;
        }
        from = from_then;
        inputs = inputs_then;
        const int item = unit / UNITS, rows = rows_of(plan)[item];
        float* const own = kept + buffer * SUMS + warp * ITEM_ROWS * PAD;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int row = 2 * (lane & 3) + (i & 1), column = i / 4 * 16 + (i & 2) * 4 + (lane >> 2);
            if (row < rows) own[row * PAD + column] = sums[i / 4][i & 3];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows * GROUPS * 64; i += WARPS * 32) {
            const int row = i / (GROUPS * 64), column = i % (GROUPS * 64);
            const float* part = kept + buffer * SUMS + (column / 64 * SLICES * ITEM_ROWS + row) * PAD + column % 64;
            float total = part[0];
            // exact: one order whatever the row count: inside a slice as the products run, slices ascending.
#pragma unroll
            for (int other = 1; other < SLICES; other++) total += part[other * ITEM_ROWS * PAD];
            z[(size_t)pairs_of(plan)[item * ITEM_ROWS + row] * N + unit % UNITS * GROUPS * 64 + column] = total;
        }
        if (BUFFERS == 1) __syncthreads();
        buffer = BUFFERS == 1 ? 0 : buffer ^ 1;
    }
}

#else

// Rotated inputs `column` .. `column + 3` of a row as fp16.
__device__ __forceinline__ void store_half(u16* row, int column, const float* v) {
    u16* const to = row + (column & ~63);
#pragma unroll
    for (int i = 0; i < 4; i++) to[place((column & 63) + i)] = to_half(v[i]);
}

// Block 0: which pairs share an expert, at most 8 an item, in pair order. Other blocks: rotated fp16 inputs of gate and up of every pair.
// x bf16 [rows][HIDDEN], chosen int64 [rows][SLOTS] (-1: none), suh fp16 [2][experts][HIDDEN], rotated fp16 [2][pairs][HIDDEN].
extern "C" __global__ void __launch_bounds__(256)
    prepare(const u16* __restrict__ x, const long long* __restrict__ chosen, const u16* __restrict__ suh, u16* __restrict__ rotated,
            int* __restrict__ plan, int pairs, int experts) {
    await_inputs();
    if (blockIdx.x == 0) {
        __shared__ __align__(16) int own[MOST_PAIRS];
        __shared__ int items[MOST_PAIRS], taken[MOST_PAIRS], before[8];
        constexpr int EACH = MOST_PAIRS / 256;
        const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
        for (int pair = threadIdx.x; pair < MOST_PAIRS; pair += 256) own[pair] = pair < pairs ? (int)chosen[pair] : -1, taken[pair] = 0;
        __syncthreads();
        // Of pairs with one expert every eighth, in pair order, leads an item.
        int rank[EACH], lead[EACH], first = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int pair = threadIdx.x * EACH + e, expert = own[pair];
            rank[e] = 0, lead[e] = pair;
            for (int at = 0; expert >= 0 && at < pair; at += 4) {
                const int4 others = *reinterpret_cast<const int4*>(own + at);
                const int same[4] = {others.x, others.y, others.z, others.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (same[i] == expert && at + i < pair) {
                        if (rank[e] % ITEM_ROWS == 0) lead[e] = at + i;
                        rank[e]++;
                    }
            }
            if (rank[e] % ITEM_ROWS == 0) lead[e] = pair;
            first += expert >= 0 && lead[e] == pair;
        }
        int total = first;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(~0u, total, distance);
            if (lane >= distance) total += other;
        }
        if (lane == 31) before[warp] = total;
        __syncthreads();
        int item = total - first;
        for (int other = 0; other < warp; other++) item += before[other];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int pair = threadIdx.x * EACH + e;
            if (own[pair] >= 0 && lead[e] == pair) const_cast<int*>(experts_of(plan))[item] = own[pair], items[pair] = item++;
        }
        if (threadIdx.x == 255) plan[0] = item;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int pair = threadIdx.x * EACH + e;
            if (own[pair] < 0) continue;
            const_cast<int*>(pairs_of(plan))[items[lead[e]] * ITEM_ROWS + rank[e] % ITEM_ROWS] = pair;
            atomicAdd(&taken[items[lead[e]]], 1);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < MOST_PAIRS; i += 256) const_cast<int*>(rows_of(plan))[i] = taken[i];
        return;
    }
    const int block = (blockIdx.x - 1) * 8 + threadIdx.x / 32, column = block % (HIDDEN / 128) * 128 + (threadIdx.x & 31) * 4;
    const int pair = block / (HIDDEN / 128);
    if (pair >= pairs) return;
    const int expert = (int)chosen[pair];
    if (expert < 0) return;
    const ushort4 in = *reinterpret_cast<const ushort4*>(x + (size_t)(pair / SLOTS) * HIDDEN + column);
    const u16 row[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const ushort4 scale = *reinterpret_cast<const ushort4*>(suh + ((size_t)side * experts + expert) * HIDDEN + column);
        const u16 s[4] = {scale.x, scale.y, scale.z, scale.w};
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = half_to_float(half_product(to_half(from_bf16(row[i])), s[i]));
        rotate(v);
        store_half(rotated + ((size_t)side * pairs + pair) * HIDDEN, column, v);
    }
}

// z fp32 [pairs][2 WIDTH] -> rotated fp16 input of down [pairs][WIDTH]. svh fp16 [2][experts][WIDTH], suh fp16 [experts][WIDTH].
extern "C" __global__ void __launch_bounds__(256)
    activate(const float* __restrict__ z, const long long* __restrict__ chosen, const u16* __restrict__ svh, const u16* __restrict__ suh,
             u16* __restrict__ rotated, int pairs, int experts, float limit) {
    await_inputs();
    const int block = blockIdx.x * 8 + threadIdx.x / 32, column = block % (WIDTH / 128) * 128 + (threadIdx.x & 31) * 4;
    const int pair = block / (WIDTH / 128);
    if (pair >= pairs) return;
    const int expert = (int)chosen[pair];
    if (expert < 0) return;
    float side[2][4];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const float4 in = *reinterpret_cast<const float4*>(z + (size_t)pair * 2 * WIDTH + s * WIDTH + column);
        const ushort4 scale = *reinterpret_cast<const ushort4*>(svh + ((size_t)s * experts + expert) * WIDTH + column);
        side[s][0] = in.x, side[s][1] = in.y, side[s][2] = in.z, side[s][3] = in.w;
        rotate(side[s]);
        const u16 by[4] = {scale.x, scale.y, scale.z, scale.w};
#pragma unroll
        for (int i = 0; i < 4; i++) side[s][i] = as_bf16(__fmul_rn(side[s][i], half_to_float(by[i])));
    }
    const ushort4 scale = *reinterpret_cast<const ushort4*>(suh + (size_t)expert * WIDTH + column);
    const u16 by[4] = {scale.x, scale.y, scale.z, scale.w};
    float v[4];
    const float most = as_bf16(limit);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float gate = fminf(side[0][i], most), up = fminf(fmaxf(side[1][i], -most), most);
        const float hidden = as_bf16(__fmul_rn(as_bf16(__fdiv_rn(gate, 1.0f + expf(-gate))), up));
        v[i] = half_to_float(half_product(to_half(hidden), by[i]));
    }
    rotate(v);
    store_half(rotated + (size_t)pair * WIDTH, column, v);
}

// z fp32 [pairs][HIDDEN] -> out fp32 [rows][HIDDEN]: output rotation, svh fp16 [experts][HIDDEN], weighted sum in slot order. `adds`: out is bf16, and
// the rounded sum is added to what it holds.
extern "C" __global__ void __launch_bounds__(256)
    combine(const float* __restrict__ z, const long long* __restrict__ chosen, const float* __restrict__ weights, const u16* __restrict__ svh,
            void* out, int rows, int adds) {
    await_inputs();
    const int block = blockIdx.x * 8 + threadIdx.x / 32, column = block % (HIDDEN / 128) * 128 + (threadIdx.x & 31) * 4;
    const int row = block / (HIDDEN / 128);
    if (row >= rows) return;
    float total[4] = {};
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int pair = row * SLOTS + slot, expert = (int)chosen[pair];
        if (expert < 0) continue;
        const float4 in = *reinterpret_cast<const float4*>(z + (size_t)pair * HIDDEN + column);
        const ushort4 scale = *reinterpret_cast<const ushort4*>(svh + (size_t)expert * HIDDEN + column);
        const u16 by[4] = {scale.x, scale.y, scale.z, scale.w};
        float v[4] = {in.x, in.y, in.z, in.w};
        rotate(v);
        const float share = weights[pair];
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = __fadd_rn(total[i], __fmul_rn(__fmul_rn(v[i], half_to_float(by[i])), share));
    }
    if (!adds) {
        *reinterpret_cast<float4*>((float*)out + (size_t)row * HIDDEN + column) = make_float4(total[0], total[1], total[2], total[3]);
        return;
    }
    ushort4* const to = reinterpret_cast<ushort4*>((u16*)out + (size_t)row * HIDDEN + column);
    const ushort4 in = *to;
    const u16 had[4] = {in.x, in.y, in.z, in.w};
    u16 sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = to_bf16(__fadd_rn(from_bf16(had[i]), as_bf16(total[i])));
    *to = make_ushort4(sum[0], sum[1], sum[2], sum[3]);
}

#endif
