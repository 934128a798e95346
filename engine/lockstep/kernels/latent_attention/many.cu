// Latent attention of a prompt slice's rows over pages: a block has a row and up to 32 heads, keys come 32 at a time in ascending order. FP8 1: stored
// rows are e4m3 codes and an exponent. HEADS heads of LATENT values; a row attends POOLS pools of 4 tokens at most, and the 0 to 3 tokens behind.

#include "device.cuh"
#include "latents.cuh"

constexpr int PARTS = LATENT / 64;
constexpr int OWN = 2 * SLABS;
constexpr int SHARE_PITCH = TILE + 8;
constexpr int NEAR = 16 * SLABS * TILE;

// A head's parts of scores too lie where reading them meets every bank.
__device__ __forceinline__ int near_at(int head, int key) { return head * TILE + (key ^ (head & 3) * 8); }
__device__ __forceinline__ void load4_turned(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// Four keys a warp into a place for 32; `place` is the token place of key `lane`, -1 for none.
__device__ __forceinline__ void fetch(unsigned char* to, const unsigned char* latents, int place) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < TILE / 8; i++) {
        const int key = warp * (TILE / 8) + i, at = __shfl_sync(~0u, place, key);
        const unsigned char* const from = latents + (size_t)max(at, 0) * LATENT_ROW;
#if FP8
        const float by = at < 0 ? 0.0f : power_of_two((signed char)from[LATENT]);
        for (int chunk = lane; chunk < CHUNKS; chunk += 32) {
            const uint2 codes = at < 0 ? make_uint2(0, 0) : *reinterpret_cast<const uint2*>(from + chunk * 8);
            u32 out[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 pair = (j < 2 ? codes.x : codes.y) >> 16 * (j & 1);
                out[j] = to_bf16(half_to_float(e4m3_to_half(pair & 0xFFu)) * by) | (u32)to_bf16(half_to_float(e4m3_to_half(pair >> 8 & 0xFFu)) * by) << 16;
            }
            *reinterpret_cast<uint4*>(to + piece(key, chunk)) = make_uint4(out[0], out[1], out[2], out[3]);
        }
#else
        for (int chunk = lane; chunk < CHUNKS; chunk += 32)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to + piece(key, chunk))), "l"(from + chunk * 16), "r"(at < 0 ? 0 : 16)
                         : "memory");
#endif
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Where the token of key `lane` of a tile is stored, -1 for none; the tile behind the `full` ones has the tokens behind the whole pools.
__device__ __forceinline__ int place_of(int tile, int full, int taken, int whole, int rest, const int* chosen, const int* pages) {
    const int lane = threadIdx.x & 31, slot = tile * TILE + lane;
    int token;
    if (tile < full) {
        if (slot / MEMBERS >= taken) return -1;
        token = (chosen ? chosen[slot / MEMBERS] : slot / MEMBERS) * MEMBERS + slot % MEMBERS;
    } else {
        if (lane >= rest) return -1;
        token = whole * MEMBERS + lane;
    }
    return pages[token / PAGE] * PAGE + token % PAGE;
}

