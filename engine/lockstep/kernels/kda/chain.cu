// Kimi delta attention over windows of rows, from a layer's projections to its normed output, in one launch for all sequences: convolution,
// low-rank gates, unit lengths, the delta rule, the gated norm. A block owns one head of one sequence; its state stays in registers from the
// first row of the window to the last. WIDTH channels a head, HEADS heads, a row of projections is PITCH wide: q, k, v, two low-rank inputs, beta.

#include "device.cuh"

constexpr int TAPS = 4;
constexpr int THREADS = 2 * WIDTH;
constexpr int WARPS = THREADS / 32;
constexpr int CHUNK = 8;
constexpr int OWN = WIDTH / 2;
constexpr int CHANNELS = HEADS * WIDTH;
constexpr int ALL = 3 * WIDTH;
constexpr float UNIT_EPS = 1e-6f;

constexpr int ROW_PIECES = (ALL + THREADS) / 8;

// `rows`: of q, k and v the three before the chunk, then the chunk's.
struct Shared {
    float parts[CHUNK][3][WIDTH], decay[CHUNK][WIDTH], gate[CHUNK][WIDTH], made[CHUNK][WIDTH], share[CHUNK], taps[TAPS][ALL];
    __align__(16) u16 rows[TAPS - 1 + CHUNK][ALL], low[CHUNK][THREADS];
};

// Rows of projections need not be aligned to 16 bytes; their heads are to 8.
__device__ __forceinline__ void copy8(u16* to, const u16* from) {
    const uint2* const in = reinterpret_cast<const uint2*>(from);
    const uint2 low = in[0], high = in[1];
    *reinterpret_cast<uint4*>(to) = make_uint4(low.x, low.y, high.x, high.y);
}

// Where channel `c` of the head's q, k and v stands in a row.
__device__ __forceinline__ int channel(int head, int c) { return c / WIDTH * CHANNELS + head * WIDTH + c % WIDTH; }

// Rows 0 .. rows - 1 of a window, from state `from` to state `to`; outputs only where `out` is given.
__device__ __forceinline__ void run_window(Shared& at, const float* from, float* to, const u16* projected, const Plan& plan, const uint4* low_weights,
                                           const float* rate, const float* offset, const float* norm_weight, u16* out, float bound, float eps,
                                           int sequence, int head, int rows, bool waits) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread & 31;
    const int own = warp * 16 + (lane & 15), begin = (lane >> 4) * OWN;
    float held[OWN];
    uint4 weights[WIDTH / 8];
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) weights[i] = low_weights[((size_t)head * (WIDTH / 8) + i) * THREADS + thread];
#pragma unroll
    for (int c = 0; c < OWN; c++) held[c] = from[(size_t)(begin + c) * WIDTH + own];
    const float factor = rate[head], shift = offset[head * WIDTH + thread % WIDTH];
    if (waits) await_inputs();
    __syncthreads();
    for (int first = 0; first < rows; first += CHUNK) {
        const int count = rows - first < CHUNK ? rows - first : CHUNK;
        // Everything the chunk's rows bring along, in pieces of 8 values.
        for (int i = thread; i < count * ROW_PIECES; i += THREADS) {
            const int r = i / ROW_PIECES, c = i % ROW_PIECES * 8;
            const u16* const row = projected + (size_t)(plan.offsets[first + r] + sequence) * PITCH;
            if (c < ALL)
                copy8(&at.rows[TAPS - 1 + r][c], row + channel(head, c));
            else
                copy8(&at.low[r][c - ALL], row + 3 * CHANNELS + c - ALL);
        }
        // exact: the sigmoid runs in bf16, as published.
        if (thread < count) at.share[thread] = as_bf16(sigmoid(from_bf16(projected[(size_t)(plan.offsets[first + thread] + sequence) * PITCH + 3 * CHANNELS + THREADS + head])));
        __syncthreads();
        for (int i = thread; i < count * ALL; i += THREADS) {
            const int r = i / ALL, c = i % ALL;
            float sum = 0.0f;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) sum = __fadd_rn(sum, __fmul_rn(from_bf16(at.rows[r + tap][c]), at.taps[tap][c]));
            at.parts[r][c / WIDTH][c % WIDTH] = as_bf16(__fdiv_rn(sum, 1.0f + expf(-sum)));
        }
        __syncthreads();
#pragma unroll 1
        for (int task = warp; task < 2 * count; task += WARPS) {
            float* const row = at.parts[task / 2][task % 2];
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) sum = __fmaf_rn(row[lane + 32 * i], row[lane + 32 * i], sum);
            const float by = rsqrtf(warp_sum(sum) + UNIT_EPS) * (task % 2 ? 1.0f : rsqrtf((float)WIDTH));
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) row[lane + 32 * i] *= by;
        }
