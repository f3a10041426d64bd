// Kernels that each load one resource of a GPU. Compiled at run time by NVRTC, so no header is included.
//
// Every kernel repeats its work `rounds` times, so that a launch takes as long as required, and writes to `pace` how
// many cycles of its SM its first warp saw, and in how many ns: how fast the SM was. It does not show how long the
// launch took, for an SM may favour a warp, which then ends long before the others. Results are stored and factors are
// read from memory, so that no compiler can do the work beforehand or leave it out. Arrays are filled with ones.

#define STEPS 64        // of each chain in a round: what the loop itself costs is little beside them
#define TENSOR_STEPS 16 // the same, of matrix instructions
#define SHARED_LOADS 16 // of a thread in a round
#define COPY_LOADS 4    // of a thread under way before its first store
#define READ_LOADS 8    // of a thread under way
#define TILE 64         // rows and columns of a matrix that a block makes
#define DEPTH 16        // of the two tiles that are in shared memory
#define SIDE 16         // threads along a side of a block; each makes 4 x 4 elements

// Where a thread of a warp puts or takes a word of shared memory; a test computes the banks from these lines.
#define LEFT_PITCH (TILE + 4) // words: rows begin four banks apart
#define LEFT_ROW(thread, part) ((thread) % 8 + 8 * ((part) % 2))
#define LEFT_COLUMN(thread, part) ((thread) / 8 % 4 + 4 * ((thread) / 32 + 8 * ((part) / 2)))
#define RIGHT_ROW(thread, part) ((thread) / TILE + 4 * (part))
#define RIGHT_COLUMN(thread, part) ((thread) % TILE)
#define SHARED_WORD(thread, ways) ((thread) % 32 * (ways) * 4)
#define SHARED_STEP 32 // words from load to load: all banks once, so that conflicts stay as they are

struct Moment
{
    long long cycle, ns;
};

__device__ __forceinline__ Moment now()
{
    Moment found;
    found.cycle = clock64();
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(found.ns));
    return found;
}

__device__ __forceinline__ void tell_pace(Moment begin, long long *pace)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
    {
        const Moment end = now();
        pace[0] = end.cycle - begin.cycle;
        pace[1] = end.ns - begin.ns;
    }
}

// Block slots: threads that occupy an SM and use none of its units.
extern "C" __global__ void sleep(long long rounds, long long *pace)
{
    const Moment begin = now();
    for (long long round = 0; round < rounds; ++round)
        asm volatile("nanosleep.u32 1000;");
    tell_pace(begin, pace);
}

__device__ __forceinline__ float multiplied(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiplied(double a, double b) { return __dmul_rn(a, b); }

__device__ __forceinline__ unsigned turned(unsigned a, unsigned b) // a rotation and a logic operation
{
    asm volatile("shf.l.wrap.b32 %0, %0, %0, 7;" : "+r"(b));
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(b) : "r"(a));
    return b;
}

__device__ __forceinline__ float rooted(float, float b)
{
    asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(b));
    return b;
}

