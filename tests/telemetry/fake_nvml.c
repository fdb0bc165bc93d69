/* A libnvidia-ml.so.1 without GPUs: every value comes from the text file that FAKE_NVML names, one "KEY VALUE..." a
 * line, read again whenever it changes. Keys: init, count, driver, cuda, I.error.FUNCTION, I.lost, I.uuid, I.name,
 * I.NUMBER_NAME, I.process (PID BYTES, any number of times), xid (GPU CODE, each delivered once), pcie_ms. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int ret;
enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15, UNINITIALIZED = 1, NOT_FOUND = 6 };
#define MAX_GPUS 16

static char text[1 << 20];
static struct timespec read_at;
static long long read_size = -1;
static int open_count, delivered;
static int handles[MAX_GPUS];

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat found;
    if (!path || stat(path, &found)) { text[0] = 0; return; }
    if (found.st_size == read_size && found.st_mtim.tv_sec == read_at.tv_sec && found.st_mtim.tv_nsec == read_at.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    fclose(file);
    read_at = found.st_mtim;
    read_size = found.st_size;
}

/* The rest of the line that begins with the key, at or after *from; moves *from behind it. */
static const char *next_line(const char *key, const char **from) {
    size_t length = strlen(key);
    const char *at = *from;
    while (at && *at) {
        const char *end = strchr(at, '\n');
        if (!strncmp(at, key, length) && at[length] == ' ') {
            *from = end ? end + 1 : at + strlen(at);
            return at + length + 1;
        }
        at = end ? end + 1 : NULL;
    }
    return NULL;
}

static const char *value(const char *key) {
    const char *from = text;
    return next_line(key, &from);
}

static long long number(const char *key, long long otherwise) {
    const char *found = value(key);
    return found ? strtoll(found, NULL, 0) : otherwise;
}

static const char *gpu_key(int gpu, const char *name) {
    static char key[128];
    snprintf(key, sizeof key, "%d.%s", gpu, name);
    return key;
}

static long long gpu_number(int gpu, const char *name, long long otherwise) { return number(gpu_key(gpu, name), otherwise); }

static void copy_word(char *out, unsigned length, const char *found, const char *otherwise) {
    const char *from = found ? found : otherwise;
    unsigned n = 0;
    while (from[n] && from[n] != '\n' && n + 1 < length) { out[n] = from[n]; n++; }
    out[n] = 0;
}

static ret fault(int gpu, const char *function) {
    char name[128];
    load();
    if (!open_count) return UNINITIALIZED;
    int session = (int)number("session", 0);
    if (session) return session;
    if (gpu < 0) return OK;
    if (gpu_number(gpu, "lost", 0)) return LOST;
    snprintf(name, sizeof name, "error.%s", function);
    return (ret)gpu_number(gpu, name, OK);
}

#define GPU(handle) ((int)((int *)(handle) - handles))
#define ENTER(handle) do { ret code = fault(GPU(handle), __func__); if (code) return code; } while (0)