#pragma unroll 1
        for (int r = 0; r < count; r++) {
            // exact: four running sums over the inputs, joined in one order.
            float sums[4] = {};
            const uint4* const in = reinterpret_cast<const uint4*>(at.low[r] + thread / WIDTH * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++) {
                // Unpacked again for each row: the compiler would keep all of them in registers it has not got.
                asm volatile("" : "+r"(weights[i].x), "+r"(weights[i].y), "+r"(weights[i].z), "+r"(weights[i].w));
                const u32 w[4] = {weights[i].x, weights[i].y, weights[i].z, weights[i].w};
                const uint4 own_in = in[i];
                const u32 pairs[4] = {own_in.x, own_in.y, own_in.z, own_in.w};
                float x[8];
#pragma unroll
                for (int j = 0; j < 4; j++) x[2 * j] = __uint_as_float(pairs[j] << 16), x[2 * j + 1] = __uint_as_float(pairs[j] & 0xFFFF0000u);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sums[j] = __fmaf_rn(__uint_as_float(w[j] << 16), x[2 * j], sums[j]);
                    sums[j] = __fmaf_rn(__uint_as_float(w[j] & 0xFFFF0000u), x[2 * j + 1], sums[j]);
                }
            }
            const float total = as_bf16(__fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3])));
            if (thread < WIDTH)
                at.decay[r][thread] = expf(bound * sigmoid((total + shift) * factor));
            else
                at.gate[r][thread - WIDTH] = sigmoid(total);
        }
        __syncthreads();
#pragma unroll 1
        for (int r = 0; r < count; r++) {
            const float4* const query = reinterpret_cast<const float4*>(at.parts[r][0] + begin);
            const float4* const key = reinterpret_cast<const float4*>(at.parts[r][1] + begin);
            const float4* const decay = reinterpret_cast<const float4*>(at.decay[r] + begin);
            float near[4] = {}, sums[4] = {};
#pragma unroll
            for (int c = 0; c < OWN / 4; c++) {
                const float4 d = decay[c], k = key[c];
                const float ds[4] = {d.x, d.y, d.z, d.w}, ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    held[4 * c + j] = __fmul_rn(held[4 * c + j], ds[j]);
                    near[j] = __fmaf_rn(held[4 * c + j], ks[j], near[j]);
                }
            }
            float found = __fadd_rn(__fadd_rn(near[0], near[1]), __fadd_rn(near[2], near[3]));
            found = __fadd_rn(found, __shfl_xor_sync(~0u, found, 16));
            const float error = __fmul_rn(__fsub_rn(at.parts[r][2][own], found), at.share[r]);
#pragma unroll
            for (int c = 0; c < OWN / 4; c++) {
                const float4 q = query[c], k = key[c];
                const float qs[4] = {q.x, q.y, q.z, q.w}, ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    held[4 * c + j] = __fmaf_rn(ks[j], error, held[4 * c + j]);
                    sums[j] = __fmaf_rn(held[4 * c + j], qs[j], sums[j]);
                }
            }
            float made = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
            made = __fadd_rn(made, __shfl_xor_sync(~0u, made, 16));
            if (begin == 0) at.made[r][own] = made;
        }
        __syncthreads();
#pragma unroll 1
        for (int r = warp; out && r < count; r += WARPS) {
            float v[WIDTH / 32], sum = 0.0f;
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) v[i] = at.made[r][lane + 32 * i], sum = __fmaf_rn(v[i], v[i], sum);
            const float by = rsqrtf(__fmaf_rn(warp_sum(sum), 1.0f / WIDTH, eps));
            u16* const to_row = out + (size_t)(plan.offsets[first + r] + sequence) * CHANNELS + head * WIDTH;
#pragma unroll
            for (int i = 0; i < WIDTH / 32; i++) to_row[lane + 32 * i] = to_bf16(v[i] * by * norm_weight[lane + 32 * i] * at.gate[r][lane + 32 * i]);
        }
        __syncthreads();
        // The last rows of this chunk are those before the next.
        if (first + CHUNK < rows) {
            for (int i = thread; i < (TAPS - 1) * ALL; i += THREADS) at.rows[i / ALL][i % ALL] = at.rows[CHUNK + i / ALL][i % ALL];
            __syncthreads();
        }
    }
#pragma unroll
    for (int c = 0; c < OWN; c++) to[(size_t)(begin + c) * WIDTH + own] = held[c];
}

