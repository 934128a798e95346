// Latent attention of a step's rows over pages: norms of a layer's projections and what is stored of them, attention over exactly the selected keys in
// ascending order, cut into SPLITS fixed ranges whose parts are joined in ascending order. FP8 1: stored rows are e4m3 codes and an exponent.
//
// A row of projections is PITCH wide: QUERY, LATENT, KEY, WEIGHTS, KEY (gate). HEADS heads; a row attends POOLS pools of 4 tokens at most, or all it
// has, and the 0 to 3 tokens behind the last whole pool.

#include "device.cuh"
#include "latents.cuh"

constexpr int TAIL_BYTES = 16;
constexpr int KEY_ROW = FP8 ? KEY + TAIL_BYTES : 2 * KEY;

// Sum or maximum over a block of 256 threads, the same bits in every thread.
__device__ __forceinline__ float block_sum(float v, float* kept) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) kept[threadIdx.x / 32] = v;
    __syncthreads();
    float total = kept[0];
#pragma unroll
    for (int warp = 1; warp < 8; warp++) total = __fadd_rn(total, kept[warp]);
    __syncthreads();
    return total;
}

// A row of WIDTH_ values through its norm, value i * 256 + thread; two roundings, as published.
template <int VALUES>
__device__ __forceinline__ void normed(float* v, const u16* from, const u16* weight, float eps, float* kept) {
    constexpr int OWN = (VALUES + 255) / 256;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int at = i * 256 + threadIdx.x;
        v[i] = at < VALUES ? from_bf16(from[at]) : 0.0f;
        sum = __fmaf_rn(v[i], v[i], sum);
    }
    const float inverse = rsqrtf(__fmaf_rn(block_sum(sum, kept), 1.0f / VALUES, eps));
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int at = i * 256 + threadIdx.x;
        v[i] = at < VALUES ? as_bf16(as_bf16(v[i] * inverse) * from_bf16(weight[at])) : 0.0f;
    }
}

// The layer norm of a key by a warp, value i * 32 + lane.
__device__ __forceinline__ void key_normed(float* v, const u16* from, const u16* weight, const u16* bias) {
    const int lane = threadIdx.x & 31;
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < KEY / 32; i++) v[i] = from_bf16(from[i * 32 + lane]), sum = __fadd_rn(sum, v[i]);
    const float mean = warp_sum(sum) * (1.0f / KEY);
#pragma unroll
    for (int i = 0; i < KEY / 32; i++) square = __fmaf_rn(v[i] - mean, v[i] - mean, square);
    const float inverse = rsqrtf(__fmaf_rn(warp_sum(square), 1.0f / KEY, 1e-6f));
#pragma unroll
    for (int i = 0; i < KEY / 32; i++) v[i] = as_bf16(__fmaf_rn((v[i] - mean) * inverse, from_bf16(weight[i * 32 + lane]), from_bf16(bias[i * 32 + lane])));
}

