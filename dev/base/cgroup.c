#include "cgroup.h"

#include "file.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Returns whether a list such as "cpu,cpuacct" contains the word.
static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (; *list; list += strcspn(list, ",:"), list += *list != 0)
        if (strcspn(list, ",:") == length && memcmp(list, word, length) == 0) return true;
    return false;
}

// Returns the smallest value of `limit` over the directories of the controller's groups and their
// ancestors.
static size_t least(const char *membership, const char *mount, const char *controller,
                    size_t (*limit)(const char *directory, bool version2)) {
    size_t found = SIZE_MAX;
    char line[4096]; // version 2: "0::/a/b"; version 1: "4:memory:/a/b"
    FILE *file = fopen(membership, "r");
    while (file && fgets(line, sizeof(line), file)) {
        const char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        const bool version2 = !controllers[1];
        if (!version2 && !has_word(controllers + 1, controller)) continue;
        for (char *end = path; end; *end = 0) { // a/b, then a, then the root
            char directory[8192];
            snprintf(directory, sizeof(directory), "%s/%s%s", mount, version2 ? "" : controller,
                     path);
            const size_t here = limit(directory, version2);
            if (here < found) found = here;
            end = strrchr(path, '/');
            if (!end) break;
        }
    }
    if (file) fclose(file);
    return found;
}

static size_t number(const char *directory, const char *name, const char *key) {
    char path[8300];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return file_number(path, key, 1);
}

static size_t memory_left(const char *directory, bool version2) {
    // Cached files, which the kernel drops before it kills a process.
    static const char *const files[][2] = {{"total_active_file ", "total_inactive_file "},
                                           {"active_file ", "inactive_file "}};
    const size_t limit = number(directory, version2 ? "memory.max" : "memory.limit_in_bytes", "");
    size_t used = number(directory, version2 ? "memory.current" : "memory.usage_in_bytes", "");
    if (limit == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        const size_t droppable = number(directory, "memory.stat", files[version2][i]);
        if (droppable != SIZE_MAX) used -= droppable < used ? droppable : used;
    }
    return limit > used ? limit - used : 0;
}

// Version 2: cpu.max holds "25000 100000" (quota and period) or "max 100000". Version 1: two files,
// where -1 means no limit.
static size_t processors(const char *directory, bool version2) {
    char path[8300];
    long long quota = -1, period = -1;
    snprintf(path, sizeof(path), "%s/cpu.max", directory);
    FILE *file = version2 ? fopen(path, "r") : NULL;
    if (file && fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
    if (file) fclose(file);
    if (!version2) {
        const size_t q = number(directory, "cpu.cfs_quota_us", ""),
                     p = number(directory, "cpu.cfs_period_us", "");
        if (q < INT32_MAX && p < INT32_MAX) quota = (long long)q, period = (long long)p;
    }
    return quota > 0 && period > 0 ? (size_t)((quota + period - 1) / period) : SIZE_MAX;
}

size_t cgroup_memory(const char *membership, const char *mount) {
    return least(membership, mount, "memory", memory_left);
}

size_t cgroup_processors(const char *membership, const char *mount) {
    return least(membership, mount, "cpu", processors);
}
