// EXL3 experts of many rows: each expert's weights are decoded once for up to ROWS rows that chose it and multiplied from registers with rotated
// inputs in shared memory. A row's sum runs over the inputs in one order whoever shares its tile.
//
// Shapes come as macros: K inputs, WIDTH (of the experts), HIDDEN, SLOTS, GATED (1: gate and up side by side, their activation comes out as the
// rotated input of down; 0: down), ROWS (most of an item), STAGES (blocks of 64 inputs in shared memory), BLOCKS (a multiprocessor), WGMMA (1: products of four warps). Weights lie as in `grouped.cu`.
//
// Rotated inputs lie as shared memory wants them: [64 inputs][slot][64], 16-byte pieces of a slot's 128 bytes swapped by its last three bits.
// plan int32: items, slots; per item expert, first slot, rows; then the slot of each pair, -1 for none.

#include "device.cuh"
#include "trellis.cuh"


__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Where input k of 64 stands in a slot: the 16 inputs of a product side by side, in the order in which `weights_alone` leaves weights.
__device__ __forceinline__ int place_alone(int k) { return (k & 6) * 8 + (k >> 4) * 2 + (k & 1) + (k & 8); }

// 128 values of a warp as fp16 to a slot's two pieces; `spare` holds 256 bytes of this warp.
__device__ __forceinline__ void store_slot(u16* image, size_t slots, int block, int slot, const float* v, u16* spare) {
    const int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) spare[(lane >> 4) * 64 + place_alone((lane & 15) * 4 + i)] = to_half(v[i]);
    __syncwarp();
    if (lane < 16) {
        const uint4 piece = *reinterpret_cast<const uint4*>(spare + lane * 8);
        *reinterpret_cast<uint4*>(image + ((size_t)(block * 2 + lane / 8) * slots + slot) * 64 + ((lane & 7) ^ (slot & 7)) * 8) = piece;
    }
}

#ifdef CODEBOOK

constexpr int SIDES = 1 + GATED;
constexpr int GROUPS = 2 * SIDES;
constexpr int WARPS = 4 * GROUPS;
constexpr int STEPS = K / 64;
constexpr int TILES = (GATED ? WIDTH : HIDDEN) / 128;
constexpr int STRIPS = TILES * 2 * SIDES;
constexpr int STAGE = ROWS * 128;
constexpr int PITCH = SIDES * 128 + 4;
constexpr int KEPT_ROWS = 64;
constexpr int MOST_TILES = ROWS / 32;

__device__ __forceinline__ void wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

__device__ __forceinline__ void expect_and_copy(u32 to, const u16* from, int bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}

#if WGMMA

#define OUT16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OUT32 OUT16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OUT48 OUT32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OUT64 OUT48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor)
#define PRODUCT(n, outs, rest, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" outs "}, " rest ", 1, 1, 1, 0;" : __VA_ARGS__ : A4)

// 64 outputs of four warps by 16 inputs, times 32 TILE32 rows.
template <int TILE32>
__device__ __forceinline__ void product(float* d, const u32* a, u64 descriptor) {
    if constexpr (TILE32 == 1) PRODUCT("32", OUT16, "{%16,%17,%18,%19}, %20", D16(0));
    if constexpr (TILE32 == 2) PRODUCT("64", OUT32, "{%32,%33,%34,%35}, %36", D16(0), D16(16));
    if constexpr (TILE32 == 3) PRODUCT("96", OUT48, "{%48,%49,%50,%51}, %52", D16(0), D16(16), D16(32));
    if constexpr (TILE32 == 4) PRODUCT("128", OUT64, "{%64,%65,%66,%67}, %68", D16(0), D16(16), D16(32), D16(48));
}
__device__ __forceinline__ void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void close_product() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Rows of 128 bytes in groups of 8, pieces swapped by the hardware's 128-byte pattern.
__device__ __forceinline__ u64 operand(u32 address) { return (u64)(address >> 4 & 0x3FFF) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }

constexpr int BATCH = 2;

#else

constexpr int BATCH = 1;

