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

struct Shared {
    float parts[CHUNK][3][WIDTH], decay[CHUNK][WIDTH], gate[CHUNK][WIDTH], low[CHUNK][THREADS], made[CHUNK][WIDTH], share[CHUNK], taps[TAPS][ALL];
    u16 tail[TAPS - 1][ALL];
};

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
#pragma unroll 1
        for (int r = 0; r < count; r++) {
            const u16* row = projected + (size_t)(plan.offsets[first + r] + sequence) * PITCH;
            at.low[r][thread] = from_bf16(row[3 * CHANNELS + thread]);
            // exact: the sigmoid runs in bf16, as published.
            if (thread == 0) at.share[r] = as_bf16(sigmoid(from_bf16(row[3 * CHANNELS + THREADS + head])));
#pragma unroll 1
            for (int c = thread; c < ALL; c += THREADS) {
                float sum = 0.0f;
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++) {
                    const int source = first + r + tap - (TAPS - 1);
                    const u16 x = source < 0 ? at.tail[source + TAPS - 1][c] : projected[(size_t)(plan.offsets[source] + sequence) * PITCH + channel(head, c)];
                    sum = __fadd_rn(sum, __fmul_rn(from_bf16(x), at.taps[tap][c]));
                }
                at.parts[r][c / WIDTH][c % WIDTH] = as_bf16(__fdiv_rn(sum, 1.0f + expf(-sum)));
            }
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
            const float4* const in = reinterpret_cast<const float4*>(at.low[r] + thread / WIDTH * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++) {
                // Unpacked again for each row: the compiler would keep all of them in registers it has not got.
                asm volatile("" : "+r"(weights[i].x), "+r"(weights[i].y), "+r"(weights[i].z), "+r"(weights[i].w));
                const u32 w[4] = {weights[i].x, weights[i].y, weights[i].z, weights[i].w};
                const float4 a = in[2 * i], b = in[2 * i + 1];
                const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
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
    }
#pragma unroll
    for (int c = 0; c < OWN; c++) to[(size_t)(begin + c) * WIDTH + own] = held[c];
}

__device__ __forceinline__ void fetch(Shared& at, const u16* tail, const float* taps, int head) {
    for (int i = threadIdx.x; i < TAPS * ALL; i += THREADS) at.taps[i / ALL][i % ALL] = taps[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, i % ALL)];
    for (int i = threadIdx.x; i < (TAPS - 1) * ALL; i += THREADS) at.tail[i / ALL][i % ALL] = tail[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, i % ALL)];
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
    __syncthreads();
    for (int i = threadIdx.x; i < (TAPS - 1) * ALL; i += THREADS) {
        const int source = kept + i / ALL - (TAPS - 1), c = i % ALL;
        newest[(size_t)(i / ALL) * 3 * CHANNELS + channel(head, c)] =
            source < 0 ? at.tail[source + TAPS - 1][c] : own_rows[(size_t)(plan.offsets[source] + sequence) * PITCH + channel(head, c)];
    }
}
