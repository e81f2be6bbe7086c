// What cgroups (version 1 or 2) allow this program: the least of those that it is in, by
// `membership` (/proc/self/cgroup), and of those around them, whose files are below `mount`
// (/sys/fs/cgroup). SIZE_MAX where there is no limit.
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stddef.h>

// Bytes of memory that are left, files in memory not counted.
size_t cgroup_memory(const char *membership, const char *mount);

// Processors: the quota of CPU time for each period, rounded up.
size_t cgroup_processors(const char *membership, const char *mount);

#endif
