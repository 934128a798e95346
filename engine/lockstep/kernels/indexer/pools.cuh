// What choosing pools for a step and for a prompt shares: where keys lie, the product behind a score, scores as whole numbers.
// FP8 1: stored keys are e4m3 codes and an exponent.

constexpr int MEMBERS = 4;
constexpr int PAGE_POOLS = 16;
constexpr int KEY_ROW = FP8 ? KEY + 16 : 2 * KEY;
constexpr int CHUNK = 128;
constexpr int STEPS = KEY / 32;
constexpr int BINS = 2048;

__device__ __forceinline__ void multiply(float* sums, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Larger numbers for larger scores, above 0 for all of them; both zeros are one.
__device__ __forceinline__ u32 order_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