// CHAINS independent chains of STEPs: each has to wait for its own last result only. Factors of one are what chains of
// products need to stay finite; that they are ones is not known here.
template <typename T, T STEP(T, T), int CHAINS>
__device__ __forceinline__ void chained(const T *factors, T *results, long long rounds, long long *pace)
{
    T factor[CHAINS], chain[CHAINS];
    for (int k = 0; k < CHAINS; ++k)
        chain[k] = factor[k] = factors[k];
    const Moment begin = now();
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int k = 0; k < CHAINS; ++k)
                chain[k] = STEP(factor[k], chain[k]);
    }
    tell_pace(begin, pace);
    T sum = chain[0];
    for (int k = 1; k < CHAINS; ++k)
        sum += chain[k];
    results[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

#define CHAINED(name, type, step, chains)                                                                            \
    extern "C" __global__ void name(const type *factors, type *results, long long rounds, long long *pace)         \
    {                                                                                                                \
        chained<type, step, chains>(factors, results, rounds, pace);                                               \
    }

CHAINED(fmul_1, float, multiplied, 1)
CHAINED(fmul_2, float, multiplied, 2)
CHAINED(fmul_3, float, multiplied, 3)
CHAINED(fmul_4, float, multiplied, 4)
CHAINED(dmul_1, double, multiplied, 1)
CHAINED(dmul_2, double, multiplied, 2)
CHAINED(dmul_3, double, multiplied, 3)
CHAINED(dmul_4, double, multiplied, 4)
CHAINED(alu_1, unsigned, turned, 1)
CHAINED(alu_4, unsigned, turned, 4)
CHAINED(xu_1, float, rooted, 1)
CHAINED(xu_4, float, rooted, 4)

// sum += a b of 16 x 8 elements, in FP16 with sums in FP32: the widest form that every chip since Ampere has.
__device__ __forceinline__ void multiply_matrices(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif __CUDA_ARCH__ >= 750
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#else // Volta: sums in FP16
    unsigned *half = (unsigned *)sum;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%0,%1,%2,%3};"
                 : "+r"(half[0]), "+r"(half[1]), "+r"(half[2]), "+r"(half[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
#endif
}

template <int CHAINS>
__device__ __forceinline__ void tensor(const unsigned *factors, float *results, long long rounds, long long *pace)
{
    unsigned a[4], b[2];
    float sum[CHAINS][4] = {};
    for (int k = 0; k < 4; ++k)
        a[k] = factors[k];
    for (int k = 0; k < 2; ++k)
        b[k] = factors[k];
    const Moment begin = now();
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
#pragma unroll
        for (int step = 0; step < TENSOR_STEPS; ++step)
#pragma unroll
            for (int k = 0; k < CHAINS; ++k)
                multiply_matrices(sum[k], a, b);
    }
    tell_pace(begin, pace);
    float all = 0;
    for (int k = 0; k < CHAINS; ++k)
        for (int part = 0; part < 4; ++part)
            all += sum[k][part];
    results[(long long)blockIdx.x * blockDim.x + threadIdx.x] = all;
}

extern "C" __global__ void tensor_1(const unsigned *factors, float *results, long long rounds, long long *pace)
{
    tensor<1>(factors, results, rounds, pace);
}

extern "C" __global__ void tensor_4(const unsigned *factors, float *results, long long rounds, long long *pace)
{
    tensor<4>(factors, results, rounds, pace);
}

// Relaxed: the same instruction as of ld.global.cg, but the assembler keeps several of them in their order.
__device__ __forceinline__ uint4 loaded_past_l1(const uint4 *at)
{
    uint4 value;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

__device__ __forceinline__ unsigned loaded_past_l1(const unsigned *at)
{
    unsigned value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ __forceinline__ unsigned loaded_by_l1(const unsigned *at)
{
    unsigned value;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Latency of DRAM: the whole grid copies one array. Loads pass by L1, which would answer for small arrays. A thread has
// one load under way, because its store stands before the next one: blocks that copy alone do not fill the bandwidth.
extern "C" __global__ void copy_1(const unsigned *from, unsigned *to, long long floats, long long rounds,
                                  long long *pace)
{
    const Moment begin = now();
    const long long step = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 4
        for (long long i = first; i < floats; i += step)
        {
            const unsigned value = loaded_past_l1(from + i);
            asm volatile("st.global.u32 [%0], %1;" ::"l"(to + i), "r"(value) : "memory");
        }
    tell_pace(begin, pace);
}

// Bandwidth of DRAM: the same with COPY_LOADS loads of 16 bytes under way in each thread.
extern "C" __global__ void copy_4(const unsigned *from, unsigned *to, long long floats, long long rounds,
                                  long long *pace)
{
    const Moment begin = now();
    const long long step = (long long)gridDim.x * blockDim.x, vectors = floats / 4;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 *source = (const uint4 *)from;
    uint4 *target = (uint4 *)to;
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
        long long i = first;
#pragma unroll 1
        for (; i + (COPY_LOADS - 1) * step < vectors; i += COPY_LOADS * step)
        {
            uint4 value[COPY_LOADS];
#pragma unroll
            for (int k = 0; k < COPY_LOADS; ++k)
                value[k] = loaded_past_l1(source + i + k * step);
#pragma unroll
            for (int k = 0; k < COPY_LOADS; ++k)
                target[i + k * step] = value[k];
        }
#pragma unroll 1
        for (; i < vectors; i += step)
            target[i] = loaded_past_l1(source + i);
#pragma unroll 1
        for (long long rest = vectors * 4 + first; rest < floats; rest += step)
            to[rest] = loaded_past_l1(from + rest);
    }
    tell_pace(begin, pace);
}

// Bandwidth of L2: the whole grid reads one array again and again, READ_LOADS loads of 16 bytes under way in a thread:
// the majority of bits, which is not associative, begins with the last of them, so that none is used before it.
extern "C" __global__ void read_l2(const unsigned *from, unsigned *results, long long floats, long long rounds,
                                   long long *pace)
{
    const Moment begin = now();
    const long long step = (long long)gridDim.x * blockDim.x, vectors = floats / 4;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 *source = (const uint4 *)from;
    unsigned sum = 0;
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
        long long i = first;
#pragma unroll 1
        for (; i + (READ_LOADS - 1) * step < vectors; i += READ_LOADS * step)
        {
            uint4 value[READ_LOADS];
#pragma unroll
            for (int k = 0; k < READ_LOADS; ++k)
                value[k] = loaded_past_l1(source + i + k * step);
            asm volatile("xor.b32 %0, %0, %1;" : "+r"(sum) : "r"(value[READ_LOADS - 1].x));
#pragma unroll
            for (int k = 0; k < READ_LOADS; ++k)
            {
                asm volatile("lop3.b32 %0, %0, %1, %2, 0xE8;" : "+r"(sum) : "r"(value[k].x), "r"(value[k].y));
                asm volatile("lop3.b32 %0, %0, %1, %2, 0xE8;" : "+r"(sum) : "r"(value[k].z), "r"(value[k].w));
            }
        }
#pragma unroll 1
        for (; i < vectors; i += step)
        {
            const uint4 value = loaded_past_l1(source + i);
            sum ^= value.x ^ value.y ^ value.z ^ value.w;
        }
#pragma unroll 1
        for (long long rest = vectors * 4 + first; rest < floats; rest += step)
            sum ^= loaded_past_l1(from + rest);
    }
    tell_pace(begin, pace);
    results[first] = sum;
}

// What stays in L2: the whole grid reads one array again and again. The next address depends on what was loaded, whose
// lowest bit is 0 in a float of one: so a thread has one load under way, and waits as long as it takes.
extern "C" __global__ void sweep_l2(const unsigned *from, unsigned *results, long long floats, long long rounds,
                                    long long *pace)
{
    const Moment begin = now();
    const long long step = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = 0;
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 1
        for (long long i = first; i < floats;)
        {
            const unsigned value = loaded_past_l1(from + i);
            sum ^= value;
            i += step + (value & 1);
        }
    tell_pace(begin, pace);
    results[first] = sum;
}

// What stays in L1: every block reads the same array again and again, so that L2 has all of it, and every SM has a copy
// of its own. Blocks begin at different places, so that they do not all miss the same bytes at once.
extern "C" __global__ void sweep_l1(const unsigned *from, unsigned *results, long long floats, long long rounds,
                                    long long *pace)
{
    const Moment begin = now();
    const unsigned size = (unsigned)floats, loads = size / blockDim.x;
    unsigned sum = 0, i = threadIdx.x + blockIdx.x % loads * blockDim.x;
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 1
        for (unsigned load = 0; load < loads; ++load)
        {
            const unsigned value = loaded_by_l1(from + i);
            sum ^= value;
            i += blockDim.x + (value & 1);
            i = i >= size ? i - size : i;
        }
    tell_pace(begin, pace);
    results[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Bandwidth of shared memory: a warp reads 16 bytes a thread, WAYS of eight threads each from the same banks. `volatile`
// is for the assembler, which else reads an address once.
template <int WAYS>
__device__ __forceinline__ void read_shared(const unsigned *factors, unsigned *results, long long rounds,
                                            long long *pace)
{
    constexpr int WORDS = SHARED_WORD(31, WAYS) + 4 + (SHARED_LOADS - 1) * SHARED_STEP;
    __shared__ __align__(16) unsigned words[WORDS];
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x)
        words[i] = factors[i % 4];
    __syncthreads();
    unsigned at, sum = 0;
    asm volatile("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
                 : "=r"(at)
                 : "l"(words + SHARED_WORD(threadIdx.x, WAYS)));
    const Moment begin = now();
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
#pragma unroll
        for (int load = 0; load < SHARED_LOADS; ++load)
        {
            uint4 value;
            asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                         : "r"(at + load * SHARED_STEP * 4)
                         : "memory");
            sum ^= value.x ^ value.y ^ value.z ^ value.w;
        }
    }
    tell_pace(begin, pace);
    results[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void shared_1(const unsigned *factors, unsigned *results, long long rounds, long long *pace)
{
    read_shared<1>(factors, results, rounds, pace);
}

extern "C" __global__ void shared_8(const unsigned *factors, unsigned *results, long long rounds, long long *pace)
{
    read_shared<8>(factors, results, rounds, pace);
}

// c = rounds times a b, of square matrices, rows one after the other, of which there is a multiple of TILE.
extern "C" __global__ void __launch_bounds__(SIDE *SIDE)
    matmul(const float *a, const float *b, float *c, long long rows_of_each, long long rounds, long long *pace)
{
    __shared__ __align__(16) float left[DEPTH][LEFT_PITCH], right[DEPTH][TILE]; // `left` lies on its side: columns are rows
    const int side = (int)rows_of_each, thread = threadIdx.x, column = thread % SIDE, row = thread / SIDE;
    const int across = side / TILE; // blocks
    const float *rows = a + (long long)(blockIdx.x / across) * TILE * side;
    const float *columns = b + (blockIdx.x % across) * TILE;
    float sum[4][4] = {};
    const Moment begin = now();
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 1
        for (int depth = 0; depth < side; depth += DEPTH)
        {
#pragma unroll
            for (int part = 0; part < 4; ++part)
            {
                left[LEFT_ROW(thread, part)][LEFT_COLUMN(thread, part)] =
                    rows[LEFT_COLUMN(thread, part) * side + depth + LEFT_ROW(thread, part)];
                right[RIGHT_ROW(thread, part)][RIGHT_COLUMN(thread, part)] =
                    columns[(depth + RIGHT_ROW(thread, part)) * side + RIGHT_COLUMN(thread, part)];
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        sum[i][j] = __fmaf_rn(left[k][row * 4 + i], right[k][column * 4 + j], sum[i][j]);
            __syncthreads();
        }
    tell_pace(begin, pace);
    float *target = c + (long long)((blockIdx.x / across) * TILE + row * 4) * side + (blockIdx.x % across) * TILE + column * 4;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            target[(long long)i * side + j] = sum[i][j];
}
