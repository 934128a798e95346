// Products of up to 8 TILES rows with a dense matrix of K inputs and N outputs, in a form the rows do not show: whatever their number, a
// row's sum runs over the same products in the same order. FORM 0 bf16, 1 e4m3 under a scale for each output and row, 2 four bits under
// an fp16 factor for 64 inputs. A block computes 16 STRIPS outputs; its 8 warps take fixed ranges of K, added in ascending order.
//
// Packed weights, in units of 64 inputs of 16 outputs: lane 4 g + t holds inputs 16 t .. 16 t + 15 of outputs g and g + 8, so the 16 inputs of
// a row that it multiplies lie side by side. See `rows.py`.

#include "device.cuh"

constexpr int WARPS = 8;
constexpr int UNITS_K = K / 64;
constexpr int ROWS = 8 * TILES;
constexpr int WORDS = FORM == 0 ? 4 : FORM == 1 ? 2 : 1;
constexpr int PAD = 16 * STRIPS + 4;

__device__ __forceinline__ void multiply(float* sums, const u32* a, u32 b0, u32 b1) {
#if FORM == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
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
__device__ __forceinline__ void weights_of(u32* a, const uint4* words, int tile) {
#if FORM == 0
    a[0] = words[tile].x, a[1] = words[tile].y, a[2] = words[tile].z, a[3] = words[tile].w;
#elif FORM == 1
    const uint4 both = words[tile / 2];
    const u32 first = tile % 2 ? both.z : both.x, second = tile % 2 ? both.w : both.y;
    a[0] = from_e4m3(first), a[1] = from_e4m3(first >> 16), a[2] = from_e4m3(second), a[3] = from_e4m3(second >> 16);
#else
    const u32 word = tile == 0 ? words[0].x : tile == 1 ? words[0].y : tile == 2 ? words[0].z : words[0].w;
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = from_nibbles(word >> 4 * i);
#endif
}

__device__ __forceinline__ u32 pick(const uint4* x, int i) {
    const uint4 v = x[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
}

// x [rows][K] bf16 (FORM 1: e4m3 values as fp16), out bf16 [rows][N]. `factors`: FORM 1 fp32 [N], FORM 2 fp16 pairs; `row_scales` fp32 [rows].
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    rows_product(const uint4* __restrict__ weights, const u32* __restrict__ factors, const u16* __restrict__ x,
                 const float* __restrict__ row_scales, u16* __restrict__ out, int rows) {
    __shared__ float kept[WARPS][ROWS][PAD];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = lane >> 2;
    const int begin = UNITS_K * warp / WARPS, end = UNITS_K * (warp + 1) / WARPS, strip = blockIdx.x * STRIPS;
    float sums[STRIPS][TILES][4] = {};
    uint4 words[STRIPS][WORDS];
    auto load = [&](int unit) {
#pragma unroll
        for (int s = 0; s < STRIPS; s++)
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                words[s][w] = __ldcs(weights + ((size_t)(strip + s) * UNITS_K + unit) * 32 * WORDS + (FORM == 0 ? w * 32 + lane : lane * WORDS + w));
    };
    if (begin < end) load(begin);
    // Weights are older than any launch, so the first of them come while the one in front still runs.
    await_inputs();
#pragma unroll 2
    for (int unit = begin; unit < end; unit++) {
        uint4 own[STRIPS][WORDS], inputs[TILES][2];
#pragma unroll
        for (int s = 0; s < STRIPS; s++)
#pragma unroll
            for (int w = 0; w < WORDS; w++) own[s][w] = words[s][w];
        if (unit + 1 < end) load(unit + 1);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int at = 8 * t + row;
            const uint4* from = reinterpret_cast<const uint4*>(x + (size_t)(at < rows ? at : 0) * K + unit * 64 + (lane & 3) * 16);
            inputs[t][0] = from[0], inputs[t][1] = from[1];
        }
#pragma unroll
        for (int s = 0; s < STRIPS; s++) {
#if FORM == 2
            float part[TILES][4] = {};
            const u32 pair = factors[((size_t)(strip + s) * UNITS_K + unit) * 8 + row];
            float low, high;
            asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(pair));
#endif
#pragma unroll
            for (int tile = 0; tile < 4; tile++) {
                u32 a[4];
                weights_of(a, own[s], tile);
#pragma unroll
                for (int t = 0; t < TILES; t++)
#if FORM == 2
                    multiply(part[t], a, pick(inputs[t], 2 * tile), pick(inputs[t], 2 * tile + 1));
#else
                    multiply(sums[s][t], a, pick(inputs[t], 2 * tile), pick(inputs[t], 2 * tile + 1));
#endif
            }
#if FORM == 2
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[s][t][i] = __fmaf_rn(i < 2 ? low : high, part[t][i], sums[s][t][i]);
#endif
        }
    }
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) kept[warp][8 * t + 2 * (lane & 3) + (i & 1)][16 * s + (i & 2) * 4 + row] = sums[s][t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < rows * 16 * STRIPS; i += WARPS * 32) {
        const int at = i / (16 * STRIPS), column = i % (16 * STRIPS);
        float total = kept[0][at][column];
        // exact: one order whatever the row count: inside a range as the products run, ranges ascending.
#pragma unroll
        for (int other = 1; other < WARPS; other++) total = __fadd_rn(total, kept[other][at][column]);
#if FORM == 1
        total *= __uint_as_float(factors[strip * 16 + column]) * row_scales[at];
#endif
        out[(size_t)at * N + strip * 16 + column] = to_bf16(total);
    }
}
