/* libnvidia-ml.so.1 without a GPU: answers what a text file says, which a test may change while a program watches.
 *
 * FAKE_NVML_STATE names the file: lines `KEY VALUE`, read again when it changes; the last line of a key counts. KEY is
 * `GPU.what` (`*` for all GPUs), VALUE a number or text, or `!CODE`: that return code. What is not there is not
 * supported. Keys without a GPU: `gpus` (how many), `driver` (a number: another one is a driver that was loaded anew,
 * so that nothing works until NVML is started again), `version`.
 * FAKE_NVML_LOG names a file to which start, end and what was never given back are appended.
 * Layouts are those of nvml.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int nvmlReturn_t;
typedef struct { int gpu, slice; } Device;
typedef Device *nvmlDevice_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, NOT_READY = 27 };
#define MOST 16
#define SLICES 8

static struct { char key[64], value[128]; } lines[4096];
static int count_of_lines;
static Device devices[MOST], slices[MOST][SLICES];
static int starts, samples_out, sets_out, driver_at_start;
static unsigned long long events_seen[MOST], listening[MOST];

static void reload(void)
{
    static struct timespec seen;
    static off_t size = -1;
    struct stat now;
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path || stat(path, &now) || (size == now.st_size && !memcmp(&seen, &now.st_mtim, sizeof seen)))
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    seen = now.st_mtim, size = now.st_size;
    char line[256];
    for (count_of_lines = 0; count_of_lines < 4096 && fgets(line, sizeof line, file);)
        if (sscanf(line, "%63s %127[^\n]", lines[count_of_lines].key, lines[count_of_lines].value) == 2)
            count_of_lines++;
    fclose(file);
}

static const char *find(const char *key)
{
    for (int at = count_of_lines - 1; at >= 0; at--)
        if (!strcmp(lines[at].key, key))
            return lines[at].value;
    return NULL;
}

/* The value of a GPU, of all GPUs, or NULL. */
static const char *of(int gpu, const char *what)
{
    char key[128];
    snprintf(key, sizeof key, "%d.%s", gpu, what);
    const char *found = find(key);
    if (!found) {
        snprintf(key, sizeof key, "*.%s", what);
        found = find(key);
    }
    return found;
}

static int code_of(const char *value) { return !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : OK; }

static nvmlReturn_t driver(void)
{
    reload();
    const char *value = find("driver");
    if (!starts)
        return UNINITIALIZED;
    if (value && *value == '!')
        return atoi(value + 1);
    return value && atoi(value) != driver_at_start ? UNINITIALIZED : OK;
}

/* Whether a GPU answers at all. */
static nvmlReturn_t alive(nvmlDevice_t device)
{
    nvmlReturn_t code = driver();
    const char *lost = code || !device ? NULL : of(device->gpu, "lost");
    return code ? code : !device ? INVALID : lost && *lost == '!' ? atoi(lost + 1) : OK;
}

static nvmlReturn_t text(nvmlDevice_t device, const char *what, const char **value)
{
    nvmlReturn_t code = alive(device);
    if (code)
        return code;
    char key[96];
    if (device->slice >= 0)
        snprintf(key, sizeof key, "slice%d.%s", device->slice, what), what = key;
    *value = of(device->gpu, what);
    return code_of(*value);
}

static nvmlReturn_t number(nvmlDevice_t device, const char *what, unsigned long long *value)
{
    const char *found;
    nvmlReturn_t code = text(device, what, &found);
    if (!code)
        *value = strtoull(found, NULL, 0);
    return code;
}

static nvmlReturn_t whole(nvmlDevice_t device, const char *what, unsigned *value)
{
    unsigned long long found = 0;
    nvmlReturn_t code = number(device, what, &found);
    if (!code)
        *value = (unsigned)found;
    return code;
}

static void tell(const char *what)
{
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s starts=%d samples=%d sets=%d\n", what, starts, samples_out, sets_out);
    fclose(file);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    reload();
    const char *value = find("driver");
    if (value && *value == '!')
        return atoi(value + 1);
    if (!starts)
        driver_at_start = value ? atoi(value) : 0;
    starts++;
    for (int gpu = 0; gpu < MOST; gpu++) {
        const char *said = of(gpu, "xid");
        events_seen[gpu] = said ? strtoull(said, NULL, 0) : 0; /* what was before is not told */
        listening[gpu] = 0;
        devices[gpu] = (Device){gpu, -1};
        for (int slice = 0; slice < SLICES; slice++)
            slices[gpu][slice] = (Device){gpu, slice};
    }
    tell("init");
    return OK;
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!starts)
        return UNINITIALIZED;
    starts--;
    tell("shutdown");
    return OK;
}

