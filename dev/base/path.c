#include "path.h"

#include "memory.h"
#include <string.h>

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *path_directory(const char *path) {
    const int length = (int)(path_name(path) - path); // including the slash
    return length ? format_string("%.*s", length > 1 ? length - 1 : 1, path) : copy_string(".");
}

char *path_in(const char *directory, const char *name) {
    return format_string("%s/%s", directory, name);
}

char *path_beside(const char *file, const char *name) {
    return format_string("%.*s%s", (int)(path_name(file) - file), file, name);
}

bool path_ends_in(const char *path, const char *end) {
    const size_t size = strlen(path), length = strlen(end);
    return size >= length && strcmp(path + size - length, end) == 0;
}
