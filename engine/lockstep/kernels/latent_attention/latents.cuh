// What attention over pages shares for steps and prompts: how latents lie, tiles of 32 keys for up to 32 heads, and their product.
// FP8 1: stored rows are e4m3 codes and an exponent. HEADS heads of LATENT values.

constexpr int MEMBERS = 4;
constexpr int PAGE = 64;
constexpr int LATENT_ROW = FP8 ? LATENT + 16 : 2 * LATENT;
constexpr int TILE = 32;
constexpr int GROUP = HEADS < 32 ? HEADS : 32;
constexpr int GROUPS = HEADS / GROUP;
constexpr int SLABS = (GROUP + 15) / 16;
constexpr int CHUNKS = LATENT / 8;

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16-byte pieces of a row lie where reading 8 rows at once meets every bank.
__device__ __forceinline__ u32 piece(int row, int chunk) { return (u32)(row * CHUNKS + (chunk ^ (row & 7))) * 16; }
__device__ __forceinline__ void load4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void multiply(float* sums, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ float warp_most(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, distance));
    return v;
}