const char *nvmlErrorString(nvmlReturn_t code) { static char said[32]; snprintf(said, sizeof said, "code %d", code); return said; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned size)
{
    nvmlReturn_t code = driver();
    if (!code)
        snprintf(into, size, "%s", find("version") ? find("version") : "570.86.15");
    return code;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t code = driver();
    const char *value = find("gpus");
    if (!code)
        *count = value ? (unsigned)atoi(value) : 0;
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    nvmlReturn_t code = driver();
    const char *refused = of((int)index, "handle");
    if (code)
        return code;
    if (index >= MOST || (refused && *refused == '!'))
        return refused ? atoi(refused + 1) : INVALID;
    *device = &devices[index];
    return alive(*device);
}

static nvmlReturn_t copied(nvmlDevice_t device, const char *what, char *into, unsigned size)
{
    const char *value;
    nvmlReturn_t code = text(device, what, &value);
    if (!code)
        snprintf(into, size, "%s", value);
    return code;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *into, unsigned size) { return copied(d, "uuid", into, size); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *into, unsigned size) { return copied(d, "name", into, size); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, Pci *pci)
{
    memset(pci, 0, sizeof *pci);
    return copied(device, "pci", pci->bus_id, sizeof pci->bus_id);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int kind, unsigned *value)
{
    return kind == 1 ? whole(device, "slowdown", value) : NOT_SUPPORTED;
}

typedef struct { unsigned gpu, memory; } Rates;
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, Rates *rates)
{
    nvmlReturn_t code = whole(device, "util", &rates->gpu);
    return code ? code : whole(device, "memutil", &rates->memory);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, Memory2 *memory)
{
    if (memory->version != 0x02000028)
        return INVALID;
    memory->reserved = 0;
    number(device, "reserved", &memory->reserved);
    nvmlReturn_t code = number(device, "total", &memory->total);
    code = code ? code : number(device, "free", &memory->free);
    return code ? code : number(device, "used", &memory->used);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, Memory *memory)
{
    Memory2 told = {.version = 0x02000028};
    nvmlReturn_t code = nvmlDeviceGetMemoryInfo_v2(device, &told);
    *memory = (Memory){told.total, told.free, told.used + told.reserved};
    return code;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *value) { return whole(d, "minor", value); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *value) { return whole(d, "power", value); }
/* `meter` in mW: a counter of mJ that goes on with time, ten times a second. */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *value)
{
    unsigned long long meter;
    if (number(d, "meter", &meter) != OK)
        return number(d, "energy", value);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *value = meter * (unsigned long long)(now.tv_sec * 10 + now.tv_nsec / 100000000) / 10;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *value) { return sensor ? INVALID : whole(d, "temp", value); }
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t d, unsigned *value) { return whole(d, "replays", value); }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *value) { return number(d, "reasons", value); }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int kind, unsigned *value)
{
    return kind == 1 ? whole(d, "smclk", value) : kind == 2 ? whole(d, "memclk", value) : INVALID;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure)
{
    *pending = 0;
    nvmlReturn_t code = whole(d, "remapped.cor", correctable);
    code = code ? code : whole(d, "remapped.unc", uncorrectable);
    return code ? code : whole(d, "remapped.fail", failure);
}
/* kind 0: corrected; since 0: the start of the driver */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int kind, int since, unsigned long long *value)
{
    return since ? INVALID : number(d, kind ? "ecc.dbe" : "ecc.sbe", value);
}

typedef struct {
    unsigned id, scope;
    long long when, latency;
    int type;
    nvmlReturn_t code;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, Field *fields)
{
    nvmlReturn_t code = alive(device);
    for (int at = 0; !code && at < count; at++) {
        fields[at].type = 1;
        fields[at].value.ull = 0;
        fields[at].code = fields[at].id == 82 ? whole(device, "memtemp", &fields[at].value.u) : NOT_SUPPORTED;
    }
    return code;
}

/* MIG: `GPU.mig 1`, and for each place `GPU.slicePLACE.gi`, `.uuid`, `.total`, ... */
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    *now = *pending = 0;
    return whole(device, "mig", now);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    *count = SLICES;
    return alive(device);
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned place, nvmlDevice_t *slice)
{
    unsigned instance;
    nvmlReturn_t code = alive(device);
    if (code)
        return code;
    *slice = &slices[device->gpu][place % SLICES];
    return whole(*slice, "gi", &instance) ? NOT_FOUND : OK;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *instance) { return whole(device, "gi", instance); }