// projected bf16 [rows][PITCH] -> query bf16 [rows][QUERY] through its norm; the row's latent to its place of `latents`; the row's key and gate to raw bf16
// [rows][2 KEY]; the pool that ends with the row to its place of `pooled`. tail bf16 [slots][3][2 KEY], bias fp32 [4][KEY]. Grid: rows by three.
extern "C" __global__ void __launch_bounds__(256)
    prepare(const u16* __restrict__ projected, const int* __restrict__ plan_at, const u16* __restrict__ query_norm, const u16* __restrict__ latent_norm,
            const u16* __restrict__ key_norm, const u16* __restrict__ key_bias, const float* __restrict__ bias, const u16* __restrict__ tail,
            u16* __restrict__ query, unsigned char* __restrict__ latents, u16* __restrict__ raw, unsigned char* __restrict__ pooled, int rows, int most,
            float eps) {
    __shared__ float kept[8];
    await_inputs();
    const Plan plan(plan_at, rows, most);
    const int row = blockIdx.x / 3, part = blockIdx.x % 3;
    if (row >= plan.count) return;
    const u16* const own = projected + (size_t)row * PITCH;
    if (part == 0) {
        float v[(QUERY + 255) / 256];
        normed<QUERY>(v, own, query_norm, eps, kept);
#pragma unroll
        for (int i = 0; i < (QUERY + 255) / 256; i++)
            if (i * 256 + threadIdx.x < QUERY) query[(size_t)row * QUERY + i * 256 + threadIdx.x] = to_bf16(v[i]);
    } else if (part == 1) {
        constexpr int OWN = (LATENT + 255) / 256;
        float v[OWN];
        normed<LATENT>(v, own + QUERY, latent_norm, eps, kept);
        unsigned char* const to = latents + (size_t)plan.latents[row] * LATENT_ROW;
        float high = 0.0f;
        bool bad = false;
#pragma unroll
        for (int i = 0; i < OWN; i++) high = fmaxf(high, fabsf(v[i])), bad |= !(fabsf(v[i]) <= 3.4e38f);
        high = warp_most(high);
        if ((threadIdx.x & 31) == 0) kept[threadIdx.x / 32] = high;
        bad = __syncthreads_or(bad);
        for (int warp = 0; warp < 8; warp++) high = fmaxf(high, kept[warp]);
        if (bad) high = __uint_as_float(0x7F800000u);
        const int exponent = bad ? 127 : e4m3_exponent(high);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            if (i * 256 + threadIdx.x >= LATENT) break;
            if (FP8)
                to[i * 256 + threadIdx.x] = e4m3_code(v[i], exponent, high);
            else
                reinterpret_cast<u16*>(to)[i * 256 + threadIdx.x] = to_bf16(v[i]);
        }
        if (FP8 && threadIdx.x < TAIL_BYTES) to[LATENT + threadIdx.x] = threadIdx.x ? 0 : (unsigned char)exponent;
    } else if (threadIdx.x < 32) {
        constexpr int OWN = KEY / 32, GATE = QUERY + LATENT + KEY + WEIGHTS;
        const int lane = threadIdx.x, owner = plan.owners[row], step = plan.steps[row];
        float key[MEMBERS][OWN], gate[MEMBERS][OWN];
#pragma unroll
        for (int m = 0; m < MEMBERS; m++) {
            const int source = step + m - (MEMBERS - 1);
            if (source < 0) {
                const u16* const old = tail + ((size_t)plan.slots[owner] * (MEMBERS - 1) + source + MEMBERS - 1) * 2 * KEY;
#pragma unroll
                for (int i = 0; i < OWN; i++) key[m][i] = from_bf16(old[i * 32 + lane]), gate[m][i] = from_bf16(old[KEY + i * 32 + lane]);
            } else {
                const u16* const from = projected + (size_t)(plan.offsets[source] + owner) * PITCH;
                key_normed(key[m], from + QUERY + LATENT, key_norm, key_bias);
#pragma unroll
                for (int i = 0; i < OWN; i++) gate[m][i] = from_bf16(from[GATE + i * 32 + lane]);
            }
        }
        float made[OWN], high = 0.0f;
        bool bad = false;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            u16* const to = raw + (size_t)row * 2 * KEY + i * 32 + lane;
            to[0] = to_bf16(key[MEMBERS - 1][i]), to[KEY] = to_bf16(gate[MEMBERS - 1][i]);
            float share[MEMBERS], top = -3.4e38f, all = 0.0f, total = 0.0f;
#pragma unroll
            for (int m = 0; m < MEMBERS; m++) share[m] = gate[m][i] + bias[m * KEY + i * 32 + lane], top = fmaxf(top, share[m]);
#pragma unroll
            for (int m = 0; m < MEMBERS; m++) share[m] = expf(share[m] - top), all = __fadd_rn(all, share[m]);
#pragma unroll
            for (int m = 0; m < MEMBERS; m++) total = __fadd_rn(total, as_bf16(__fmul_rn(as_bf16(__fdiv_rn(share[m], all)), key[m][i])));
            made[i] = as_bf16(total), high = fmaxf(high, fabsf(made[i])), bad |= !(fabsf(made[i]) <= 3.4e38f);
        }
        if ((plan.positions[row] + 1) % MEMBERS) return;
        unsigned char* const to = pooled + (size_t)plan.pools[row] * KEY_ROW;
        high = warp_most(high), bad = __any_sync(~0u, bad);
        if (bad) high = __uint_as_float(0x7F800000u);
        const int exponent = bad ? 127 : e4m3_exponent(high);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            if (FP8)
                to[i * 32 + lane] = e4m3_code(made[i], exponent, high);
            else
                reinterpret_cast<u16*>(to)[i * 32 + lane] = to_bf16(made[i]);
        }
        if (FP8 && lane < TAIL_BYTES) to[KEY + lane] = lane ? 0 : (unsigned char)exponent;
    }
}

