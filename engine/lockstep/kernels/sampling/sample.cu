// The next token of each row, and what is told of it. A row is a cluster of CTAS blocks, each with CHUNK ids in a row of the vocabulary; no row
// sees another. Candidates are ordered by (value descending, id ascending). Each cut keeps those before which less than some mass lies: a
// number of candidates (top-k), or units of probability (top-p, see `ref.py`). Masses are whole numbers, so the order in which they are added
// does not matter. A cut is found by its distance from the peak in BINS steps, a few times the usual distance; what lies in the bin of the cut is compared one by one, or,
// if it is too much, bit by bit.

#include "device.cuh"

constexpr int CTAS = 8;
constexpr int CHUNK = (VOCABULARY + CTAS * 32 - 1) / (CTAS * 32) * 32;
constexpr int WORDS = CHUNK / 32;
constexpr int BINS = 2048, OWN = BINS / CTAS;
constexpr int LIST = 1024, PLACES = (LIST + THREADS - 1) / THREADS;
constexpr int WARPS = THREADS / 32;
constexpr double LOG2E = 1.4426950408889634, UNIT = 35184372088832.0, MOST_RATE = 1e300, MOST_BITS = 63.0;
constexpr double C1 = 0.6931471805599453, C2 = 0.2402265069591007, C3 = 0.055504108664821576, C4 = 0.009618129107628477;
constexpr double LARGEST_U = 0.9999999999999999;
// No noise is larger, so nothing this far below the peak, whose own noise is above -3.7, can win.
constexpr float REACH = 41.0f;
#define INFINITY __uint_as_float(0x7F800000u)
constexpr u64 ALL = 0xFFFFFFFFFFFFFFFFull;

// Fields of a row's settings, 8 bytes each.
enum { ACTIVE, MASKED, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED, POSITION, REPETITION, FREQUENCY, PRESENCE, HISTORY, AHEAD, BIASES, BANS, TOLD, FIELDS };

struct Best {
    u64 key;
    u32 id;
};

struct Row {
    const u64* set;
    const char* logits;
    const u32* history;
    const int* ids;
    const double* values;
    double* weighed;
    u32 base;
    __device__ __forceinline__ double number(int field) const { return __longlong_as_double((long long)set[field]); }
    __device__ __forceinline__ int whole(int field) const { return (int)set[field]; }
};

struct Shared {
    Row row;
    // What all threads need, here so that no register is: the largest value, halvings a logit, the last candidate kept, and what a draw takes.
    const double* table;
    double peak, rate, temperature, min_p;
    u64 seed, kept_key;
    float peak32, bins_a_logit, pace, slack;
    u32 kept_id;
    u64 bins[BINS];
    u64 list_keys[LIST];
    u32 list_ids[LIST];
    u32 dead[WORDS], special[WORDS], listed[WORDS];
    Best warps[WARPS], parts[2][CTAS];
    u64 warp_sums[WARPS], sums[2][CTAS];
    u64 cut_before;
    u32 cut_bin, list_count, last;
};

__device__ __forceinline__ u32 cta_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same variable in the shared memory of another block of the cluster.
template <class T>
__device__ __forceinline__ T* at_rank(T* own, u32 rank) {
    u64 other;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"((u64)own), "r"(rank));
    return reinterpret_cast<T*>(other);
}

// Numbers whose order is that of the values; both zeros are one.
__device__ __forceinline__ u64 key_of(double value) {
    const u64 bits = (u64)__double_as_longlong(value);
    return bits << 1 == 0 ? 1ull << 63 : bits >> 63 ? ~bits : bits | 1ull << 63;
}
// The same of an fp32 value, by whole numbers where that is possible: double precision is slow on many cards.
__device__ __forceinline__ u64 key_of(float x) {
    const u32 bits = __float_as_uint(x), exponent = bits >> 23 & 255;
    if (exponent == 0 || exponent == 255) return key_of((double)x);
    const u64 wide = (u64)(exponent + 896) << 52 | (u64)(bits & 0x7FFFFF) << 29;
    return bits >> 31 ? ~(wide | 1ull << 63) : wide | 1ull << 63;
}
__device__ __forceinline__ double value_of(u64 key) { return __longlong_as_double((long long)(key >> 63 ? key & ~(1ull << 63) : ~key)); }
__device__ __forceinline__ bool is_before(u64 key, u32 id, u64 other, u32 other_id) { return key > other || (key == other && id < other_id); }