/* Processes: `GPU.processes PID:BYTES PID:na ...`, and likewise `GPU.mps`. */
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Running;
static nvmlReturn_t running(nvmlDevice_t device, const char *what, unsigned *count, Running *into)
{
    const char *value;
    nvmlReturn_t code = text(device, what, &value);
    if (code)
        return code;
    unsigned found = 0, room = into ? *count : 0;
    for (const char *at = value; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        unsigned pid = (unsigned)strtoul(at, NULL, 10);
        const char *used = strchr(at, ':');
        if (!pid || !used)
            continue;
        if (found < room)
            into[found] = (Running){pid, used[1] == 'n' ? ~0ULL : strtoull(used + 1, NULL, 10), ~0U, ~0U};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, Running *into) { return running(d, "processes", count, into); }
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, Running *into) { return running(d, "mps", count, into); }

/* XID errors: `GPU.xid NUMBER*1000+CODE`; a NUMBER that was not there before is an event. */
nvmlReturn_t nvmlEventSetCreate(void **set) { *set = &events_seen; sets_out++; return driver(); }
nvmlReturn_t nvmlEventSetFree(void *set) { (void)set; sets_out--; return driver(); }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long kinds, void *set)
{
    const char *value = device ? of(device->gpu, "events") : NULL;
    nvmlReturn_t code = alive(device);
    (void)set;
    if (!code && !(code = code_of(value)))
        listening[device->gpu] |= kinds;
    return code;
}
typedef struct { nvmlDevice_t device; unsigned long long kind, data; unsigned instance, compute; } Event;
nvmlReturn_t nvmlEventSetWait_v2(void *set, Event *event, unsigned wait_ms)
{
    nvmlReturn_t code = driver();
    (void)set, (void)wait_ms;
    for (int gpu = 0; !code && gpu < MOST; gpu++) {
        const char *value = of(gpu, "xid");
        unsigned long long said = value ? strtoull(value, NULL, 0) : 0;
        if (!(listening[gpu] & 8) || said == events_seen[gpu])
            continue;
        events_seen[gpu] = said;
        const char *instance = of(gpu, "xid.gi");
        *event = (Event){&devices[gpu], 8, said % 1000, instance ? (unsigned)atoi(instance) : ~0U, ~0U};
        return OK;
    }
    return code ? code : TIMEOUT;
}

/* GPM: `GPU.gpm 1` and `GPU.gpm.ID VALUE`; of a slice `GPU.giINSTANCE.gpm.ID`. Samples are moments. */
typedef struct { int gpu, instance, full; struct timespec when; } Sample;
typedef struct { unsigned id; nvmlReturn_t code; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;

nvmlReturn_t nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof **sample); samples_out++; return driver(); }
nvmlReturn_t nvmlGpmSampleFree(Sample *sample) { free(sample); samples_out--; return OK; }

static nvmlReturn_t sampled(nvmlDevice_t device, int instance, Sample *sample)
{
    nvmlReturn_t code = alive(device);
    if (code || (code = device->slice >= 0 ? INVALID : code_of(of(device->gpu, "gpm"))))
        return code;
    *sample = (Sample){device->gpu, instance, 1, {0, 0}};
    clock_gettime(CLOCK_MONOTONIC, &sample->when);
    return OK;
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, Sample *sample) { return sampled(device, -1, sample); }
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, Sample *sample) { return sampled(device, (int)instance, sample); }

nvmlReturn_t nvmlGpmMetricsGet(Metrics *asked)
{
    nvmlReturn_t code = driver();
    Sample *a = asked->first, *b = asked->second;
    if (code || asked->version != 1 || !a || !b || !a->full || !b->full || a->gpu != b->gpu || a->instance != b->instance)
        return code ? code : INVALID;
    double gap = (double)(b->when.tv_sec - a->when.tv_sec) + (double)(b->when.tv_nsec - a->when.tv_nsec) * 1e-9;
    if (gap < 0.1) /* NVML answers noise here */
        return NOT_READY;
    for (unsigned at = 0; at < asked->count; at++) {
        Metric *metric = &asked->metrics[at];
        char key[64];
        if (a->instance >= 0)
            snprintf(key, sizeof key, "gi%d.gpm.%u", a->instance, metric->id);
        else
            snprintf(key, sizeof key, "gpm.%u", metric->id);
        const char *value = of(a->gpu, key);
        metric->code = code_of(value);
        if (!metric->code)
            metric->value = strtod(value, NULL); /* knows nan and inf */
    }
    return OK;
}
