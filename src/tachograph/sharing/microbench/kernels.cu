// Kernels that each load one resource of a GPU. Compiled at run time by NVRTC, so no header is included.
//
// Every kernel repeats its work `rounds` times, so that a launch takes as long as required, and writes to `pace` how
// many cycles of its SM its first warp saw, and in how many ns: how fast the SM was. It does not show how long the
// launch took, for an SM may favour a warp, which then ends long before the others. Results are stored and factors are
// read from memory, so that no compiler can do the work beforehand or leave it out.

#define MULTIPLICATIONS 64  // of each chain in a round: what the loop itself costs is little beside them
#define TILE 64             // rows and columns of a matrix that a block makes
#define DEPTH 16            // of the two tiles that are in shared memory
#define SIDE 16             // threads along a side of a block; each makes 4 x 4 elements

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

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

// CHAINS independent chains of multiplications: each has to wait for its own last product only. Factors of one are
// what the chains need to stay finite; that they are ones is not known here.
template <typename T, int CHAINS>
__device__ __forceinline__ void multiply(const T *factors, T *results, long long rounds, long long *pace)
{
    T factor[CHAINS], chain[CHAINS];
    for (int k = 0; k < CHAINS; ++k)
        chain[k] = factor[k] = factors[k];
    const Moment begin = now();
#pragma unroll 1
    for (long long round = 0; round < rounds; ++round)
    {
#pragma unroll
        for (int step = 0; step < MULTIPLICATIONS; ++step)
#pragma unroll
            for (int k = 0; k < CHAINS; ++k)
                chain[k] = times(factor[k], chain[k]);
    }
    tell_pace(begin, pace);
    T sum = chain[0];
    for (int k = 1; k < CHAINS; ++k)
        sum += chain[k];
    results[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

#define CHAINED(name, type, chains)                                                                                  \
    extern "C" __global__ void name(const type *factors, type *results, long long rounds, long long *pace)         \
    {                                                                                                                \
        multiply<type, chains>(factors, results, rounds, pace);                                                    \
    }

CHAINED(fmul_1, float, 1)
CHAINED(fmul_2, float, 2)
CHAINED(fmul_3, float, 3)
CHAINED(fmul_4, float, 4)
CHAINED(dmul_1, double, 1)
CHAINED(dmul_2, double, 2)
CHAINED(dmul_3, double, 3)
CHAINED(dmul_4, double, 4)

// Bandwidth and L2: the whole grid copies one array. Loads pass by L1, which would answer for small arrays; each is
// volatile, so that a thread has one under way.
extern "C" __global__ void copy(const float *from, float *to, long long floats, long long rounds, long long *pace)
{
    const Moment begin = now();
    const long long step = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 4
        for (long long i = first; i < floats; i += step)
        {
            float value;
            asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from + i) : "memory");
            to[i] = value;
        }
    tell_pace(begin, pace);
}

// L1: every block copies an array of its own, again and again; `stride` floats lie between two of them.
extern "C" __global__ void copy_own(const float *from, float *to, long long floats, long long stride, long long rounds,
                                    long long *pace)
{
    const Moment begin = now();
    const float *mine = from + blockIdx.x * stride;
    float *target = to + blockIdx.x * stride;
    for (long long round = 0; round < rounds; ++round)
#pragma unroll 4
        for (long long i = threadIdx.x; i < floats; i += blockDim.x)
        {
            float value;
            asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(value) : "l"(mine + i) : "memory");
            target[i] = value;
        }
    tell_pace(begin, pace);
}

// c = rounds times a b, of square matrices, rows one after the other, of which there is a multiple of TILE.
extern "C" __global__ void __launch_bounds__(SIDE *SIDE)
    matmul(const float *a, const float *b, float *c, long long rows_of_each, long long rounds, long long *pace)
{
    __shared__ __align__(16) float left[DEPTH][TILE], right[DEPTH][TILE]; // `left` lies on its side: columns are rows
    const int side = (int)rows_of_each, thread = threadIdx.x, column = thread % SIDE, row = thread / SIDE;
    const int across = side / TILE; // blocks
    const float *rows = a + (long long)((blockIdx.x / across) * TILE + thread / DEPTH) * side + thread % DEPTH;
    const float *columns = b + (long long)(thread / TILE) * side + (blockIdx.x % across) * TILE + thread % TILE;
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
                left[thread % DEPTH][thread / DEPTH + part * 16] = rows[depth + part * 16 * side];
                right[thread / TILE + part * 4][thread % TILE] = columns[(depth + part * 4) * side];
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
