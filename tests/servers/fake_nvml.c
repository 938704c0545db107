/* A libnvidia-ml.so.1 of two GPUs for tests. The file named by FAKE_NVML says, at each call:
   MILLIWATTS RETURN_CODE DELAY_MS. The second GPU draws twice as much. Beside that file, NAME.limit0
   holds a GPU's power limit in milliwatts, NAME.clock0 its locked clock in MHz; NAME.set the return
   code of setters, 1000 for those that succeed and change nothing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    unsigned field, scope;
    int64_t timestamp_us, latency_us;
    unsigned type, code;
    union { unsigned ui; uint64_t ull; double d; } value;
} FieldValue;

static int started;

static int script(unsigned *milliwatts) {
    unsigned code = 999, delay_ms = 0;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file) return 9; /* driver not loaded */
    if (fscanf(file, "%u %u %u", milliwatts, &code, &delay_ms) != 3) code = 999;
    fclose(file);
    usleep(1000 * delay_ms);
    return started ? (int)code : 1; /* uninitialised */
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; started++; return 0; }
int nvmlShutdown(void) { if (!started) return 1; started--; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-First") && strcmp(uuid, "GPU-Second")) return 6;
    *device = (void *)(uintptr_t)(strcmp(uuid, "GPU-First") ? 2 : 1);
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    int code = script(milliwatts);
    *milliwatts *= (unsigned)(uintptr_t)device;
    return code;
}

#ifndef OLD
typedef struct { unsigned long long at_us; union { unsigned ui; uint64_t ull; double d; } value; } Sample;

/* Every 20 ms a sample, the last 119 of them: 100 W above and below by turns of 100 ms. */
int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since_us, int *type,
                         unsigned *count, Sample *samples) {
    struct timespec now;
    unsigned milliwatts = 0, i, kept = 0;
    int code = script(&milliwatts);
    if (code) return code;
    if (kind) return 3; /* not supported */
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long newest = now.tv_sec * 50ULL + now.tv_nsec / 20000000;
    *type = 1;
    for (i = 119; i-- > 0;) {
        unsigned long long number = newest - i;
        if (number * 20000 <= since_us) continue;
        if (samples && kept < *count) {
            samples[kept].at_us = number * 20000;
            samples[kept].value.ui =
                (milliwatts + (number / 5 % 2 ? 100000 : -100000)) * (unsigned)(uintptr_t)device;
        }
        kept++;
    }
    *count = samples && kept > *count ? *count : kept;
    return kept ? 0 : 6; /* not found */
}

int nvmlDeviceGetFieldValues(void *device, int count, FieldValue *values) {
    for (int i = 0; i < count; i++) {
        unsigned milliwatts = 0;
        values[i].code = values[i].field == 186 ? (unsigned)script(&milliwatts) : 3;
        values[i].value.ui = milliwatts * (unsigned)(uintptr_t)device;
        values[i].timestamp_us = 1700000000500000 + (int64_t)(uintptr_t)device;
    }
    return 0;
}
#endif

/* --- limits: 100 to 350 W, 300 W by default; clocks 210 to 1980 MHz by 15 ------------------- */

static void beside(char path[4096], const char *what, void *device) {
    snprintf(path, 4096, "%s.%s", getenv("FAKE_NVML"), what);
    if (device) snprintf(path + strlen(path), 8, "%u", (unsigned)(uintptr_t)device - 1);
}

/* At once: a reader never sees half of it. */
static int replace(const char *what, void *device, unsigned value) {
    char path[4096], fresh[4096];
    FILE *file;
    beside(path, what, device);
    snprintf(fresh, sizeof fresh, "%s.fresh-%s-%p-%d", getenv("FAKE_NVML"), what, device, getpid());
    file = fopen(fresh, "w");
    if (!file) return 999;
    fprintf(file, "%u", value);
    fclose(file);
    return rename(fresh, path) ? 999 : 0;
}

static unsigned kept(const char *what, void *device, unsigned otherwise) {
    char path[4096];
    FILE *file;
    unsigned value = otherwise;
    beside(path, what, device);
    file = fopen(path, "r");
    if (file && fscanf(file, "%u", &value) != 1) value = otherwise;
    if (file) fclose(file);
    return value;
}

static int keep(const char *what, void *device, unsigned value) {
    unsigned milliwatts = 0;
    int code = script(&milliwatts), set = (int)kept("set", NULL, 0);
    if (code) return code;
    if (set == 1000) return 0;
    return set ? set : replace(what, device, value);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    (void)device;
    snprintf(name, length, "Fake GPU");
    return 0;
}

typedef struct { unsigned long long total, free, used; } Memory;

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    (void)device;
    memory->total = 40960ULL << 20;
    memory->used = 10240ULL << 20;
    memory->free = memory->total - memory->used;
    return 0;
}

/* The second one is a part of a GPU, which does not tell. */
int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    rates[0] = 83;
    rates[1] = 12;
    return (uintptr_t)device == 1 ? 0 : 3;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, (uintptr_t)device == 1 ? "GPU-First" : "GPU-Second");
    return 0;
}

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *limit) {
    unsigned milliwatts = 0;
    *limit = kept("limit", device, 300000);
    return script(&milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *limit) {
    return nvmlDeviceGetPowerManagementLimit(device, limit);
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *limit) {
    (void)device;
    *limit = 300000;
    return 0;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high) {
    unsigned milliwatts = 0;
    (void)device;
    *low = 100000;
    *high = 350000;
    return script(&milliwatts);
}

int nvmlDeviceSetPowerManagementLimit(void *device, unsigned limit) {
    if (limit < 100000 || limit > 350000) return 2;
    return keep("limit", device, limit);
}

int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *clocks) {
    unsigned room = *count;
    (void)device;
    *count = 1;
    if (!room || !clocks) return 7; /* insufficient size */
    clocks[0] = 2619;
    return 0;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory, unsigned *count,
                                         unsigned *clocks) {
    unsigned room = *count, i;
    (void)device;
    *count = 119;
    if (memory != 2619) return 6;
    if (room < 119 || !clocks) return 7;
    for (i = 0; i < 119; i++) clocks[i] = 1980 - 15 * i;
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *clock) {
    unsigned milliwatts = 0;
    *clock = type ? 2619 : kept("clock", device, 1980);
    return script(&milliwatts);
}

int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) {
    return low > high ? 2 : keep("clock", device, high);
}

int nvmlDeviceResetGpuLockedClocks(void *device) { return keep("clock", device, 1980); }
