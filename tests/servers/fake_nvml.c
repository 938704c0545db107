/* A libnvidia-ml.so.1 of two GPUs for tests. The file named by FAKE_NVML says, at each call:
   MILLIWATTS RETURN_CODE DELAY_MS. The second GPU draws twice as much. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    if (strcmp(uuid, "GPU-Second")) return 6;
    *device = (void *)(uintptr_t)2;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    int code = script(milliwatts);
    *milliwatts *= (unsigned)(uintptr_t)device;
    return code;
}

#ifndef OLD
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