// query bf16 [rows][HEADS][LATENT]; chosen int32 [rows][POOLS] ascending, read for rows with more pools than that; pages int32. out bf16 like query, zero
// for rows from `count` on. Row r stands at position first + r. Grid: rows by head groups.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    attend(const u16* __restrict__ query, const unsigned char* __restrict__ latents, const int* __restrict__ chosen, const int* __restrict__ pages,
           u16* __restrict__ out, int first, int count, float scale) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* const near = reinterpret_cast<float*>(memory + 2 * TILE * LATENT * 2);
    u16* const shares = reinterpret_cast<u16*>(near + PARTS * NEAR);
    __shared__ float rescale[16 * SLABS], tops[16 * SLABS], totals[16 * SLABS];
    await_inputs();
    const int group = blockIdx.x % GROUPS, row = blockIdx.x / GROUPS, warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const size_t base = ((size_t)row * HEADS + group * GROUP) * LATENT;
    if (row >= count) {
        for (int i = threadIdx.x; i < GROUP * LATENT / 2; i += 256) reinterpret_cast<u32*>(out + base)[i] = 0;
        return;
    }
    const int visible = first + row + 1, whole = visible / MEMBERS, taken = min(whole, POOLS), rest = visible % MEMBERS;
    const int full = (taken * MEMBERS + TILE - 1) / TILE, tiles = full + (rest > 0);
    const int* const own_chosen = whole > POOLS ? chosen + (size_t)row * POOLS : nullptr;
    u32 own[SLABS][4][4];
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int head = slab * 16 + g + (i & 1) * 8;
                own[slab][k][i] = head < GROUP && warp < PARTS ? *reinterpret_cast<const u32*>(query + base + (size_t)head * LATENT + warp * 64 + k * 16 + 2 * t + (i & 2) * 4) : 0;
            }
    float made[SLABS][8][4] = {};
    if (threadIdx.x < 16 * SLABS) tops[threadIdx.x] = -__int_as_float(0x7F800000), totals[threadIdx.x] = 0.0f;
    int ahead = place_of(0, full, taken, whole, rest, own_chosen, pages);
    fetch(memory, latents, ahead);
    for (int tile = 0; tile < tiles; tile++) {
        const bool valid = ahead >= 0;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        const unsigned char* const keys = memory + (tile & 1) * TILE * LATENT * 2;
        if (tile + 1 < tiles) {
            ahead = place_of(tile + 1, full, taken, whole, rest, own_chosen, pages);
            fetch(memory + (~tile & 1) * TILE * LATENT * 2, latents, ahead);
        }
        // Scores: each warp has 64 of the latents' values.
        if (warp < PARTS) {
#pragma unroll 1
            for (int n = 0; n < TILE / 8; n++) {
                float sums[SLABS][4] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    u32 b[4];
                    load4(b, address(keys) + piece(n * 8 + (lane & 7), warp * 8 + k * 4 + lane / 8));
#pragma unroll
                    for (int slab = 0; slab < SLABS; slab++) multiply(sums[slab], own[slab][2 * k], b), multiply(sums[slab], own[slab][2 * k + 1], b + 2);
                }
#pragma unroll
                for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        *reinterpret_cast<float2*>(near + warp * NEAR + near_at(slab * 16 + g + 8 * half, n * 8 + 2 * t)) =
                            make_float2(sums[slab][2 * half], sums[slab][2 * half + 1]);
            }
        }
        __syncthreads();
        // Shares: a warp has some heads, a lane one key.
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int head = warp * OWN + i;
            float score = near[near_at(head, lane)];
            // exact: parts of the latents in ascending order.
#pragma unroll
            for (int part = 1; part < PARTS; part++) score = __fadd_rn(score, near[part * NEAR + near_at(head, lane)]);
            score = valid ? __fmul_rn(score, scale) : -__int_as_float(0x7F800000);
            const float top = tops[head], most = fmaxf(top, warp_most(score)), share = __expf(score - most), fade = __expf(top - most);
            const float all = __fmaf_rn(totals[head], fade, warp_sum(share));
            shares[head * SHARE_PITCH + lane] = to_bf16(share);
            if (lane == 0) rescale[head] = fade, tops[head] = most, totals[head] = all;
            __syncwarp();
        }
        __syncthreads();
        if (warp < PARTS) {
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++) {
                const float low = rescale[slab * 16 + g], high = rescale[slab * 16 + g + 8];
                if (__any_sync(~0u, low != 1.0f || high != 1.0f)) {
#pragma unroll
                    for (int c = 0; c < 8; c++) made[slab][c][0] *= low, made[slab][c][1] *= low, made[slab][c][2] *= high, made[slab][c][3] *= high;
                }
            }
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) {
                u32 a[SLABS][4];
#pragma unroll
                for (int slab = 0; slab < SLABS; slab++) load4(a[slab], address(shares + (slab * 16 + (lane & 15)) * SHARE_PITCH + k * 16 + lane / 16 * 8));
#pragma unroll
                for (int c = 0; c < 8; c += 2) {
                    u32 b[4];
                    load4_turned(b, address(keys) + piece(k * 16 + (lane & 15), warp * 8 + c + lane / 16));
#pragma unroll
                    for (int slab = 0; slab < SLABS; slab++) multiply(made[slab][c], a[slab], b), multiply(made[slab][c + 1], a[slab], b + 2);
                }
            }
        }
    }
    if (warp >= PARTS) return;
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int head = slab * 16 + g + 8 * half;
            if (head >= GROUP) continue;
            const float by = __fdiv_rn(1.0f, totals[head]);
#pragma unroll
            for (int c = 0; c < 8; c++)
                *reinterpret_cast<u32*>(out + base + (size_t)head * LATENT + warp * 64 + c * 8 + 2 * t) =
                    to_bf16(made[slab][c][2 * half] * by) | (u32)to_bf16(made[slab][c][2 * half + 1] * by) << 16;
        }
}
