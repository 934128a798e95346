// Windows of the delta rule, row by row, for any number of sequences in one launch. A warp owns CHANNELS value channels of one head of one
// sequence and keeps its part of the state in registers from the first row of the window to the last, OWN key channels a lane.

constexpr int PARTS = WIDTH > 64 ? WIDTH / 64 : 1;
constexpr int CHANNELS = 32 / PARTS;
constexpr int OWN = WIDTH / PARTS;

// The lanes that share a value channel add what they have; both get the same bits.
__device__ __forceinline__ float join(const float* part) {
    float total = __fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3]));
#pragma unroll
    for (int distance = CHANNELS; distance < 32; distance *= 2) total = __fadd_rn(total, __shfl_xor_sync(~0u, total, distance));
    return total;
}

// state fp32 [N][heads][WIDTH][WIDTH]; base, scratch int64 [sequences]; q, k, v, log_decay fp32 [rows][heads][WIDTH], beta fp32 [rows][heads];
// offsets int32 [steps + 1]: step j has rows offsets[j] .. of sequences 0, 1, ..; out fp32 [rows][heads][WIDTH].
extern "C" __global__ void __launch_bounds__(32)
    step_window(float* __restrict__ state, const long long* __restrict__ base, const long long* __restrict__ scratch,
                const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ log_decay,
                const float* __restrict__ beta, const int* __restrict__ offsets, float* __restrict__ out, int heads, int steps) {
    __shared__ float key[WIDTH], query[WIDTH], decay[WIDTH];
    const int lane = threadIdx.x, slices = WIDTH / CHANNELS;
    const int head = blockIdx.x / slices % heads, sequence = blockIdx.x / slices / heads, own = blockIdx.x % slices * CHANNELS + lane % CHANNELS;
    const int begin = lane / CHANNELS * OWN;
    const size_t inside = (size_t)head * WIDTH * WIDTH + (size_t)begin * WIDTH + own, whole = (size_t)heads * WIDTH * WIDTH;
    float held[OWN];
    const float* const from = state + base[sequence] * whole + inside;
#pragma unroll
    for (int c = 0; c < OWN; c++) held[c] = from[(size_t)c * WIDTH];
    for (int step = 0; step < steps; step++) {
        const int first = offsets[step];
        if (sequence >= offsets[step + 1] - first) break;
        const size_t row = ((size_t)(first + sequence) * heads + head) * WIDTH;
        for (int c = lane; c < WIDTH; c += 32) key[c] = k[row + c], query[c] = q[row + c], decay[c] = expf(log_decay[row + c]);
        const float value = v[row + own], share = beta[(size_t)(first + sequence) * heads + head];
        __syncwarp();
        // exact: four running sums a lane over its key channels, joined in one order, whatever rides along.
        float near[4] = {}, sums[4] = {};
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            held[c] = __fmul_rn(held[c], decay[begin + c]);
            near[c & 3] = __fmaf_rn(held[c], key[begin + c], near[c & 3]);
        }
        const float error = __fmul_rn(__fsub_rn(value, join(near)), share);
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            held[c] = __fmaf_rn(key[begin + c], error, held[c]);
            sums[c & 3] = __fmaf_rn(held[c], query[begin + c], sums[c & 3]);
        }
        const float made = join(sums);
        if (begin == 0) out[row + own] = made;
        __syncwarp();
    }
    float* const to = state + scratch[sequence] * whole + inside;
#pragma unroll
    for (int c = 0; c < OWN; c++) to[(size_t)c * WIDTH] = held[c];
}