__device__ __forceinline__ u64 mixed(u64 x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}
__device__ __noinline__ double noise(u64 bits) {
    const double u = fmin(__dadd_rn(__dmul_rn((double)(bits >> 11), 0x1p-53), 0x1p-54), LARGEST_U);
    return -log(-log(u));
}
// The same within 1e-4; draws so close to 1 that rounding shows are left to the exact form.
__device__ __forceinline__ float noise_near(u64 bits) {
    const u64 top = bits >> 11, rest = (1ull << 53) - 1 - top;
    if (rest < 1u << 20) return (float)noise(bits);
    const float exponent = top >> 52 ? -log1pf(-(float)rest * 0x1p-53f) : -logf(((float)top + 0.5f) * 0x1p-53f);
    return -logf(exponent);
}

// 2^-(distance * rate) as a number in (0.5, 1] and the halvings behind it; the same products and sums as in `ref.py`.
__device__ __forceinline__ double decayed(double distance, double rate, const double* __restrict__ table, int& halvings) {
    const double y = fmin(__dmul_rn(distance, rate), MOST_BITS);
    const int steps = (int)__dmul_rn(y, 256.0);
    const double rest = __dsub_rn(y, __dmul_rn((double)steps, 1.0 / 256));
    double p = __dsub_rn(__dmul_rn(C4, rest), C3);
    p = __dadd_rn(__dmul_rn(p, rest), C2);
    p = __dsub_rn(__dmul_rn(p, rest), C1);
    p = __dadd_rn(__dmul_rn(p, rest), 1.0);
    halvings = steps >> 8;
    return __dmul_rn(table[steps & 255], p);
}
__device__ __forceinline__ u64 units_of(double distance, double rate, const double* __restrict__ table) {
    int halvings;
    const double part = decayed(distance, rate, table, halvings);
    return (u64)__dmul_rn(part, UNIT) >> halvings;
}

// A value under penalties and biases, in the order of the plain form.
__device__ __noinline__ double adjusted(const Shared& s, u32 id, float x) {
    const Row& row = s.row;
    double v = x;
    const bool is_listed = s.listed[(id - row.base) >> 5] >> ((id - row.base) & 31) & 1;
    const int ahead = row.whole(AHEAD);
    if (row.history) {
        const u32 known = row.history[id];
        int count = known & 0x7FFFFFFF;
        if (is_listed)
            for (int i = 0; i < ahead; i++) count += row.ids[i] == (int)id;
        const double repetition = row.number(REPETITION);
        if ((known >> 31 || count) && repetition != 1.0) v = v > 0 ? __ddiv_rn(v, repetition) : __dmul_rn(v, repetition);
        v = __dsub_rn(v, __dadd_rn(__dmul_rn(row.number(FREQUENCY), (double)count), count ? row.number(PRESENCE) : 0.0));
    }
    if (is_listed)
        for (int i = ahead; i < ahead + row.whole(BIASES); i++)
            if (row.ids[i] == (int)id) v = __dadd_rn(v, row.values[i]);
    return v;
}

__device__ __forceinline__ bool is_kept(const Shared& s, u64 key, u32 id) { return !is_before(s.kept_key, s.kept_id, key, id); }
__device__ __forceinline__ u64 units_at(const Shared& s, u64 key) { return units_of(__dsub_rn(s.peak, value_of(key)), s.rate, s.table); }
__device__ __forceinline__ int bin_of(const Shared& s, float x) { return min((int)(fmaxf(s.peak32 - x, 0.0f) * s.bins_a_logit), BINS - 1); }

