// Products of up to 8 TILES rows with dense matrices of K inputs that lie side by side, in a form the rows do not show: whatever their number, a
// row's sum runs over the same products in the same order. A part is FORM 0 bf16, 1 e4m3 under a scale for each output and row, 2 four bits
// under an fp16 factor for 64 inputs. A block computes 16 STRIPS outputs of one part; its WARPS warps take fixed ranges of K, added in ascending
// order. HEADS > 1: as many matrices of one part behind one another, each with its own K inputs of a row. PAIRED: gate and up become SwiGLU.
//
// Packed weights, in units of 64 inputs of 16 outputs: lane 4 g + t holds inputs 16 t .. 16 t + 15 of outputs g and g + 8, so the 16 inputs of
// a row that it multiplies lie side by side. See `rows.py`.

#include "device.cuh"

constexpr int UNITS_K = K / 64;
constexpr int ROWS = 8 * TILES;
constexpr int PAD = 16 * STRIPS + 4;
// Twice 8 warps have half the registers.
constexpr int AHEAD = WARPS == 16 && TILES > 2 ? 1 : 2;

__device__ __forceinline__ constexpr int words_of(int form) { return form == 0 ? 4 : form == 1 ? 2 : 1; }

template <int FORM>
__device__ __forceinline__ void multiply(float* sums, const u32* a, u32 b0, u32 b1) {
    if constexpr (FORM == 1)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 from_e4m3(u32 pair) {
    u32 out;
    asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(out) : "r"(pair));
    return out;
}

// Two whole numbers of -8 .. 7 as bf16: 128 + n is a bf16 with n in its last bits.
__device__ __forceinline__ u32 from_nibbles(u32 pair) {
    u32 out;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"((pair & 0x000F000Fu) | 0x43004300u), "r"(0x43084308u));
    return out;
}

// The 4 registers of 16 outputs by 16 inputs, number `tile` of a unit.
template <int FORM>
__device__ __forceinline__ void weights_of(u32* a, const uint4* words, int tile) {
    if constexpr (FORM == 0) {
        a[0] = words[tile].x, a[1] = words[tile].y, a[2] = words[tile].z, a[3] = words[tile].w;
    } else if constexpr (FORM == 1) {
        const uint4 both = words[tile / 2];
        const u32 first = tile % 2 ? both.z : both.x, second = tile % 2 ? both.w : both.y;
        a[0] = from_e4m3(first), a[1] = from_e4m3(first >> 16), a[2] = from_e4m3(second), a[3] = from_e4m3(second >> 16);
    } else {
        const u32 word = tile == 0 ? words[0].x : tile == 1 ? words[0].y : tile == 2 ? words[0].z : words[0].w;
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = from_nibbles(word >> 4 * i);
    }
}

__device__ __forceinline__ u32 pick(const uint4* x, int i) {
    const uint4 v = x[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
}

// One block's strips of one part of OUTPUTS outputs, which begin at column `column` of a row of `out`.
template <int FORM, int OUTPUTS>
__device__ __forceinline__ void part_product(int block, const uint4* weights, const u32* factors, const u16* x, const float* row_scales, u16* out, int column,
                                             int rows, float limit, float* memory) {
    constexpr int WORDS = words_of(FORM);
    // Units whose weights and inputs are on their way together: as many as registers allow.
    constexpr int WISHED = TILES > 1 ? 1 : FORM == 2 ? (BLOCKS > 2 ? 2 : 4) / STRIPS : FORM == 1 ? 2 / STRIPS : 1, MOST = (UNITS_K + WARPS - 1) / WARPS;
    constexpr int GROUP = MOST < WISHED ? MOST : WISHED;
    float(*const kept)[ROWS][PAD] = reinterpret_cast<float(*)[ROWS][PAD]>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = lane >> 2;
    const int begin = UNITS_K * warp / WARPS, end = UNITS_K * (warp + 1) / WARPS;
    // Side by side, or gate and up of the same outputs.
    const int strip = block * (PAIRED ? 1 : STRIPS), apart = PAIRED ? OUTPUTS / 32 : 1;
    float sums[STRIPS][TILES][4] = {};
    uint4 words[GROUP][STRIPS][WORDS];
    u32 pairs[GROUP][STRIPS];
    auto load = [&](int unit) {
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            if (unit + g >= end) break;
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                const size_t at = (size_t)(strip + s * apart) * UNITS_K + unit + g;
#pragma unroll
                for (int w = 0; w < WORDS; w++) words[g][s][w] = __ldcs(weights + at * 32 * WORDS + (FORM == 0 ? w * 32 + lane : lane * WORDS + w));
                if constexpr (FORM == 2) pairs[g][s] = __ldcs(factors + at * 8 + row);
            }
        }
    };
    load(begin);
    const int head = HEADS > 1 ? strip * 16 / (OUTPUTS / HEADS) : 0;
    uint4 inputs[GROUP][TILES][2];
    auto load_inputs = [&](int unit) {
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            if (unit + g >= end) break;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int at = 8 * t + row;
                const u16* const from = x + (size_t)(at < rows ? at : 0) * (FORM == 1 ? K : FROM) + head * K + (unit + g) * 64 + (lane & 3) * 16;
                inputs[g][t][0] = reinterpret_cast<const uint4*>(from)[0], inputs[g][t][1] = reinterpret_cast<const uint4*>(from)[1];
            }
        }
    };
    // Weights are older than any launch, so the first of them come while the one in front still runs.
    await_inputs();
    // With one tile and one strip there are registers for the inputs of the next group too.
    constexpr bool PREFETCHES = TILES == 1 && STRIPS == 1;
    if (PREFETCHES) load_inputs(begin);