template <int TILE32>
__device__ __forceinline__ void product(float* d, const u32* a, u64 descriptor) {
    const int lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    const u32 stage = (u32)descriptor, piece = (u32)(descriptor >> 32) * 2 + (lane >> 3 & 1);
#pragma unroll
    for (int pair = 0; pair < 2 * TILE32; pair++) {
        u32 b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(stage + (pair * 16 + row) * 128 + ((piece ^ (lane & 7)) * 16)));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float* const to = d + pair * 8 + half * 4;
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));
        }
    }
}
__device__ __forceinline__ void fence_registers() {}
__device__ __forceinline__ void close_product() {}
template <int LEFT>
__device__ __forceinline__ void await_products() {}

#endif

__device__ __forceinline__ uint4 load_weights(const unsigned char* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

struct Item {
    int expert, first, rows, tile;
};

// Sums of 64 outputs of a group of four warps over all K; blocks of inputs come round a ring that two groups share.
template <int TILE32>
__device__ __forceinline__ void sum_up(float* d, const unsigned char* weights, const u16* x, size_t slots, const Item& item, unsigned char* memory,
                                       u64* barriers, u32 mask) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = warp / 4, side = group / 2;
    const u32 ring = shared_address(memory) + side * STAGES * STAGE;
    const u32 full = shared_address(barriers) + side * STAGES * 16, empty = full + STAGES * 8;
    const bool leads = group % 2 == 0 && warp % 4 == 0 && lane == 0;
    const u16* const from_x = x + ((size_t)side * STEPS * slots + item.first) * 64;
    constexpr int BYTES = 32 * TILE32 * 128;
    if (leads)
        for (int step = 0; step < STAGES && step < STEPS; step++)
            expect_and_copy(ring + step * STAGE, from_x + (size_t)step * slots * 64, BYTES, full + step * 8);
    const int strip = side * TILES * 2 + item.tile * 2 + group % 2;
    const unsigned char* from = weights + ((size_t)item.expert * STRIPS + strip) * STEPS * 2048 + (warp % 4) * 512 + lane * 16;
    uint4 ahead[1 + WGMMA];
#pragma unroll
    for (int i = 0; i <= WGMMA; i++) ahead[i] = load_weights(from + i * 2048);
#pragma unroll
    for (int i = 0; i < 16 * TILE32; i++) d[i] = 0.0f;
    u32 a[1 + WGMMA][BATCH][4];
    int stage = 0;
    u32 phase = 0;
    for (int pair = 0; pair < STEPS; pair += 2) {
#pragma unroll WGMMA + 1
        for (int odd = 0; odd < 2; odd++) {
            const int step = pair + odd;
            const u32 words[4] = {ahead[odd & WGMMA].x, ahead[odd & WGMMA].y, ahead[odd & WGMMA].z, ahead[odd & WGMMA].w};
            if (step + 1 + WGMMA < STEPS) ahead[odd & WGMMA] = load_weights(from + (size_t)(step + 1 + WGMMA) * 2048);
            u32 before = __shfl_sync(~0u, words[3], (lane + 28) & 31);
            wait(full + stage * 8, phase);
#pragma unroll
            for (int first = 0; first < 4; first += BATCH) {
                const int set = first / BATCH & WGMMA;
#pragma unroll
                for (int i = 0; i < BATCH; i++) weights_alone(a[set][i], i || first ? words[first + i - 1] : before, words[first + i], mask);
                fence_registers();
#pragma unroll
                for (int i = 0; i < BATCH; i++)
#if WGMMA
                    product<TILE32>(d, a[set][i], operand(ring + stage * STAGE + (first + i) * 32));
#else
                    product<TILE32>(d, a[set][i], (u64)(ring + stage * STAGE) | (u64)(first + i) << 32);
#endif
                close_product();
                await_products<1>();
                if (first == 0 && step > 0) {
                    // The block before this one is read to its end; the one before that makes room for one STAGES further on.
                    __syncwarp();
                    if (lane == 0) arrive(empty + (stage == 0 ? STAGES - 1 : stage - 1) * 8);
                    const int freed = step - 2;
                    if (leads && freed >= 0 && freed + STAGES < STEPS) {
                        const int at = freed % STAGES;
                        wait(empty + at * 8, freed / STAGES & 1);
                        expect_and_copy(ring + at * STAGE, from_x + (size_t)(freed + STAGES) * slots * 64, BYTES, full + at * 8);
                    }
                }
            }
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
    await_products<0>();
}

// Output rotation and what follows it, one row a warp. GATED: the activation as rotated input of down. Else the pair's output, bf16.
__device__ __forceinline__ void finish_row(float* kept, const Item& item, int row, const u16* svh, const u16* suh, u16* out, size_t slots,
                                           int experts, float limit) {
    const int lane = threadIdx.x & 31, column = item.tile * 128 + lane * 4;
    float side[SIDES][4];
#pragma unroll
    for (int s = 0; s < SIDES; s++) {
        const float4 in = *reinterpret_cast<const float4*>(kept + s * 128 + lane * 4);
        const ushort4 scale = *reinterpret_cast<const ushort4*>(svh + ((size_t)s * experts + item.expert) * TILES * 128 + column);
        const u16 by[4] = {scale.x, scale.y, scale.z, scale.w};
        side[s][0] = in.x, side[s][1] = in.y, side[s][2] = in.z, side[s][3] = in.w;
        rotate(side[s]);
#pragma unroll
        for (int i = 0; i < 4; i++) side[s][i] = __fmul_rn(side[s][i], half_to_float(by[i]));
    }
#if GATED
    const ushort4 scale = *reinterpret_cast<const ushort4*>(suh + (size_t)item.expert * WIDTH + column);
    const u16 by[4] = {scale.x, scale.y, scale.z, scale.w};
    const float most = as_bf16(limit);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float gate = fminf(as_bf16(side[0][i]), most), up = fminf(fmaxf(as_bf16(side[1][i]), -most), most);
        const float hidden = as_bf16(__fmul_rn(as_bf16(__fdiv_rn(gate, 1.0f + __expf(-gate))), up));
        v[i] = half_to_float(half_product(to_half(hidden), by[i]));
    }
    rotate(v);
    store_slot(out, slots, item.tile, item.first + row, v, reinterpret_cast<u16*>(kept));
#else
    *reinterpret_cast<ushort4*>(out + (size_t)(item.first + row) * HIDDEN + column) =
        make_ushort4(to_bf16(side[0][0]), to_bf16(side[0][1]), to_bf16(side[0][2]), to_bf16(side[0][3]));
#endif
}

template <int TILE32>
__device__ __forceinline__ void run_item(const unsigned char* weights, const u16* x, const Item& item, const u16* svh, const u16* suh, u16* out,
                                         size_t slots, int experts, float limit, unsigned char* memory, u64* barriers, u32 mask) {
    float d[16 * TILE32];
    sum_up<TILE32>(d, weights, x, slots, item, memory, barriers, mask);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, group = warp / 4;
    float* const kept = reinterpret_cast<float*>(memory);
    const int output = group * 64 + warp % 4 * 16 + (lane >> 2);
#pragma unroll
    for (int begin = 0; begin < 32 * TILE32; begin += KEPT_ROWS) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16 * TILE32; i++) {
            const int row = i / 4 * 8 + (lane & 3) * 2 + (i & 1);
            if (i / 4 * 8 >= begin && i / 4 * 8 < begin + KEPT_ROWS) kept[(row - begin) * PITCH + output + (i & 2) * 4] = d[i];
        }
        __syncthreads();
        for (int row = begin + warp; row < begin + KEPT_ROWS && row < item.rows; row += WARPS)
            finish_row(kept + (row - begin) * PITCH, item, row, svh, suh, out, slots, experts, limit);
    }
}

