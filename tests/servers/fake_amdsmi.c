/* Two GPUs of AMD for tests: caps of 200 to 750 W, counted in microwatts. In the folder FAKE_AMDSMI
   the file `watts` is what they draw, `code` what every call returns, `set` what setters return (1000
   for those that succeed and change nothing); cap0 and cap1 hold the caps. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { uint64_t cap, standard, dpm, least, most, reserved[3]; } CapInfo;
typedef struct {
    uint64_t socket;
    uint32_t current, average;
    uint64_t gfx, soc, mem;
    uint32_t limit, padding;
    uint64_t reserved[18];
} PowerInfo;

static void beside(char path[4096], const char *what, void *gpu) {
    snprintf(path, 4096, "%s/%s", getenv("FAKE_AMDSMI"), what);
    if (gpu) snprintf(path + strlen(path), 8, "%u", (unsigned)(uintptr_t)gpu - 1);
}

/* At once: a reader never sees half of it. */
static int replace(const char *what, void *gpu, unsigned long long value) {
    char path[4096], fresh[4096];
    FILE *file;
    beside(path, what, gpu);
    snprintf(fresh, sizeof fresh, "%s/fresh-%s-%p-%d", getenv("FAKE_AMDSMI"), what, gpu, getpid());
    file = fopen(fresh, "w");
    if (!file) return 49;
    fprintf(file, "%llu", value);
    fclose(file);
    return rename(fresh, path) ? 49 : 0;
}

static unsigned long long kept(const char *what, void *gpu, unsigned long long otherwise) {
    char path[4096];
    FILE *file;
    unsigned long long value = otherwise;
    beside(path, what, gpu);
    file = fopen(path, "r");
    if (file && fscanf(file, "%llu", &value) != 1) value = otherwise;
    if (file) fclose(file);
    return value;
}

static int code(void) { return (int)kept("code", NULL, 34); }

int amdsmi_init(uint64_t flags) { (void)flags; return code(); }
int amdsmi_shut_down(void) { return 0; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
    if (sockets) sockets[0] = (void *)1;
    *count = 1;
    return 0;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **gpus) {
    (void)socket;
    if (gpus) { gpus[0] = (void *)1; gpus[1] = (void *)2; }
    *count = 2;
    return 0;
}

int amdsmi_get_gpu_device_uuid(void *gpu, unsigned *length, char *uuid) {
    snprintf(uuid, *length, "00ff74a1-0000-1000-80%02x-000000000000", (unsigned)(uintptr_t)gpu);
    return 0;
}

int amdsmi_get_power_info(void *gpu, PowerInfo *info) {
    unsigned watts = (unsigned)kept("watts", NULL, 0) * (unsigned)(uintptr_t)gpu;
    unsigned cap = (unsigned)(kept("cap", gpu, 750000000) / 1000000);
    if (watts > cap) watts = cap; /* as a real one does */
    memset(info, 0, sizeof *info);
    /* The first is of a generation that tells the power now, the second tells a mean. */
    info->current = (uintptr_t)gpu == 1 ? watts : 0xFFFF;
    info->average = (uintptr_t)gpu == 1 ? 0xFFFF : watts;
    return code();
}

/* The second does not tell how busy it is. */
int amdsmi_get_gpu_activity(void *gpu, uint32_t usage[3]) {
    usage[0] = (uintptr_t)gpu == 1 ? 64 : 0xFFFF;
    usage[1] = usage[2] = 0;
    return code();
}

int amdsmi_get_gpu_vram_usage(void *gpu, uint32_t mib[2]) {
    (void)gpu;
    mib[0] = 192 << 10;
    mib[1] = 48 << 10;
    return code();
}

int amdsmi_get_power_cap_info(void *gpu, uint32_t sensor, CapInfo *info) {
    (void)sensor;
    memset(info, 0, sizeof *info);
    info->cap = kept("cap", gpu, 750000000);
    info->standard = info->most = 750000000;
    info->least = 200000000;
    return code();
}

int amdsmi_set_power_cap(void *gpu, uint32_t sensor, uint64_t cap) {
    int set = (int)kept("set", NULL, 0);
    if (sensor || cap < 200000000 || cap > 750000000) return 1;
    if (set) return set == 1000 ? 0 : set;
    return replace("cap", gpu, cap);
}

int amdsmi_status_code_to_string(int status, const char **text) {
    (void)status;
    *text = "status";
    return 0;
}