// The newest rows of the indexer behind a window of which some are kept, all layers: tail [layers][slots][3][2 KEY], raw [layers][rows][2 KEY].
extern "C" __global__ void __launch_bounds__(2 * KEY)
    commit(u16* __restrict__ tail, const u16* __restrict__ raw, const int* __restrict__ plan_at, int rows, int most, int slots) {
    const Plan plan(plan_at, rows, most);
    const int layer = blockIdx.x / most, sequence = blockIdx.x % most, c = threadIdx.x;
    if (sequence >= plan.sequences || plan.keeps[sequence] == 0) return;
    u16* const newest = tail + ((size_t)layer * slots + plan.slots[sequence]) * (MEMBERS - 1) * 2 * KEY + c;
    u16 kept[MEMBERS - 1];
#pragma unroll
    for (int m = 0; m < MEMBERS - 1; m++) {
        const int source = plan.keeps[sequence] + m - (MEMBERS - 1);
        kept[m] = source < 0 ? newest[(source + MEMBERS - 1) * 2 * KEY] : raw[((size_t)layer * rows + plan.offsets[source] + sequence) * 2 * KEY + c];
    }
#pragma unroll
    for (int m = 0; m < MEMBERS - 1; m++) newest[m * 2 * KEY] = kept[m];
}

constexpr int TILES = (MEMBERS * POOLS + TILE) / TILE;
constexpr int EACH = (TILES + SPLITS - 1) / SPLITS;
constexpr int NEAR_PAD = TILE + 1;
constexpr int SHARE_PAD = TILE + 8;

__device__ __forceinline__ void load2_turned(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}

