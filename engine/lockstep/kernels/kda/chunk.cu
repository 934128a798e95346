// The delta rule in chunks of 64 rows on the absolute grid. `prepare` works out for each chunk and head, all at once, what does not need the state;
// `scan` takes the state from chunk to chunk. Operands of products are rounded to tf32 or fp16, sums and the state are fp32.
//
// With G the running sum of log decays in a chunk, A[i][j] = beta_i sum_c k_ic k_jc exp(G_ic - G_jc) below the diagonal and T = (I + A)^-1 diag(beta):
// U = T V, W = T (K exp(G)), P[i][j] = sum_c q_ic k_jc exp(G_ic - G_jc) up to the diagonal. See `ref.prompt_tile`.

#include "device.cuh"

constexpr int ROWS = 64;
constexpr int BLOCK = 16;
constexpr int HALF_PITCH = WIDTH + 8;
constexpr int FULL_PITCH = WIDTH + 4;
constexpr int MATRIX_PITCH = ROWS + 4;
constexpr int GROUPS = 256 / WIDTH;
constexpr int OWN_ROWS = ROWS / GROUPS;
constexpr int TAPS = 4;

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 two_halves(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ u32 tf32(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ void multiply(float* sums, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What a chunk of a head leaves for `scan`: fp16 W, exp(G) Q [64][WIDTH], (exp(G_last - G) K)^T [WIDTH][64], P [64][64]; fp32 U [64][WIDTH], exp(G_last).
struct Chunk {
    u16 *w, *q, *k, *p;
    float *u, *fade;
    __device__ __forceinline__ Chunk(unsigned char* memory, size_t index) {
        constexpr size_t HALVES = 3 * ROWS * WIDTH + ROWS * ROWS, FLOATS = ROWS * WIDTH + WIDTH;
        unsigned char* const own = memory + index * (HALVES * 2 + FLOATS * 4);
        w = reinterpret_cast<u16*>(own), q = w + ROWS * WIDTH, k = q + ROWS * WIDTH, p = k + ROWS * WIDTH;
        u = reinterpret_cast<float*>(p + ROWS * ROWS), fade = u + ROWS * WIDTH;
    }
};

// Convolved rows of a channel of q (0), k (1) or v (2) as bf16.
__device__ __forceinline__ void convolve(u16* to, const u16* projected, const u16* tail, const float* taps, int which, int heads, int head, int first) {
    const int channel = threadIdx.x % WIDTH, begin = threadIdx.x / WIDTH * OWN_ROWS, column = (which * heads + head) * WIDTH + channel, all = 3 * heads * WIDTH;
    float by[TAPS], held[TAPS];
#pragma unroll
    for (int i = 0; i < TAPS; i++) by[i] = taps[i * all + column];
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) {
        const int row = first + begin + i - (TAPS - 1);
        held[i + 1] = from_bf16(row < 0 ? tail[(row + TAPS - 1) * all + column] : projected[(size_t)row * PITCH + column]);
    }
    for (int r = begin; r < begin + OWN_ROWS; r++) {
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) held[i] = held[i + 1];
        held[TAPS - 1] = from_bf16(projected[(size_t)(first + r) * PITCH + column]);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < TAPS; i++) sum = __fmaf_rn(held[i], by[i], sum);
        to[r * HALF_PITCH + channel] = to_bf16(__fdiv_rn(sum, 1.0f + __expf(-sum)));
    }
}

// Rows of bf16 to unit length times `factor`, fp16, in place; a warp a row.
__device__ __forceinline__ void unit_rows(u16* rows, float factor) {
    for (int r = threadIdx.x / 32; r < ROWS; r += 8) {
        float v[WIDTH / 32], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WIDTH / 32; i++) v[i] = from_bf16(rows[r * HALF_PITCH + i * 32 + (threadIdx.x & 31)]), sum = __fmaf_rn(v[i], v[i], sum);
        const float by = rsqrtf(warp_sum(sum) + 1e-6f) * factor;
#pragma unroll
        for (int i = 0; i < WIDTH / 32; i++) rows[r * HALF_PITCH + i * 32 + (threadIdx.x & 31)] = to_half(v[i] * by);
    }
}