// GATED: x [2][HIDDEN / 64][slots][64], out the same of WIDTH; svh fp16 [2][experts][WIDTH], suh fp16 [experts][WIDTH].
// Else: x [WIDTH / 64][slots][64], out bf16 [slots][HIDDEN], svh fp16 [experts][HIDDEN].
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    tile_product(const unsigned char* __restrict__ weights, const u16* __restrict__ x, const int* __restrict__ plan, const u16* __restrict__ svh,
                 const u16* __restrict__ suh, u16* __restrict__ out, int slots, int most, int experts, float limit, u32 mask) {
    extern __shared__ __align__(1024) unsigned char memory[];
    await_inputs();
    const int at = blockIdx.x / TILES;
    if (at >= plan[0]) return;
    u64* const barriers = reinterpret_cast<u64*>(memory + SIDES * STAGES * STAGE);
    if (threadIdx.x < SIDES * STAGES * 2) {
        const int count = threadIdx.x / STAGES % 2 ? 8 : 1;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barriers + threadIdx.x)), "r"(count) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    const Item item = {plan[2 + at], plan[2 + most + at], plan[2 + 2 * most + at], (int)(blockIdx.x % TILES)};
#define RUN(tile) run_item<tile>(weights, x, item, svh, suh, out, slots, experts, limit, memory, barriers, mask)
    if (item.rows > 96) RUN(MOST_TILES);
    else if (item.rows > 64) RUN(3);
    else if (item.rows > 32) RUN(2);
    else RUN(1);
}