__device__ __forceinline__ float logit(const Row& row, u32 id) {
    return HALF ? from_bf16(reinterpret_cast<const u16*>(row.logits)[id]) : reinterpret_cast<const float*>(row.logits)[id];
}

// f(id, key of the value, value as fp32) for every id of this block that can be chosen; `raw`: for every id, the logits as they are.
template <class F>
__device__ __forceinline__ void each(const Shared& s, bool raw, F f) {
    const Row& row = s.row;
    const u32 base = row.base;
    const char* logits = row.logits;
    const double* weighed = row.weighed;
#pragma unroll 1
    for (u32 at = 4 * threadIdx.x; at < CHUNK && base + at < VOCABULARY; at += 4 * THREADS) {
        const u32 id = base + at;
        const u32 dead = raw ? 0u : s.dead[at >> 5] >> (at & 31) & 15, special = raw ? 0u : s.special[at >> 5] >> (at & 31) & 15;
        float x[4];
#if HALF
        const ushort4 in = reinterpret_cast<const ushort4*>(logits)[id / 4];
        x[0] = from_bf16(in.x), x[1] = from_bf16(in.y), x[2] = from_bf16(in.z), x[3] = from_bf16(in.w);
#else
        const float4 in = reinterpret_cast<const float4*>(logits)[id / 4];
        x[0] = in.x, x[1] = in.y, x[2] = in.z, x[3] = in.w;
#endif
        if (dead == 15) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (dead >> j & 1 || id + j >= VOCABULARY || x[j] == -INFINITY) continue;
            u64 key = key_of(x[j]);
            if (special >> j & 1) {
                const double v = weighed[id + j];
                key = key_of(v), x[j] = (float)v;
            }
            f(id + j, key, x[j]);
        }
    }
}

// The first of all threads of the cluster, the same in each. `turn` alternates between calls.
__device__ __noinline__ Best first_of(Shared& s, u64 own_key, u32 own_id, u32 rank, int turn) {
    Best own = {own_key, own_id};
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const Best other = {__shfl_xor_sync(~0u, own.key, distance), __shfl_xor_sync(~0u, own.id, distance)};
        if (is_before(other.key, other.id, own.key, own.id)) own = other;
    }
    if ((threadIdx.x & 31) == 0) s.warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < CTAS) {
        Best found = s.warps[0];
        for (int i = 1; i < WARPS; i++)
            if (is_before(s.warps[i].key, s.warps[i].id, found.key, found.id)) found = s.warps[i];
        *at_rank(&s.parts[turn][rank], threadIdx.x) = found;
    }
    cluster_sync();
    Best found = s.parts[turn][0];
    for (int i = 1; i < CTAS; i++)
        if (is_before(s.parts[turn][i].key, s.parts[turn][i].id, found.key, found.id)) found = s.parts[turn][i];
    return found;
}

// The sum of every thread's `own` over the threads before it in this block, and over all of them.
__device__ __forceinline__ u64 sums_before(Shared& s, u64 own, u64& total) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u64 sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(~0u, sum, distance);
        if (lane >= distance) sum += other;
    }
    if (lane == 31) s.warp_sums[warp] = sum;
    __syncthreads();
    u64 before = 0;
    total = 0;
    for (u32 i = 0; i < WARPS; i++) {
        if (i < warp) before += s.warp_sums[i];
        total += s.warp_sums[i];
    }
    __syncthreads();
    return before + sum - own;
}

// The sum over the cluster of what each block has, and the sum of the blocks before this one.
__device__ __forceinline__ u64 cluster_sums(Shared& s, u64 own, u32 rank, int turn, u64& before) {
    if (threadIdx.x < CTAS) *at_rank(&s.sums[turn][rank], threadIdx.x) = own;
    cluster_sync();
    u64 total = 0;
    before = 0;
    for (u32 i = 0; i < CTAS; i++) {
        if (i < rank) before += s.sums[turn][i];
        total += s.sums[turn][i];
    }
    return total;
}