// projected bf16 [rows][PITCH]: q, k, v before the convolution, low-rank inputs, beta; decay bf16 [rows][heads WIDTH] before its sigmoid; tail bf16
// [3][3 heads WIDTH] rows before the first; taps fp32 [4][3 heads WIDTH], rate fp32 [heads], offset fp32 [heads][WIDTH]. Grid: chunks by heads.
extern "C" __global__ void __launch_bounds__(256, 1 + (BLOCKS > 1))
    prepare(const u16* __restrict__ projected, const u16* __restrict__ decay, const u16* __restrict__ tail, const float* __restrict__ taps,
            const float* __restrict__ rate, const float* __restrict__ offset, unsigned char* __restrict__ chunks, int count, int heads, float bound) {
    extern __shared__ __align__(128) unsigned char memory[];
    u16* const k = reinterpret_cast<u16*>(memory);
    u16* const q = k + ROWS * HALF_PITCH;  // then v
    float* const total = reinterpret_cast<float*>(q + ROWS * HALF_PITCH);
    float* const matrix = total + ROWS * FULL_PITCH;  // A, then T
    __shared__ float beta[ROWS], part[256];
    await_inputs();
    const int head = blockIdx.x % heads, first = blockIdx.x / heads * ROWS, warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const Chunk out(chunks, blockIdx.x);
    convolve(q, projected, tail, taps, 0, heads, head, first);
    convolve(k, projected, tail, taps, 1, heads, head, first);
    if (threadIdx.x < ROWS) {
        const int row = first + threadIdx.x;
        beta[threadIdx.x] = row < count ? as_bf16(sigmoid(from_bf16(projected[(size_t)row * PITCH + 3 * heads * WIDTH + 2 * WIDTH + head]))) : 0.0f;
    }
    const int channel = threadIdx.x % WIDTH, begin = threadIdx.x / WIDTH * OWN_ROWS;
    {
        const float by = rate[head], plus = offset[head * WIDTH + channel];
        float sum = 0.0f;
        for (int r = begin; r < begin + OWN_ROWS; r++) {
            const float in = from_bf16(decay[(size_t)(first + r) * heads * WIDTH + head * WIDTH + channel]);
            if (first + r < count) sum = __fadd_rn(sum, bound * __fdiv_rn(1.0f, 1.0f + __expf(-by * (in + plus))));
            total[r * FULL_PITCH + channel] = sum;
        }
        part[threadIdx.x] = sum;
    }
    __syncthreads();
    float before = 0.0f;
    for (int other = 0; other < (int)threadIdx.x / WIDTH; other++) before = __fadd_rn(before, part[other * WIDTH + channel]);
    for (int r = begin; r < begin + OWN_ROWS; r++) total[r * FULL_PITCH + channel] = __fadd_rn(total[r * FULL_PITCH + channel], before);
    unit_rows(q, rsqrtf((float)WIDTH));
    unit_rows(k, 1.0f);
    for (int i = threadIdx.x; i < ROWS * MATRIX_PITCH; i += 256) matrix[i] = 0.0f;
    __syncthreads();
    // Blocks of 16 rows by 8 columns up to the diagonal, factored round the block's middle row so that no factor leaves fp32.
    for (int task = warp; task < 20; task += 8) {
        const int block = task < 2 ? 0 : task < 6 ? 1 : task < 12 ? 2 : 3, tile = task - block * (block + 1);
        const int row = block * BLOCK + g, other = tile * 8 + g;
        float of_k[4] = {}, of_q[4] = {};
#pragma unroll 4
        for (int c = t; c < WIDTH; c += 8) {
            u32 a[4], b[4], right[2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = row + (i & 1) * 8, at_c = c + (i & 2) * 2;
                const float rise = __expf(total[at * FULL_PITCH + at_c] - total[(block * BLOCK + 7) * FULL_PITCH + at_c]);
                a[i] = tf32(half_to_float(k[at * HALF_PITCH + at_c]) * rise), b[i] = tf32(half_to_float(q[at * HALF_PITCH + at_c]) * rise);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at_c = c + 4 * i;
                const float fall = __expf(fminf(total[(block * BLOCK + 7) * FULL_PITCH + at_c] - total[other * FULL_PITCH + at_c], 45.0f));
                right[i] = tf32(half_to_float(k[other * HALF_PITCH + at_c]) * fall);
            }
            multiply(of_k, a, right[0], right[1]);
            multiply(of_q, b, right[0], right[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = row + (i & 2) * 4, column = tile * 8 + 2 * t + (i & 1);
            if (column < at) matrix[at * MATRIX_PITCH + column] = of_k[i] * beta[at];
            if (column > at) of_q[i] = 0.0f;
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            *reinterpret_cast<u32*>(out.p + (row + 8 * half) * ROWS + tile * 8 + 2 * t) = two_halves(of_q[2 * half], of_q[2 * half + 1]);
    }
    // What `scan` multiplies with the state, and adds to it.
    const float* const last = total + (ROWS - 1) * FULL_PITCH;
    for (int i = threadIdx.x; i < ROWS * WIDTH / 2; i += 256) {
        const int r = i / (WIDTH / 2), c = i % (WIDTH / 2) * 2;
        const float2 sums = *reinterpret_cast<const float2*>(total + r * FULL_PITCH + c);
        const u32 both = *reinterpret_cast<const u32*>(q + r * HALF_PITCH + c);
        *reinterpret_cast<u32*>(out.q + r * WIDTH + c) = two_halves(half_to_float((u16)both) * __expf(sums.x), half_to_float((u16)(both >> 16)) * __expf(sums.y));
        const int row = i % (ROWS / 2) * 2, own = i / (ROWS / 2);
        float fade[2];
#pragma unroll
        for (int j = 0; j < 2; j++) fade[j] = half_to_float(k[(row + j) * HALF_PITCH + own]) * __expf(last[own] - total[(row + j) * FULL_PITCH + own]);
        *reinterpret_cast<u32*>(out.k + own * ROWS + row) = two_halves(fade[0], fade[1]);
    }
    if (threadIdx.x < WIDTH) out.fade[threadIdx.x] = __expf(last[threadIdx.x]);
    __syncthreads();
    convolve(q, projected, tail, taps, 2, heads, head, first);
    // (I + A)^-1 in place: blocks on the diagonal, then each row of blocks from those above.
    float x[BLOCK];
    const int own = threadIdx.x / BLOCK * BLOCK, j = threadIdx.x % BLOCK;
    if (threadIdx.x < ROWS) {
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            float sum = i == j ? 1.0f : 0.0f;
#pragma unroll
            for (int m = 0; m < i; m++) sum = __fmaf_rn(-matrix[(own + i) * MATRIX_PITCH + own + m], x[m], sum);
            x[i] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < ROWS)
#pragma unroll
        for (int i = 0; i < BLOCK; i++) matrix[(own + i) * MATRIX_PITCH + own + j] = x[i];
    const int r = threadIdx.x / BLOCK;
    for (int block = 1; block < ROWS / BLOCK; block++) {
        float sum[3] = {};
        __syncthreads();
        float* const base = matrix + (block * BLOCK + r) * MATRIX_PITCH;
#pragma unroll
        for (int a = 0; a < 3; a++)
            for (int m = a * BLOCK; a < block && m < block * BLOCK; m++) sum[a] = __fmaf_rn(base[m], matrix[m * MATRIX_PITCH + a * BLOCK + j], sum[a]);
        __syncthreads();
#pragma unroll
        for (int a = 0; a < 3; a++)
            if (a < block) base[a * BLOCK + j] = sum[a];
        __syncthreads();
#pragma unroll
        for (int a = 0; a < 3; a++) {
            sum[a] = 0.0f;
            for (int m = 0; a < block && m <= r; m++) sum[a] = __fmaf_rn(-base[block * BLOCK + m], matrix[(block * BLOCK + m) * MATRIX_PITCH + a * BLOCK + j], sum[a]);
        }
        __syncthreads();
#pragma unroll
        for (int a = 0; a < 3; a++)
            if (a < block) base[a * BLOCK + j] = sum[a];
    }
    __syncthreads();
    // U by even warps, W by odd ones: 16 rows and all columns each.
    const int tile = warp / 2, side = warp & 1;
    float made[WIDTH / 8][4] = {};
    for (int m = 0; m < (tile + 1) * BLOCK; m += 8) {
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = m + t + (i & 2) * 2;
            a[i] = tf32(matrix[(tile * BLOCK + g + (i & 1) * 8) * MATRIX_PITCH + column] * beta[column]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            u32 b[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = m + t + 4 * i, c = n * 8 + g;
                b[i] = side ? tf32(half_to_float(k[row * HALF_PITCH + c]) * __expf(total[row * FULL_PITCH + c])) : (u32)q[row * HALF_PITCH + c] << 16;
            }
            multiply(made[n], a, b[0], b[1]);
        }
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (tile * BLOCK + g + 8 * half) * WIDTH + n * 8 + 2 * t;
            if (side)
                *reinterpret_cast<u32*>(out.w + at) = two_halves(made[n][2 * half], made[n][2 * half + 1]);
            else
                *reinterpret_cast<float2*>(out.u + at) = make_float2(made[n][2 * half], made[n][2 * half + 1]);
        }
}

constexpr int COLUMNS = 32;
constexpr int SPLITS = WIDTH / COLUMNS;
constexpr int WIDE = WIDTH + 16;
constexpr int NARROW = ROWS + 16;
constexpr int VALUE_PITCH = COLUMNS + 2;
constexpr int TILES = WIDTH / 16;

template <int LENGTH, int TO>
__device__ __forceinline__ void fetch(u16* to, const u16* from, int rows) {
    for (int i = threadIdx.x; i < rows * (LENGTH / 8); i += 256)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to + i / (LENGTH / 8) * TO + i % (LENGTH / 8) * 8)), "l"(from + i * 8) : "memory");
}
__device__ __forceinline__ void close_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void await_fetch() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// Two products' A registers of 16 rows by 16 of fp16: lane t has four neighbours of rows g and g + 8.
__device__ __forceinline__ void pieces(u32 (*a)[4], const u16* rows, int pitch, int column) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint2 v = *reinterpret_cast<const uint2*>(rows + (g + 8 * half) * pitch + column + 4 * t);
        a[0][half] = __float_as_uint(half_to_float((u16)v.x)), a[0][2 + half] = __float_as_uint(half_to_float((u16)(v.x >> 16)));
        a[1][half] = __float_as_uint(half_to_float((u16)v.y)), a[1][2 + half] = __float_as_uint(half_to_float((u16)(v.y >> 16)));
    }
}

