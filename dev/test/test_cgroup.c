// Tests of cgroup.h.
#include "cgroup.h"
#include "file.h"
#include "memory.h"
#include "test.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Writes a number to a file of a cgroup below the test's directory.
static void write_cgroup(const char *directory, const char *name, const char *text) {
    char *path = format_string("%s/%s", test_directory(), directory),
         *file = format_string("%s/%s", path, name);
    directory_create(path);
    FILE *out = fopen(file, "w");
    CHECK(out && fputs(text, out) >= 0);
    if (out) fclose(out);
    free(file);
    free(path);
}

// The least memory left in the group and its ancestors; reclaimable file cache counts as free.
static void test_memory(void) {
    const char *mount = test_directory();
    char *self = copy_string(test_file("second", "0::/a/b\n", 8));
    CHECK(cgroup_memory(self, mount) == SIZE_MAX);
    write_cgroup("a", "memory.max", "max\n");
    write_cgroup("a", "memory.current", "5000\n");
    write_cgroup("a/b", "memory.max", "9000\n");
    write_cgroup("a/b", "memory.current", "4000\n");
    CHECK(cgroup_memory(self, mount) == 5000);
    write_cgroup("a/b", "memory.stat",
                 "anon 100\nfile 3000\ninactive_file 1000\nactive_file 500\n");
    CHECK(cgroup_memory(self, mount) == 6500);
    write_cgroup("a", "memory.max", "6000\n");
    CHECK(cgroup_memory(self, mount) == 1000);
    write_cgroup("a", "memory.max", "4000\n");
    CHECK(cgroup_memory(self, mount) == 0);
    free(self);
    self = copy_string(test_file("first", "5:cpu:/a\n4:memory:/job\n1:name=systemd:/\n", 40));
    write_cgroup("memory", "memory.limit_in_bytes", "9223372036854771712\n");
    write_cgroup("memory", "memory.usage_in_bytes", "100\n");
    write_cgroup("memory/job", "memory.limit_in_bytes", "8000\n");
    write_cgroup("memory/job", "memory.usage_in_bytes", "3000\n");
    write_cgroup("memory/job", "memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    CHECK(cgroup_memory(self, mount) == 5500);
    free(self);
    CHECK(cgroup_memory("/nowhere", mount) == SIZE_MAX);
}

// The smallest quota of the group and its ancestors, in whole processors.
static void test_processors(void) {
    const char *mount = test_directory();
    char *self = copy_string(test_file("second", "0::/x/y\n", 8));
    CHECK(cgroup_processors(self, mount) == SIZE_MAX);
    write_cgroup("x", "cpu.max", "max 100000\n");
    CHECK(cgroup_processors(self, mount) == SIZE_MAX);
    write_cgroup("x/y", "cpu.max", "250000 100000\n");
    CHECK(cgroup_processors(self, mount) == 3);
    write_cgroup("x", "cpu.max", "200000 100000\n");
    CHECK(cgroup_processors(self, mount) == 2);
    write_cgroup("x", "cpu.max", "1000 100000\n");
    CHECK(cgroup_processors(self, mount) == 1);
    free(self);
    const char lines[] = "6:cpuset:/set\n5:cpu,cpuacct:/job\n4:memory:/job\n";
    self = copy_string(test_file("first", lines, sizeof(lines) - 1));
    write_cgroup("cpu", "cpu.cfs_quota_us", "-1\n");
    write_cgroup("cpu", "cpu.cfs_period_us", "100000\n");
    write_cgroup("cpu/set", "cpu.cfs_quota_us", "100000\n");
    write_cgroup("cpu/set", "cpu.cfs_period_us", "100000\n");
    write_cgroup("cpu/job", "cpu.cfs_quota_us", "-1\n");
    write_cgroup("cpu/job", "cpu.cfs_period_us", "100000\n");
    CHECK(cgroup_processors(self, mount) == SIZE_MAX);
    write_cgroup("cpu/job", "cpu.cfs_quota_us", "400000\n");
    CHECK(cgroup_processors(self, mount) == 4);
    write_cgroup("cpu", "cpu.cfs_quota_us", "25000\n");
    CHECK(cgroup_processors(self, mount) == 1);
    free(self);
    CHECK(cgroup_processors("/nowhere", mount) == SIZE_MAX);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"memory", test_memory},
        {"processors", test_processors},
    };
    return test_main(argc, argv, "cgroup", cases, sizeof(cases) / sizeof(*cases));
}