#else

constexpr int MOST_EXPERTS = 1024;

// Which pairs share an expert: at most ROWS an item, in any order. Slots of an item begin at a multiple of 8.
extern "C" __global__ void __launch_bounds__(1024) plan_tiles(const long long* __restrict__ chosen, int* __restrict__ plan, int pairs, int most, int experts) {
    __shared__ int count[MOST_EXPERTS], base[MOST_EXPERTS], item[MOST_EXPERTS];
    await_inputs();
    for (int e = threadIdx.x; e < experts; e += 1024) count[e] = 0;
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += 1024) {
        const int e = (int)chosen[pair];
        if (e >= 0) atomicAdd(&count[e], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int items = 0, slots = 0;
        for (int e = 0; e < experts; e++) {
            base[e] = slots, item[e] = items;
            items += (count[e] + ROWS - 1) / ROWS, slots += (count[e] + 7) & ~7;
        }
        plan[0] = items, plan[1] = slots;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += 1024) {
        const int all = count[e], parts = (all + ROWS - 1) / ROWS;
        const int size = parts ? ((all + parts - 1) / parts + 7) & ~7 : 0;
        for (int part = 0; part < parts; part++) {
            plan[2 + item[e] + part] = e;
            plan[2 + most + item[e] + part] = base[e] + part * size;
            plan[2 + 2 * most + item[e] + part] = min(size, all - part * size);
        }
        count[e] = 0;
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += 1024) {
        const int e = (int)chosen[pair];
        plan[2 + 3 * most + pair] = e < 0 ? -1 : base[e] + atomicAdd(&count[e], 1);
    }
}

// Both factors of a 128-wide rotation: 16 neighbours by a product with a matrix of signs, then 8 of these sixteens between lanes.
struct Signs {
    u32 of[2][2];
    __device__ __forceinline__ Signs(int lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = (lane >> 2) + i / 2 * 8, k = (lane & 3) * 2 + (i & 1) * 8;
            of[i / 2][i & 1] = 0x3C003C00u | (__popc(k & n) & 1) << 15 | (u32)(__popc((k + 1) & n) & 1) << 31;
        }
    }
};