// state fp32 [heads][WIDTH][WIDTH], in place; out fp32 [rows][heads][WIDTH]. Grid: heads by ranges of 32 value channels.
extern "C" __global__ void __launch_bounds__(256)
    scan(unsigned char* __restrict__ chunks, float* __restrict__ state, float* __restrict__ out, int many, int heads) {
    extern __shared__ __align__(128) unsigned char memory[];
    u16* const w = reinterpret_cast<u16*>(memory);
    u16* const q = w + ROWS * WIDE;
    u16* const k = q + ROWS * WIDE;
    u16* const p = k + WIDTH * NARROW;
    u32* const held = reinterpret_cast<u32*>(p + ROWS * NARROW);
    u32* const value = held + WIDTH * VALUE_PITCH;
    await_inputs();
    const int head = blockIdx.x / SPLITS, from = blockIdx.x % SPLITS * COLUMNS, warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int tile = warp / 2, columns = warp % 2 * 16;
    float* const own_state = state + (size_t)head * WIDTH * WIDTH + from;
    float sums[4][4];
    const int key = warp * 16 + g;
    if (warp < TILES) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = key + (i & 2) * 4, column = n * 8 + 2 * t + (i & 1);
                sums[n][i] = own_state[(size_t)row * WIDTH + column];
                held[row * VALUE_PITCH + column] = tf32(sums[n][i]);
            }
    }
    {
        const Chunk first(chunks, head);
        fetch<WIDTH, WIDE>(w, first.w, ROWS), fetch<WIDTH, WIDE>(q, first.q, ROWS), close_fetch();
        fetch<ROWS, NARROW>(k, first.k, WIDTH), fetch<ROWS, NARROW>(p, first.p, ROWS), close_fetch();
    }
    for (int chunk = 0; chunk < many; chunk++) {
        const Chunk now(chunks, (size_t)chunk * heads + head), then(chunks, (size_t)min(chunk + 1, many - 1) * heads + head);
        float2 u[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                u[n][half] = *reinterpret_cast<const float2*>(now.u + (tile * 16 + g + 8 * half) * WIDTH + from + columns + n * 8 + 2 * t);
        const float fade[2] = {warp < TILES ? now.fade[key] : 0.0f, warp < TILES ? now.fade[key + 8] : 0.0f};
        await_fetch();
        __syncthreads();
        float less[2][4] = {}, made[2][4] = {};
#pragma unroll 2
        for (int c = 0; c < WIDTH; c += 16) {
            u32 a[2][4], b[2][4];
            pieces(a, w + tile * 16 * WIDE, WIDE, c);
            pieces(b, q + tile * 16 * WIDE, WIDE, c);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32* const m = held + (c + 4 * t) * VALUE_PITCH + columns + n * 8 + g;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    multiply(less[n], a[i], m[2 * i * VALUE_PITCH], m[(2 * i + 1) * VALUE_PITCH]);
                    multiply(made[n], b[i], m[2 * i * VALUE_PITCH], m[(2 * i + 1) * VALUE_PITCH]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32* const to = value + (tile * 16 + g + 8 * half) * VALUE_PITCH + columns + n * 8 + 2 * t;
                to[0] = tf32(u[n][half].x - less[n][2 * half]), to[1] = tf32(u[n][half].y - less[n][2 * half + 1]);
            }
        __syncthreads();
        fetch<WIDTH, WIDE>(w, then.w, ROWS), fetch<WIDTH, WIDE>(q, then.q, ROWS), close_fetch();
        await_fetch();
        __syncthreads();
        for (int m = 0; m < (tile + 1) * 16; m += 16) {
            u32 a[2][4];
            pieces(a, p + tile * 16 * NARROW, NARROW, m);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32* const v = value + (m + 4 * t) * VALUE_PITCH + columns + n * 8 + g;
#pragma unroll
                for (int i = 0; i < 2; i++) multiply(made[n], a[i], v[2 * i * VALUE_PITCH], v[(2 * i + 1) * VALUE_PITCH]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const size_t row = (size_t)chunk * ROWS + tile * 16 + g + 8 * half;
                *reinterpret_cast<float2*>(out + (row * heads + head) * WIDTH + from + columns + n * 8 + 2 * t) = make_float2(made[n][2 * half], made[n][2 * half + 1]);
            }
        if (warp < TILES) {
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[n][i] *= fade[i / 2];
#pragma unroll
            for (int m = 0; m < ROWS; m += 16) {
                u32 a[2][4];
                pieces(a, k + warp * 16 * NARROW, NARROW, m);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const u32* const v = value + (m + 4 * t) * VALUE_PITCH + n * 8 + g;
#pragma unroll
                    for (int i = 0; i < 2; i++) multiply(sums[n], a[i], v[2 * i * VALUE_PITCH], v[(2 * i + 1) * VALUE_PITCH]);
                }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) held[(key + (i & 2) * 4) * VALUE_PITCH + n * 8 + 2 * t + (i & 1)] = tf32(sums[n][i]);
        }
        __syncthreads();
        fetch<ROWS, NARROW>(k, then.k, WIDTH), fetch<ROWS, NARROW>(p, then.p, ROWS), close_fetch();
    }
    if (warp < TILES) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) own_state[(size_t)(key + (i & 2) * 4) * WIDTH + n * 8 + 2 * t + (i & 1)] = sums[n][i];
    }
}