ret nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    ret code = (ret)number("init", OK);
    if (!code) open_count++;
    return code;
}
ret nvmlShutdown(void) { if (open_count) open_count--; return OK; }
const char *nvmlErrorString(ret code) {
    static char words[32];
    snprintf(words, sizeof words, "fake error %d", code);
    return words;
}
ret nvmlSystemGetDriverVersion(char *out, unsigned length) {
    ret code = fault(-1, __func__);
    if (!code) copy_word(out, length, value("driver"), "580.0.fake");
    return code;
}
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = (int)number("cuda", 13000); return fault(-1, __func__); }
ret nvmlDeviceGetCount_v2(unsigned *out) { load(); *out = (unsigned)number("count", 0); return OK; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    load();
    if (index >= MAX_GPUS || index >= (unsigned)number("count", 0)) return 2;
    *out = &handles[index];
    return fault((int)index, __func__);
}
ret nvmlDeviceGetUUID(void *gpu, char *out, unsigned length) {
    ENTER(gpu);
    char made[64];
    snprintf(made, sizeof made, "GPU-fake-%d", GPU(gpu));
    copy_word(out, length, value(gpu_key(GPU(gpu), "uuid")), made);
    return OK;
}
ret nvmlDeviceGetName(void *gpu, char *out, unsigned length) {
    ENTER(gpu);
    copy_word(out, length, value(gpu_key(GPU(gpu), "name")), "Fake H200");
    return OK;
}
ret nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *out) {
    ENTER(gpu);
    out[0] = gpu_number(GPU(gpu), "mem_total", 150754820096LL);
    out[2] = gpu_number(GPU(gpu), "mem_used", 0);
    out[1] = out[0] - out[2];
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
ret nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *out) {
    ENTER(gpu);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", GPU(gpu) + 1);
    return OK;
}
ret nvmlDeviceGetMigMode(void *gpu, unsigned *now, unsigned *next) {
    ENTER(gpu);
    *now = *next = (unsigned)gpu_number(GPU(gpu), "mig", 0);
    return OK;
}
ret nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *out) { ENTER(gpu); *out = 0; return OK; }
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
ret nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *out) {
    ENTER(gpu);
    char key[64];
    snprintf(key, sizeof key, "%d.process", GPU(gpu));
    const char *from = text, *line;
    unsigned found = 0;
    while ((line = next_line(key, &from))) {
        char *end;
        unsigned pid = (unsigned)strtoul(line, &end, 10);
        if (out && found < *count) out[found] = (struct process){pid, strtoull(end, NULL, 10), 0, 0};
        found++;
    }
    ret code = found > *count || (found && !out) ? INSUFFICIENT_SIZE : OK;
    *count = found;
    return code;
}
ret nvmlDeviceGetUtilizationRates(void *gpu, unsigned *out) {
    ENTER(gpu);
    out[0] = (unsigned)gpu_number(GPU(gpu), "util", 0);
    out[1] = (unsigned)gpu_number(GPU(gpu), "util_mem", 0);
    return OK;
}
ret nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *out) {
    ENTER(gpu);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + now.tv_nsec / 1e9;
    *out = gpu_number(GPU(gpu), "energy_mj", (long long)(seconds * gpu_number(GPU(gpu), "power_mw", 120000)));
    return OK;
}
ret nvmlDeviceGetPowerUsage(void *gpu, unsigned *out) { ENTER(gpu); *out = (unsigned)gpu_number(GPU(gpu), "power_mw", 120000); return OK; }
ret nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *out) {
    ENTER(gpu);
    *out = (unsigned)gpu_number(GPU(gpu), kind == 2 ? "mem_mhz" : "sm_mhz", kind == 2 ? 3201 : 1980);
    return OK;
}
struct temperature { unsigned version; int sensor; int value; };
ret nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *out) { ENTER(gpu); (void)sensor; *out = (unsigned)gpu_number(GPU(gpu), "temp_c", 40); return OK; }
ret nvmlDeviceGetPerformanceState(void *gpu, int *out) { ENTER(gpu); *out = (int)gpu_number(GPU(gpu), "pstate", 0); return OK; }
ret nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *out) { ENTER(gpu); *out = gpu_number(GPU(gpu), "reasons", 0); return OK; }
ret nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, unsigned long long *out) {
    ENTER(gpu);
    (void)kind;
    *out = gpu_number(GPU(gpu), counter ? "ecc_aggregate" : "ecc_volatile", 0);
    return OK;
}
ret nvmlDeviceGetPcieThroughput(void *gpu, int counter, unsigned *out) {
    ENTER(gpu);
    usleep((useconds_t)(1000 * number("pcie_ms", 0)));
    *out = (unsigned)gpu_number(GPU(gpu), counter ? "pcie_rx_kbs" : "pcie_tx_kbs", 0);
    return OK;
}
struct field { unsigned id, scope; long long timestamp, latency; int type; ret code; unsigned long long value; };
ret nvmlDeviceGetFieldValues(void *gpu, int count, struct field *fields) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field.%u", fields[i].id);
        long long found = gpu_number(GPU(gpu), name, -1);
        fields[i].code = found < 0 ? NOT_SUPPORTED : OK;
        fields[i].type = 3;
        fields[i].value = (unsigned long long)found;
    }
    return OK;
}
ret nvmlEventSetCreate(void **out) { *out = text; return fault(-1, __func__); }
ret nvmlEventSetFree(void *set) { (void)set; return OK; }
ret nvmlDeviceRegisterEvents(void *gpu, unsigned long long kinds, void *set) { ENTER(gpu); (void)kinds; (void)set; return OK; }
struct event { void *gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
ret nvmlEventSetWait_v2(void *set, struct event *out, unsigned wait_ms) {
    (void)set; (void)wait_ms;
    ret code = fault(-1, __func__);
    if (code) return code;
    const char *from = text, *line;
    for (int at = 0; (line = next_line("xid", &from)); at++) {
        if (at < delivered) continue;
        char *end;
        long gpu = strtol(line, &end, 10);
        *out = (struct event){gpu >= 0 ? (void *)&handles[gpu] : NULL, 8, strtoull(end, NULL, 10), 0, 0};
        delivered++;
        return OK;
    }
    return TIMEOUT;
}