// Adds to a sum in shared memory by 32-bit halves, which the hardware adds by itself: who makes the lower half overflow carries.
__device__ __forceinline__ void add(u64* sum, u64 own) {
    u32* halves = reinterpret_cast<u32*>(sum);
    const u32 low = (u32)own, old = atomicAdd(halves, low), high = (u32)(own >> 32) + (old + low < old);
    if (high) atomicAdd(halves + 1, high);
}

__device__ __forceinline__ u64 part_of(u64 total, double part) {
    const double limit = ceil(__dmul_rn(part, (double)total));
    return limit < 1.0 ? 1ull : (u64)limit;
}

// From the masses in this block's bins to `cut_bin` and `cut_before` of every block: the bin in which the mass behind `before` reaches the limit,
// which is returned; 0 if it is never reached. The limit is `known`, or such a part of all mass as top-p says.
__device__ __noinline__ u64 located(Shared& s, u32 rank, u64 before, bool weighs, u64 known) {
    cluster_sync();
    u64 own = 0, block, lower;
    if (threadIdx.x < OWN)
        for (u32 other = 0; other < CTAS; other++) own += at_rank(s.bins, other)[rank * OWN + threadIdx.x];
    const u64 inside = sums_before(s, own, block);
    const u64 total = cluster_sums(s, block, rank, 0, lower), limit = weighs ? part_of(total, s.row.number(TOP_P)) : known;
    const u64 begin = before + lower + inside;
    if (own && begin < limit && begin + own >= limit)
        for (u32 other = 0; other < CTAS; other++) *at_rank(&s.cut_bin, other) = rank * OWN + threadIdx.x, *at_rank(&s.cut_before, other) = begin;
    cluster_sync();
    return before + total >= limit ? limit : 0;
}

__device__ __forceinline__ void clear(Shared& s) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
    __syncthreads();
}

// Of the listed candidates, behind `before`, the last before which less than the limit lies becomes the last kept, for every block. The first block decides.
__device__ __forceinline__ void compare(Shared& s, u32 count, u64 before, u64 limit) {
    u32 place[PLACES];
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < PLACES; n++) {
        const u32 i = threadIdx.x + n * THREADS;
        place[n] = 0;
        if (i >= count) continue;
        u64 sum = before;
        u32 others = 1;
        for (u32 j = 0; j < count; j++)
            if (is_before(s.list_keys[j], s.list_ids[j], s.list_keys[i], s.list_ids[i])) sum += s.bins[j], others++;
        if (sum < limit) place[n] = others, atomicMax(&s.last, others);
    }
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < PLACES; n++) {
        const u32 i = threadIdx.x + n * THREADS;
        if (place[n] && place[n] == s.last)
            for (u32 other = 0; other < CTAS; other++) *at_rank(&s.kept_key, other) = s.list_keys[i], *at_rank(&s.kept_id, other) = s.list_ids[i];
    }
}