__device__ __forceinline__ void fetch(Shared& at, const u16* tail, const float* taps, int head) {
    for (int i = threadIdx.x; i < TAPS * ALL; i += THREADS) at.taps[i / ALL][i % ALL] = taps[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, i % ALL)];
    for (int i = threadIdx.x; i < (TAPS - 1) * ALL; i += THREADS) at.rows[i / ALL][i % ALL] = tail[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, i % ALL)];
}

// state fp32 [copies][HEADS][WIDTH][WIDTH], tail bf16 [slots][3][3 CHANNELS] and projected bf16 [rows][PITCH] of one layer; low_weights bf16
// [HEADS][WIDTH / 8][decay outputs, gate outputs][8 inputs], taps fp32 [4][3 CHANNELS], rate fp32 [HEADS], offset fp32 [CHANNELS], norm_weight
// fp32 [WIDTH], out bf16 [rows][CHANNELS]. Grid: sequences by heads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    window(float* state, const u16* __restrict__ tail, const u16* __restrict__ projected, const int* __restrict__ plan_at, const uint4* __restrict__ low_weights,
           const float* __restrict__ taps, const float* __restrict__ rate, const float* __restrict__ offset, const float* __restrict__ norm_weight,
           u16* __restrict__ out, int rows, int most, float bound, float eps) {
    __shared__ Shared at;
    const Plan plan(plan_at, rows, most);
    const int sequence = blockIdx.x / HEADS, head = blockIdx.x % HEADS;
    if (sequence >= plan.sequences) return;
    const size_t one = (size_t)WIDTH * WIDTH;
    fetch(at, tail + (size_t)plan.slots[sequence] * (TAPS - 1) * 3 * CHANNELS, taps, head);
    run_window(at, state + ((size_t)plan.bases[sequence] * HEADS + head) * one, state + ((size_t)plan.scratches[sequence] * HEADS + head) * one, projected,
               plan, low_weights, rate, offset, norm_weight, out, bound, eps, sequence, head, plan.rows_of(sequence), true);
}

// What stays of each window: its state again where rows are cut off, and the newest rows of the convolution. The same for all layers at once:
// `layers` int64 [layers][4] holds where each has its low_weights, taps, rate and offset; state, tail and projected lie layer behind layer.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    commit(float* state, u16* tail, const u16* __restrict__ projected, const int* __restrict__ plan_at, const u64* __restrict__ layers, int rows, int most,
           int copies, int slots, float bound) {
    __shared__ Shared at;
    const Plan plan(plan_at, rows, most);
    const int layer = blockIdx.x / HEADS / most, sequence = blockIdx.x / HEADS % most, head = blockIdx.x % HEADS;
    if (sequence >= plan.sequences || plan.keeps[sequence] == 0) return;
    const int kept = plan.keeps[sequence], slot = plan.slots[sequence];
    const u64* const own = layers + 4 * layer;
    u16* const newest = tail + ((size_t)layer * slots + slot) * (TAPS - 1) * 3 * CHANNELS;
    const u16* const own_rows = projected + (size_t)layer * rows * PITCH;
    fetch(at, newest, reinterpret_cast<const float*>(own[1]), head);
    // exact: the same routine over the same rows, so the state has the bits of `kept` serial steps.
    if (kept < plan.rows_of(sequence)) {
        float* const states = state + ((size_t)layer * copies * HEADS + head) * WIDTH * WIDTH;
        const size_t apart = (size_t)HEADS * WIDTH * WIDTH;
        run_window(at, states + plan.bases[sequence] * apart, states + plan.scratches[sequence] * apart, own_rows, plan,
                   reinterpret_cast<const uint4*>(own[0]), reinterpret_cast<const float*>(own[2]), reinterpret_cast<const float*>(own[3]), nullptr, nullptr,
                   bound, 0.0f, sequence, head, kept, false);
    }
    // What moves up is read by all before any of it is written.
    constexpr int EACH = ((TAPS - 1) * ALL + THREADS - 1) / THREADS;
    u16 moved[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = e * THREADS + threadIdx.x, source = kept + i / ALL - (TAPS - 1), c = i % ALL;
        if (i >= (TAPS - 1) * ALL) break;
        moved[e] = source < 0 ? newest[(size_t)(source + TAPS - 1) * 3 * CHANNELS + channel(head, c)]
                              : own_rows[(size_t)(plan.offsets[source] + sequence) * PITCH + channel(head, c)];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = e * THREADS + threadIdx.x;
        if (i < (TAPS - 1) * ALL) newest[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, i % ALL)] = moved[e];
    }
}