// query bf16 [rows][HEADS][LATENT]; chosen int32 [rows][POOLS] in ascending order, read for rows with more pools than that; pages int32 [most][pitch].
// sums fp32 [rows][SPLITS][HEADS][LATENT] not divided, weights fp32 [rows][SPLITS][HEADS][2]: largest score (-inf: no key) and sum of shares.
// Grid: rows by head groups by splits.
extern "C" __global__ void __launch_bounds__(256)
    attend(const uint4* __restrict__ query, const unsigned char* __restrict__ latents, const int* __restrict__ chosen, const int* __restrict__ plan_at,
           const int* __restrict__ pages, float* __restrict__ sums, float* __restrict__ weights, int rows, int most, int pitch, float scale) {
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* const held_query = memory;
    unsigned char* const held_keys = held_query + 16 * SLABS * LATENT * 2;
    float* const near = reinterpret_cast<float*>(held_keys + TILE * LATENT * 2);
    u16* const shares = reinterpret_cast<u16*>(near + 16 * SLABS * NEAR_PAD);
    float* const rescale = reinterpret_cast<float*>(shares + 16 * SLABS * SHARE_PAD);
    await_inputs();
    const Plan plan(plan_at, rows, most);
    const int split = blockIdx.x % SPLITS, group = blockIdx.x / SPLITS % GROUPS, row = blockIdx.x / SPLITS / GROUPS;
    if (row >= plan.count) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int visible = plan.positions[row] + 1, whole = visible / MEMBERS, taken = whole < POOLS ? whole : POOLS;
    const int* const own_pages = pages + (size_t)plan.owners[row] * pitch;
    const size_t part = ((size_t)row * SPLITS + split) * HEADS + group * GROUP;
    const int last = MEMBERS * POOLS / TILE;
    const int begin = split * EACH, end = begin + EACH < TILES ? begin + EACH : TILES;
    // Tiles without a key: behind the last pool taken, but for the one of the newest tokens.
    if (begin * TILE >= taken * MEMBERS && !(begin <= last && last < end && visible % MEMBERS)) {
        for (int head = threadIdx.x; head < GROUP; head += 256) weights[(part + head) * 2] = -__int_as_float(0x7F800000), weights[(part + head) * 2 + 1] = 0.0f;
        return;
    }
    for (int i = threadIdx.x; i < 16 * SLABS * CHUNKS; i += 256) {
        const int head = i / CHUNKS, chunk = i % CHUNKS;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (head < GROUP) x = query[((size_t)row * HEADS + group * GROUP + head) * CHUNKS + chunk];
        *reinterpret_cast<uint4*>(held_query + piece(head, chunk)) = x;
    }
    constexpr int COLUMNS = LATENT / 64;
    float made[SLABS][COLUMNS][4] = {}, top[2 * SLABS], all[2 * SLABS];
#pragma unroll
    for (int i = 0; i < 2 * SLABS; i++) top[i] = -__int_as_float(0x7F800000), all[i] = 0.0f;
    for (int tile = begin; tile < end; tile++) {
        if (tile < last && tile * TILE >= taken * MEMBERS) continue;
        if (tile == last && visible % MEMBERS == 0) continue;
        // Slot `lane` of the tile: its token, or none.
        const int slot = tile * TILE + lane;
        bool valid;
        int token = 0;
        if (slot < MEMBERS * POOLS) {
            valid = slot / MEMBERS < taken;
            if (valid) token = (whole > POOLS ? chosen[(size_t)row * POOLS + slot / MEMBERS] : slot / MEMBERS) * MEMBERS + slot % MEMBERS;
        } else {
            valid = slot - MEMBERS * POOLS < visible % MEMBERS;
            if (valid) token = whole * MEMBERS + slot - MEMBERS * POOLS;
        }
        const int place = valid ? own_pages[token / PAGE] * PAGE + token % PAGE : -1;
        __syncthreads();
        // Each warp fetches 4 of the 32 keys.
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int key = warp * 4 + k, at = __shfl_sync(~0u, place, key);
            const unsigned char* const from = latents + (size_t)at * LATENT_ROW;
            if (FP8) {
                const float by = at < 0 ? 0.0f : power_of_two((signed char)from[LATENT]);
                for (int chunk = lane; chunk < CHUNKS; chunk += 32) {
                    uint2 codes = make_uint2(0, 0);
                    if (at >= 0) codes = *reinterpret_cast<const uint2*>(from + chunk * 8);
                    u32 out[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const u32 pair = (i < 2 ? codes.x : codes.y) >> 16 * (i & 1);
                        u32 halves;
                        asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(halves) : "r"(pair));
                        float low, high;
                        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(halves));
                        out[i] = to_bf16(low * by) | (u32)to_bf16(high * by) << 16;
                    }
                    *reinterpret_cast<uint4*>(held_keys + piece(key, chunk)) = make_uint4(out[0], out[1], out[2], out[3]);
                }
            } else {
                for (int chunk = lane; chunk < CHUNKS; chunk += 32) {
                    uint4 x = make_uint4(0, 0, 0, 0);
                    if (at >= 0) x = reinterpret_cast<const uint4*>(from)[chunk];
                    *reinterpret_cast<uint4*>(held_keys + piece(key, chunk)) = x;
                }
            }
        }
        __syncthreads();
        // Scores: a warp has 16 heads and 8 keys.
        if (warp < 4 * SLABS) {
            const int slab = warp / 4, keys = warp % 4 * 8;
            float found[4] = {};
#pragma unroll 4
            for (int k = 0; k < LATENT / 32; k++) {
                u32 a[4], b[4];
                load4(b, address(held_keys) + piece(keys + (lane & 7), 4 * k + lane / 8));
                load4(a, address(held_query) + piece(slab * 16 + (lane & 15), 4 * k + lane / 16));
                multiply(found, a, b);
                load4(a, address(held_query) + piece(slab * 16 + (lane & 15), 4 * k + 2 + lane / 16));
                multiply(found, a, b + 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) near[(slab * 16 + lane / 4 + 8 * (i / 2)) * NEAR_PAD + keys + 2 * (lane & 3) + (i & 1)] = found[i];
        }
        __syncthreads();
        // Shares: a warp has 2 SLABS heads, a lane one key.
#pragma unroll
        for (int i = 0; i < 2 * SLABS; i++) {
            const int head = warp * 2 * SLABS + i;
            const float score = valid ? __fmul_rn(near[head * NEAR_PAD + lane], scale) : -__int_as_float(0x7F800000);
            const float most_now = fmaxf(top[i], warp_most(score)), share = expf(score - most_now), fade = expf(top[i] - most_now);
            all[i] = __fmaf_rn(all[i], fade, warp_sum(share));
            top[i] = most_now;
            shares[head * SHARE_PAD + lane] = to_bf16(share);
            if (lane == 0) rescale[head] = fade;
        }
        __syncthreads();
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            const float low = rescale[slab * 16 + lane / 4], high = rescale[slab * 16 + lane / 4 + 8];
            u32 a[TILE / 16][4];
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) load4(a[k], address(shares + (slab * 16 + (lane & 15)) * SHARE_PAD + k * 16 + lane / 16 * 8));
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                float* const own = made[slab][c];
                own[0] *= low, own[1] *= low, own[2] *= high, own[3] *= high;