#pragma unroll AHEAD
    for (int first = begin; first < end; first += GROUP) {
        uint4 own[GROUP][STRIPS][WORDS], now[GROUP][TILES][2];
        u32 own_pairs[GROUP][STRIPS];
        if (!PREFETCHES) load_inputs(first);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
#pragma unroll
                for (int w = 0; w < WORDS; w++) own[g][s][w] = words[g][s][w];
                own_pairs[g][s] = pairs[g][s];
            }
#pragma unroll
            for (int t = 0; t < TILES; t++) now[g][t][0] = inputs[g][t][0], now[g][t][1] = inputs[g][t][1];
        }
        load(first + GROUP);
        if (PREFETCHES) load_inputs(first + GROUP);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            if (first + g >= end) break;
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                float part[TILES][4] = {};
#pragma unroll
                for (int tile = 0; tile < 4; tile++) {
                    u32 a[4];
                    weights_of<FORM>(a, own[g][s], tile);
#pragma unroll
                    for (int t = 0; t < TILES; t++)
                        multiply<FORM>(FORM == 2 ? part[t] : sums[s][t], a, pick(now[g][t], 2 * tile), pick(now[g][t], 2 * tile + 1));
                }
                if constexpr (FORM == 2) {
                    float low, high;
                    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(own_pairs[g][s]));
#pragma unroll
                    for (int t = 0; t < TILES; t++)
#pragma unroll
                        for (int i = 0; i < 4; i++) sums[s][t][i] = __fmaf_rn(i < 2 ? low : high, part[t][i], sums[s][t][i]);
                }
            }
        }
    }
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) kept[warp][8 * t + 2 * (lane & 3) + (i & 1)][16 * s + (i & 2) * 4 + row] = sums[s][t][i];
    __syncthreads();
    auto total_of = [&](int at, int own) {
        float total = kept[0][at][own];
        // exact: one order whatever the row count: inside a range as the products run, ranges ascending.
#pragma unroll
        for (int other = 1; other < WARPS; other++) total = __fadd_rn(total, kept[other][at][own]);
        if constexpr (FORM == 1) total *= __uint_as_float(factors[(strip + own / 16 * apart) * 16 + own % 16]) * row_scales[at];
        return total;
    };
    constexpr int COLUMNS = PAIRED ? 16 : 16 * STRIPS;
    for (int i = threadIdx.x; i < rows * COLUMNS; i += WARPS * 32) {
        const int at = i / COLUMNS, own = i % COLUMNS;
        u16* const to = out + (size_t)at * PITCH + column + strip * 16 + own;
#if PAIRED
        const float most = as_bf16(limit), gate = fminf(as_bf16(total_of(at, own)), most);
        const float up = fminf(fmaxf(as_bf16(total_of(at, own + 16)), -most), most);
        *to = to_bf16(__fmul_rn(as_bf16(__fdiv_rn(gate, 1.0f + expf(-gate))), up));
#else
        *to = to_bf16(total_of(at, own));
#endif
    }
}

// x bf16 [rows], FROM values a row, of which K for each head are read; for FORM 1 `coded`: e4m3 values as fp16, with `row_scales` fp32 [rows]. out bf16, PITCH values a row. `factors`: FORM 1
// fp32 of each output, FORM 2 fp16 pairs. Parts have N0, N1, N2 outputs (0: no such part) and lie in a row in this order.
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    rows_product(const uint4* __restrict__ w0, const u32* __restrict__ f0, const uint4* __restrict__ w1, const u32* __restrict__ f1,
                 const uint4* __restrict__ w2, const u32* __restrict__ f2, const u16* __restrict__ x, const u16* __restrict__ coded,
                 const float* __restrict__ row_scales, u16* __restrict__ out, int rows, float limit) {
    extern __shared__ float memory[];
    constexpr int B0 = N0 / (16 * STRIPS), B1 = N1 / (16 * STRIPS), EACH = PAIRED ? 2 : 1;
    const int block = blockIdx.x;
    if (N1 == 0 || block < B0)
        part_product<FORM0, N0>(block, w0, f0, FORM0 == 1 ? coded : x, row_scales, out, 0, rows, limit, memory);
#if N1 > 0
    else if (N2 == 0 || block < B0 + B1)
        part_product<FORM1, N1>(block - B0, w1, f1, FORM1 == 1 ? coded : x, row_scales, out, N0 / EACH, rows, limit, memory);
#endif
#if N2 > 0
    else
        part_product<FORM2, N2>(block - B0 - B1, w2, f2, FORM2 == 1 ? coded : x, row_scales, out, (N0 + N1) / EACH, rows, limit, memory);
#endif
}

// bf16 rows of K values as e4m3 values in fp16 and their scales. Grid: rows; a block of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    encode(const u16* __restrict__ x, u16* __restrict__ coded, float* __restrict__ row_scales) {
    __shared__ float kept[8];
    await_inputs();
    const u16* const row = x + (size_t)blockIdx.x * K;
    float most = 0.0f;
    bool bad = false;
    for (int i = threadIdx.x; i < K; i += 256) {
        const float v = fabsf(from_bf16(row[i]));
        most = fmaxf(most, v), bad |= !(v <= 3.4e38f);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    if ((threadIdx.x & 31) == 0) kept[threadIdx.x / 32] = most;
    bad = __syncthreads_or(bad);
#pragma unroll
    for (int warp = 0; warp < 8; warp++) most = fmaxf(most, kept[warp]);
    if (bad) most = __uint_as_float(0x7F800000u);
    const int exponent = bad ? 127 : e4m3_exponent(most);
    for (int i = threadIdx.x; i < K; i += 256) coded[(size_t)blockIdx.x * K + i] = e4m3_to_half(e4m3_code(from_bf16(row[i]), exponent, most));
    if (threadIdx.x == 0) row_scales[blockIdx.x] = power_of_two(exponent);
}
