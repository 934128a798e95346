// A packed matrix (see `rows.cu`) as plain bf16 [outputs][inputs], coded weights rounded once. FORM 0 bf16, 1 e4m3, 2 four bits.

#include "device.cuh"

constexpr int UNITS_K = K / 64;

// A thread has 16 inputs of outputs g and g + 8. Grid: 8 units of 64 inputs by 16 outputs a block.
extern "C" __global__ void __launch_bounds__(256)
    expand(const uint4* __restrict__ words, const u32* __restrict__ factors, u16* __restrict__ out, int units) {
    const int unit = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if (unit >= units) return;
    const int strip = unit / UNITS_K;
    u32 made[2][8];
#if FORM == 0
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const uint4 v = words[(size_t)unit * 128 + m * 32 + lane];
        made[0][2 * m] = v.x, made[1][2 * m] = v.y, made[0][2 * m + 1] = v.z, made[1][2 * m + 1] = v.w;
    }
#elif FORM == 1
    const float by[2] = {__uint_as_float(factors[strip * 16 + g]), __uint_as_float(factors[strip * 16 + g + 8])};
    const uint4 both[2] = {words[(size_t)unit * 64 + lane * 2], words[(size_t)unit * 64 + lane * 2 + 1]};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 v = both[i / 4];
        const u32 four = i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const float low = half_to_float(e4m3_to_half(four >> 16 * upper & 0xFFu)), high = half_to_float(e4m3_to_half(four >> (16 * upper + 8) & 0xFFu));
            made[upper][i] = to_bf16(low * by[upper]) | (u32)to_bf16(high * by[upper]) << 16;
        }
    }
#else
    const u32 pair = factors[(size_t)unit * 8 + g];
    const float by[2] = {half_to_float((u16)pair), half_to_float((u16)(pair >> 16))};
    const uint4 v = words[(size_t)unit * 32 + lane];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 word = i / 2 == 0 ? v.x : i / 2 == 1 ? v.y : i / 2 == 2 ? v.z : v.w;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const int low = word >> ((i & 1) * 8 + upper * 4) & 15, high = word >> ((i & 1) * 8 + upper * 4 + 16) & 15;
            made[upper][i] = to_bf16((low - 8) * by[upper]) | (u32)to_bf16((high - 8) * by[upper]) << 16;
        }
    }
#endif
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        uint4* const to = reinterpret_cast<uint4*>(out + (size_t)(strip * 16 + g + 8 * upper) * K + unit % UNITS_K * 64 + t * 16);
        to[0] = make_uint4(made[upper][0], made[upper][1], made[upper][2], made[upper][3]);
        to[1] = make_uint4(made[upper][4], made[upper][5], made[upper][6], made[upper][7]);
    }
}

// Clamped SwiGLU of rows of gate and up side by side, both bf16 [rows][2 width] -> out bf16 [rows][width]; rounded as the published form is.
extern "C" __global__ void __launch_bounds__(256)
    swiglu(const u16* __restrict__ both, u16* __restrict__ out, int rows, int width, float limit) {
    await_inputs();
    const float most = as_bf16(limit);
    for (size_t at = (size_t)(blockIdx.x * 256 + threadIdx.x) * 8; at < (size_t)rows * width; at += (size_t)gridDim.x * 2048) {
        const u16* const from = both + at / width * 2 * width + at % width;
        const uint4 low = *reinterpret_cast<const uint4*>(from), high = *reinterpret_cast<const uint4*>(from + width);
        const u32 gates[4] = {low.x, low.y, low.z, low.w}, ups[4] = {high.x, high.y, high.z, high.w};
        u32 made[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u16 two[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float gate = fminf(from_bf16(gates[i] >> 16 * half & 0xFFFFu), most), up = from_bf16(ups[i] >> 16 * half & 0xFFFFu);
                two[half] = to_bf16(as_bf16(__fdiv_rn(gate, 1.0f + expf(-gate))) * fminf(fmaxf(up, -most), most));
            }
            made[i] = two[0] | (u32)two[1] << 16;
        }
        *reinterpret_cast<uint4*>(out + at) = make_uint4(made[0], made[1], made[2], made[3]);
    }
}
