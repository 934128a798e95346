// What every CUDA source here may use: short names of types, bf16 in and out of fp32, the wait of a launch that begins early, e4m3 rows, and what a
// step's rows are told (`kernels/round.py`).

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 to_bf16(float x) {
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// A launch may begin while the one before it still runs. Before `await_inputs` a kernel touches only what older launches wrote.
__device__ __forceinline__ void await_inputs() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ float as_bf16(float x) { return from_bf16(to_bf16(x)); }
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }

// Sum over a warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, distance));
    return v;
}

// The exponent of an e4m3 row whose largest absolute value is `most`: the smallest e with most <= 448 * 2^e. See `kernels.fp8`.
__device__ __forceinline__ int e4m3_exponent(float most) {
    const u32 bits = __float_as_uint(most);
    const int e = most == 0.0f ? -9 : (int)(bits >> 23) - 126 - 9 + ((bits & 0x7FFFFFu) > 0x600000u);
    return e < -126 ? -126 : e > 127 ? 127 : e;
}
__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float((u32)(e + 127) << 23); }
// One value under an exponent as an e4m3 code; a row that is not finite becomes not-a-number.
__device__ __forceinline__ u32 e4m3_code(float x, int exponent, float most) {
    u16 y;
    const float scaled = most <= 3.4028235e38f ? __fdiv_rn(x, power_of_two(exponent)) : __uint_as_float(0x7FC00000u);
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(0.0f), "f"(scaled));
    return y & 0xFFu;
}
__device__ __forceinline__ u16 e4m3_to_half(u32 code) {
    u32 y;
    asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(y) : "r"(code));
    return (u16)y;
}

__device__ __forceinline__ u16 to_half(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float half_to_float(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

// int32: count, sequences, steps, 0; then for each row its id, position (-1: padding), owner, step, latent place, pool place; the first row of
// each step and the end; for each sequence its slot, the copy of its state to read, the copy to write, and the rows to keep.
struct Plan {
    const int *ids, *positions, *owners, *steps, *latents, *pools, *offsets, *slots, *bases, *scratches, *keeps;
    int count, sequences, length;
    __device__ __forceinline__ Plan(const int* at, int rows, int most) {
        count = at[0], sequences = at[1], length = at[2];
        ids = at + 4, positions = ids + rows, owners = positions + rows, steps = owners + rows, latents = steps + rows, pools = latents + rows;
        offsets = pools + rows, slots = offsets + rows + 1, bases = slots + most, scratches = bases + most, keeps = scratches + most;
    }
    __device__ __forceinline__ int rows_of(int sequence) const {
        int n = 0;
        while (n < length && sequence < offsets[n + 1] - offsets[n]) n++;
        return n;
    }
};
