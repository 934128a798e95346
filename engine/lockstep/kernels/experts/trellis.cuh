// What the kernels of EXL3 experts share: weights out of four bits, the rotation, and the order of inputs. CODEBOOK 0 3inst, 1 mcg, 2 mul1.

constexpr float ROTATION = 0.088388347648f;

#ifdef CODEBOOK

// Two fp16 numbers that the codebook adds (or, mul1, weighs and adds) to the weight of a 16-bit state. `mask` comes as a kernel argument:
// one instruction takes one constant only.
__device__ __forceinline__ u32 halves(u32 state, u32 mask) {
#if CODEBOOK == 2
    return __dp4a(state * 0x83DCD12Du, 0x01010101u, 0x3C006400u);
#else
#if CODEBOOK == 1
    u32 x = state * 0xCBAC1FEDu;
#else
    u32 x = state * 89226354u + 64248484u;
#endif
    asm("lop3.b32 %0, %1, %2, 0x3B603B60, 0x6a;" : "=r"(x) : "r"(x), "r"(mask));
    return x;
#endif
}

// What both halves of the weights of one slot are multiplied with.
#if CODEBOOK == 2
constexpr u32 BOTH = 0xC9311EEEu;
#else
constexpr u32 BOTH = 0x3C003C00u;
#endif

// The weights of 4 registers of halves, fp16, packed by two: the sum of a slot's two halves is a product with a matrix of ones.
// exact: both products and their sum fit the adder, so the result is rounded once, as the codebook says.
__device__ __forceinline__ void add_halves(u32& d0, u32& d1, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%8};"
        : "=r"(d0), "=r"(d1)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

// The halves of the 8 weights that end in a ring word, from it and the one before it.
__device__ __forceinline__ void halves_of_word(u32* x, u32 before, u32 word, u32 mask) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 window = i == 3 ? word : __funnelshift_r(word, before, 12 - 4 * i);
        u32 high = window >> 16, low;
        // The lower half as a multiply-add: logic and shifts fill their own pipe already.
        asm("mad.lo.u32 %0, %1, 0xFFFF0000, %2;" : "=r"(low) : "r"(high), "r"(window));
        x[i] = halves(high, mask);
        x[i + 4] = halves(low, mask);
    }
}

// The A registers of a product of 16 outputs by 16 inputs, from one ring word and the one before it: 4 inputs of columns g and g + 8 a lane,
// in the order of `place`.
__device__ __forceinline__ void weights_of_word(u32* a, u32 before, u32 word, u32 own0, u32 own1, u32 mask) {
    u32 x[8];
    halves_of_word(x, before, word, mask);
    add_halves(a[0], a[1], x[0], x[4], x[1], x[5], own0, own1);
    add_halves(a[2], a[3], x[2], x[6], x[3], x[7], own0, own1);
}

// The sum (mul1: the weighing) of both halves of two slots, fp16, packed.
__device__ __forceinline__ u32 packed_sums(u32 first, u32 second) {
    u32 y;
#if CODEBOOK == 2
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(__byte_perm(first, second, 0x5410)), "r"(0x1EEE1EEE), "r"(0xC931C931));
#else
    asm("{.reg .b16 a, b, c, d; mov.b32 {a, b}, %1; mov.b32 {c, d}, %2; add.rn.f16 a, a, b; add.rn.f16 c, c, d; mov.b32 %0, {a, c};}"
        : "=r"(y)
        : "r"(first), "r"(second));
#endif
    return y;
}

// As `weights_of_word` without a product: tensor cores stay free, inputs come in the order of `place_alone`.
__device__ __forceinline__ void weights_alone(u32* a, u32 before, u32 word, u32 mask) {
    u32 x[8];
    halves_of_word(x, before, word, mask);
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = packed_sums(x[(i & 1) * 4 + (i & 2)], x[(i & 1) * 4 + (i & 2) + 1]);
}

#endif

__device__ __forceinline__ u16 half_product(u16 a, u16 b) {
    u16 y;
    asm("mul.rn.f16 %0, %1, %2;" : "=h"(y) : "h"(a), "h"(b));
    return y;
}

// Walsh-Hadamard transform of 128 values of a warp, 4 neighbours a lane, levels of stride 1 to 64, then the factor.
__device__ __forceinline__ void rotate(float* v) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[2] = a - c, v[1] = b + d, v[3] = b - d;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2) {
        const float sign = lane & stride ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(~0u, v[i], stride));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __fmul_rn(v[i], ROTATION);
}

// Where input k of 64 stands in what a product reads: lane t of a row reads 16 in a row, in the order in which `add_halves` leaves weights.
__device__ __forceinline__ int place(int k) {
    const int tile = k >> 4, row = k & 15;
    return ((tile >> 1) + 2 * (row & 1)) * 16 + (row & 7) / 2 * 4 + (row >> 3) * 2 + (tile & 1);
}
