// The limits of this process's cgroups (version 1 or 2): the lowest limit of its own groups, listed
// in `membership` (/proc/self/cgroup), and of their ancestors. The groups' files are below `mount`
// (/sys/fs/cgroup). SIZE_MAX means no limit.
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stddef.h>

// Returns the bytes of memory that are left. Cached files do not count as used.
size_t cgroup_memory(const char *membership, const char *mount);

// Returns the number of processors: the quota of CPU time per period, rounded up.
size_t cgroup_processors(const char *membership, const char *mount);

#endif