#pragma unroll
                for (int k = 0; k < TILE / 16; k++) {
                    u32 b[2];
                    load2_turned(b, address(held_keys) + piece(k * 16 + (lane & 15), warp * COLUMNS + c));
                    multiply(own, a[k], b);
                }
            }
        }
    }
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int head = slab * 16 + lane / 4 + 8 * i, column = (warp * COLUMNS + c) * 8 + 2 * (lane & 3);
                if (head < GROUP) *reinterpret_cast<float2*>(sums + (part + head) * LATENT + column) = make_float2(made[slab][c][2 * i], made[slab][c][2 * i + 1]);
            }
#pragma unroll
    for (int i = 0; i < 2 * SLABS; i++) {
        const int head = warp * 2 * SLABS + i;
        if (lane == 0 && head < GROUP) weights[(part + head) * 2] = top[i], weights[(part + head) * 2 + 1] = all[i];
    }
}

// out bf16 [rows][HEADS][LATENT]: the parts under one maximum, divided by the sum of their shares; zero for padding. Grid: rows by heads.
extern "C" __global__ void __launch_bounds__(LATENT / 4)
    join(const float* __restrict__ sums, const float* __restrict__ weights, const int* __restrict__ plan_at, u16* __restrict__ out) {
    await_inputs();
    const int row = blockIdx.x / HEADS, head = blockIdx.x % HEADS, column = threadIdx.x * 4;
    float total[4] = {}, all = 0.0f, top = -__int_as_float(0x7F800000);
    const bool real = row < plan_at[0];
    if (real)
        for (int split = 0; split < SPLITS; split++) top = fmaxf(top, weights[(((size_t)row * SPLITS + split) * HEADS + head) * 2]);
    for (int split = 0; real && split < SPLITS; split++) {
        const size_t at = ((size_t)row * SPLITS + split) * HEADS + head;
        const float own = weights[at * 2];
        if (own < -3.4e38f) continue;
        const float by = expf(own - top);
        const float4 in = *reinterpret_cast<const float4*>(sums + at * LATENT + column);
        all = __fmaf_rn(weights[at * 2 + 1], by, all);
        total[0] = __fmaf_rn(in.x, by, total[0]), total[1] = __fmaf_rn(in.y, by, total[1]), total[2] = __fmaf_rn(in.z, by, total[2]), total[3] = __fmaf_rn(in.w, by, total[3]);
    }
    const float by = real ? __fdiv_rn(1.0f, all) : 0.0f;
    u16* const to = out + ((size_t)row * HEADS + head) * LATENT + column;
    *reinterpret_cast<ushort4*>(to) = make_ushort4(to_bf16(total[0] * by), to_bf16(total[1] * by), to_bf16(total[2] * by), to_bf16(total[3] * by));
}