// Rotated inputs of gate and up of every pair, a warp for 256 of them. x bf16 [rows][HIDDEN], suh fp16 [2][experts][HIDDEN].
extern "C" __global__ void __launch_bounds__(256)
    rotate_tiles(const u16* __restrict__ x, const long long* __restrict__ chosen, const int* __restrict__ plan, const u16* __restrict__ suh,
                 u16* __restrict__ rotated, int pairs, int slots, int most, int experts) {
    await_inputs();
    const int block = blockIdx.x * 8 + threadIdx.x / 32, part = block % (HIDDEN / 256), pair = block / (HIDDEN / 256);
    if (pair >= pairs) return;
    const int expert = (int)chosen[pair], lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
    if (expert < 0) return;
    const int slot = plan[2 + 3 * most + pair];
    const Signs signs(lane);
    // Register i: sixteen g of half i & 1, inputs 2 t and 2 t + 1, + 8 in the upper two.
    const int column = part * 256 + g * 16 + t * 2;
    u32 in[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 two = *reinterpret_cast<const u32*>(x + (size_t)(pair / SLOTS) * HIDDEN + column + (i & 1) * 128 + (i & 2) * 4);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(in[i]) : "f"(__uint_as_float(two & 0xFFFF0000u)), "f"(__uint_as_float(two << 16)));
    }
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const u16* const scales = suh + ((size_t)side * experts + expert) * HIDDEN + column;
        u32 a[4], made[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(in[i]), "r"(*reinterpret_cast<const u32*>(scales + (i & 1) * 128 + (i & 2) * 4)));
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            float d[4];
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(signs.of[upper][0]), "r"(signs.of[upper][1]), "f"(0.0f));
#pragma unroll
            for (int stride = 4; stride < 32; stride *= 2) {
                const float sign = lane & stride ? -1.0f : 1.0f;
#pragma unroll
                for (int i = 0; i < 4; i++) d[i] = __fmaf_rn(d[i], sign, __shfl_xor_sync(~0u, d[i], stride));
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm("cvt.rn.f16x2.f32 %0, %1, %2;"
                    : "=r"(made[half * 2 + upper])
                    : "f"(__fmul_rn(d[half * 2 + 1], ROTATION)), "f"(__fmul_rn(d[half * 2], ROTATION)));
        }
        // Four lanes with neighbouring sixteens have four pieces between them; each takes one whole.
        const bool odd = g & 1, high = g & 2;
        u32 pairs_of[2][2], piece[4];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const u32 other = __shfl_xor_sync(~0u, odd ? made[2 * q] : made[2 * q + 1], 4);
            pairs_of[q][0] = odd ? other : made[2 * q], pairs_of[q][1] = odd ? made[2 * q + 1] : other;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 other = __shfl_xor_sync(~0u, high ? pairs_of[0][i] : pairs_of[1][i], 8);
            piece[i] = high ? other : pairs_of[0][i], piece[2 + i] = high ? pairs_of[1][i] : other;
        }
        const int at = side * (HIDDEN / 64) + part * 4 + (g & 2) + g / 4;
        *reinterpret_cast<uint4*>(rotated + ((size_t)at * slots + slot) * 64 + ((2 * t + (g & 1)) ^ (slot & 7)) * 8) =
            make_uint4(piece[0], piece[1], piece[2], piece[3]);
    }
}

// Weighted sum of a row's outputs bf16 [slots][HIDDEN] in slot order, fp32 sums, out bf16 [rows][HIDDEN].
extern "C" __global__ void __launch_bounds__(HIDDEN / 8 < 256 ? HIDDEN / 8 : 256)
    combine_tiles(const u16* __restrict__ found, const int* __restrict__ plan, const float* __restrict__ weights, u16* __restrict__ out, int most) {
    await_inputs();
    const int row = blockIdx.x;
    for (int column = threadIdx.x * 8; column < HIDDEN; column += blockDim.x * 8) {
        float total[8] = {};
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            const int at = plan[2 + 3 * most + row * SLOTS + slot];
            if (at < 0) continue;
            const float share = weights[row * SLOTS + slot];
            const uint4 in = *reinterpret_cast<const uint4*>(found + (size_t)at * HIDDEN + column);
            const u32 words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float v = from_bf16(i & 1 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFFu);
                total[i] = __fadd_rn(total[i], __fmul_rn(v, share));
            }
        }
        u32 made[4];
#pragma unroll
        for (int i = 0; i < 4; i++) made[i] = to_bf16(total[2 * i]) | (u32)to_bf16(total[2 * i + 1]) << 16;
        *reinterpret_cast<uint4*>(out + (size_t)row * HIDDEN + column) = make_uint4(made[0], made[1], made[2], made[3]);
    }
}

#endif