// Moves the last candidate kept up to the last before which less than `limit` candidates lie, or if it `weighs`, less than top-p's units.
__device__ __noinline__ void cut(Shared& s, bool raw, u32 rank, bool weighs, u64 limit) {
    const auto mass = [&](u64 key) { return weighs ? units_at(s, key) : 1ull; };
    if (threadIdx.x == 0) s.list_count = 0, s.last = 0;
    clear(s);
    each(s, raw, [&](u32 id, u64 key, float x) {
        if (!is_kept(s, key, id)) return;
        const u64 own = mass(key);
        if (own) add(s.bins + bin_of(s, x), own);
    });
    limit = located(s, rank, 0, weighs, limit);
    if (!limit) return;
    u64 before = s.cut_before;
    const int bin = s.cut_bin;
    each(s, raw, [&](u32 id, u64 key, float x) {
        if (bin_of(s, x) != bin || !is_kept(s, key, id)) return;
        const u32 at = atomicAdd(at_rank(&s.list_count, 0), 1u);
        if (at < LIST) at_rank(s.list_keys, 0)[at] = key, at_rank(s.list_ids, 0)[at] = id;
    });
    cluster_sync();
    const u32 count = *at_rank(&s.list_count, 0);
    if (count <= LIST) {
        if (rank == 0) {
            for (u32 i = threadIdx.x; i < count; i += THREADS) s.bins[i] = mass(s.list_keys[i]);
            compare(s, count, before, limit);
        }
        cluster_sync();
        return;
    }
    // exact: the bits of (value descending, id ascending) from the highest, until one candidate is left: 64 of the value, 22 of the id.
    u64 order = 0;
    u32 id_order = 0;
    for (int at = 86; at > 0;) {
        const int width = at > 22 ? min(11, at - 22) : 11, shift = at - width;
        clear(s);
        each(s, raw, [&](u32 id, u64 key, float x) {
            const u64 own = ~key;
            if (bin_of(s, x) != bin || !is_kept(s, key, id)) return;
            u32 digit;
            if (at > 22) {
                if (at < 86 && (own ^ order) >> (at - 22)) return;
                digit = (u32)(own >> (shift - 22)) & ((1u << width) - 1);
            } else {
                if (own != order || (id ^ id_order) >> at) return;
                digit = id >> shift & 2047;
            }
            add(s.bins + digit, mass(key));
        });
        located(s, rank, before, false, limit);
        if (at > 22) order |= (u64)s.cut_bin << (shift - 22);
        else id_order |= s.cut_bin << shift;
        before = s.cut_before, at = shift;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.kept_key = ~order, s.kept_id = id_order;
    __syncthreads();
}

// Which ids of this block cannot be chosen, and which values are not plain logits.
__device__ __forceinline__ void mark(Shared& s, const u32* mask) {
    const Row& row = s.row;
    for (int w = threadIdx.x; w < WORDS; w += THREADS) s.dead[w] = mask ? ~mask[row.base / 32 + w] : 0u, s.listed[w] = 0, s.special[w] = 0;
    __syncthreads();
    if (row.history)
        for (u32 i = threadIdx.x; i < CHUNK; i += THREADS) {
            const u32 found = __ballot_sync(~0u, row.base + i < VOCABULARY && row.history[row.base + i] != 0);
            if ((threadIdx.x & 31) == 0) s.special[i >> 5] = found;
        }
    __syncthreads();
    const int weighed = row.whole(AHEAD) + row.whole(BIASES), listed = weighed + row.whole(BANS);
    for (int i = threadIdx.x; i < listed; i += THREADS) {
        const u32 at = (u32)row.ids[i] - row.base;
        if (at >= CHUNK) continue;
        if (i < weighed) atomicOr(s.special + (at >> 5), 1u << (at & 31)), atomicOr(s.listed + (at >> 5), 1u << (at & 31));
        else atomicOr(s.dead + (at >> 5), 1u << (at & 31));
    }
    __syncthreads();
    if (weighed || row.history)
        for (u32 i = threadIdx.x; i < CHUNK; i += THREADS)
            if (s.special[i >> 5] >> (i & 31) & 1) row.weighed[row.base + i] = adjusted(s, row.base + i, logit(row, row.base + i));
    __syncthreads();
}

// The largest of score = (value - peak) / temperature + noise among the kept: by fp32 first, then those that are near the largest exactly.
__device__ __forceinline__ u32 drawn(Shared& s, u32 rank) {
    const auto near = [&](u32 id, u64 key, float x) {
        const float scaled = (x - s.peak32) * s.pace;
        if (scaled < -REACH - s.slack || !is_kept(s, key, id)) return -INFINITY;
        if (s.min_p > 0.0) {
            int halvings;
            const double part = decayed(__dsub_rn(s.peak, value_of(key)), s.rate, s.table, halvings);
            if (__dmul_rn(part, __longlong_as_double((long long)(1023 - halvings) << 52)) < s.min_p) return -INFINITY;
        }
        return scaled + noise_near(mixed(s.seed ^ id));
    };
    const auto score = [&](u32 id, u64 key) {
        return key_of(__dadd_rn(__ddiv_rn(__dsub_rn(value_of(key), s.peak), s.temperature), noise(mixed(s.seed ^ id))));
    };
    float most = -INFINITY, second = -INFINITY;
    Best first = {0, ~0u};
    each(s, false, [&](u32 id, u64 key, float x) {
        const float one = near(id, key, x);
        if (one > most) second = most, most = one, first = {key, id};
        else second = fmaxf(second, one);
    });
    const float least = (float)value_of(first_of(s, key_of(most), 0, rank, 1).key) - 2.0f * s.slack;
    Best best = {0, ~0u};
    if (second >= least)
        each(s, false, [&](u32 id, u64 key, float x) {
            if (near(id, key, x) < least) return;
            const u64 found = score(id, key);
            if (is_before(found, id, best.key, best.id)) best = {found, id};
        });
    else if (most >= least)
        best = {score(first.id, first.key), first.id};
    return first_of(s, best.key, best.id, rank, 0).id;
}

// Logarithms of the chosen token's probability and of the `top` likeliest ids, under the logits as they are.
__device__ __forceinline__ void tell(Shared& s, u32 rank, u32 token, int top, double* __restrict__ told) {
    Best own = {0, ~0u};
    each(s, true, [&](u32 id, u64 key, float) {
        if (is_before(key, id, own.key, own.id)) own = {key, id};
    });
    own = first_of(s, own.key, own.id, rank, 1);
    if (threadIdx.x == 0) s.peak = value_of(own.key), s.peak32 = (float)s.peak, s.rate = LOG2E, s.kept_key = 0, s.kept_id = ~0u;
    __syncthreads();
    u64 sum = 0, block, lower;
    each(s, true, [&](u32, u64 key, float) { sum += units_at(s, key); });
    sums_before(s, sum, block);
    const double whole = log(__dmul_rn((double)cluster_sums(s, block, rank, 1, lower), 1.0 / UNIT));
    if (rank == 0 && threadIdx.x == 0) told[2] = __dsub_rn(__dsub_rn((double)logit(s.row, token), s.peak), whole), told[3] = 0.0;
    if (!top) return;
    cut(s, true, rank, false, top);
    // The list is free: nobody reads it any more. Where nothing was cut there are no more than `top` candidates.
    if (threadIdx.x == 0) s.list_count = 0;
    cluster_sync();
    each(s, true, [&](u32 id, u64 key, float) {
        if (!is_kept(s, key, id)) return;
        const u32 at = atomicAdd(at_rank(&s.list_count, 0), 1u);
        at_rank(s.list_keys, 0)[at] = key, at_rank(s.list_ids, 0)[at] = id;
    });
    cluster_sync();
    if (rank == 0) {
        if (threadIdx.x == 0) told[3] = (double)s.list_count;
        for (u32 i = threadIdx.x; i < s.list_count; i += THREADS) {
            u32 place = 0;
            for (u32 j = 0; j < s.list_count; j++) place += is_before(s.list_keys[j], s.list_ids[j], s.list_keys[i], s.list_ids[i]);
            told[4 + 2 * place] = (double)s.list_ids[i];
            told[5 + 2 * place] = __dsub_rn(__dsub_rn(value_of(s.list_keys[i]), s.peak), whole);
        }
    }
}

// logits [rows][stride] (HALF: bf16, else fp32), settings [rows][FIELDS], ids and values [rows][LISTED] (drafts ahead, biases, bans), masks
// [rows][CTAS * WORDS] of 32 ids each, histories [slots][VOCABULARY] (times chosen, highest bit: seen in the prompt), table as in `ref.py`.
// tokens [rows]: the id, -1 where nothing can be chosen; told [rows][TOLD_FIELDS]: live ids, peak, logprob, count, pairs of id and logprob.
extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, BLOCKS)
    sample(const char* __restrict__ logits, const u64* __restrict__ settings, const int* __restrict__ ids, const double* __restrict__ values,
           const u32* __restrict__ masks, const u32* __restrict__ histories, const double* __restrict__ table, double* weighed,
           long long* __restrict__ tokens, double* __restrict__ all_told, int stride) {
    __shared__ Shared s;
    await_inputs();
    const u32 rank = cta_rank();
    const size_t index = blockIdx.x / CTAS;
    const Row& row = s.row;
    double* told = all_told + index * TOLD_FIELDS;
    if (!settings[index * FIELDS + ACTIVE]) return;
    if (threadIdx.x == 0) {
        Row own = {settings + index * FIELDS, logits + index * stride * (HALF ? 2 : 4), nullptr, ids + index * LISTED, values + index * LISTED,
                   weighed + index * VOCABULARY, rank * CHUNK};
        if (own.whole(HISTORY) >= 0) own.history = histories + (size_t)own.whole(HISTORY) * VOCABULARY;
        s.row = own;
    }
    __syncthreads();
    mark(s, row.set[MASKED] ? masks + index * (CTAS * WORDS) : nullptr);
    Best own = {0, ~0u};
    // Live ids in the upper half, the sum of their values in eighths, kept positive, in the lower.
    u64 live = 0, block, lower;
    each(s, false, [&](u32 id, u64 key, float x) {
        if (x != x) key = ALL;
        live += (1ull << 40) + (u32)(8.0f * fminf(fmaxf(x + 1024.0f, 0.0f), 2048.0f));
        if (is_before(key, id, own.key, own.id)) own = {key, id};
    });
    sums_before(s, live, block);
    const u64 sums = cluster_sums(s, block, rank, 1, lower), every = sums >> 40;
    const Best most = first_of(s, own.key, own.id, rank, 0);
    const double peak = every ? value_of(most.key) : -INFINITY;
    const bool is_sound = every && most.key != ALL && peak < INFINITY;
    u32 token = most.id;
    if (threadIdx.x == 0) {
        // The bins cover twice the usual distance from the peak.
        const float usual = (float)peak + 1024.0f - (float)(sums & ((1ull << 40) - 1)) / (8.0f * (float)every);
        const double temperature = row.number(TEMPERATURE);
        s.bins_a_logit = BINS / (2.2f * fmaxf(usual, 0.25f));
        s.table = table, s.peak = peak, s.peak32 = (float)peak, s.rate = fmin(__ddiv_rn(LOG2E, temperature), MOST_RATE);
        s.temperature = temperature, s.min_p = row.number(MIN_P), s.pace = fminf((float)(1.0 / temperature), 1e30f);
        s.slack = 2e-3f + fabsf(s.peak32) * 3e-7f * s.pace, s.seed = mixed(mixed(row.set[SEED]) ^ row.set[POSITION]);
        s.kept_key = 0, s.kept_id = ~0u;
    }
    __syncthreads();
    if (is_sound && s.temperature > 0.0) {
        if (row.set[TOP_K] && row.set[TOP_K] < every) cut(s, false, rank, false, row.set[TOP_K]);
        if (row.number(TOP_P) < 1.0) cut(s, false, rank, true, 0);
        token = drawn(s, rank);
    }
    if (rank == 0 && threadIdx.x == 0) {
        tokens[index] = is_sound ? (long long)token : -1;
        told[0] = (double)every, told[1] = most.key == ALL ? __longlong_as_double(0x7FF8000000000000ll) : peak;
    }
    if (is_sound && row.whole(TOLD) >= 0) tell(s, rank, token, row.whole(TOLD), told);
    // No block may end while another still reads its shared memory.
    cluster_sync();
}
