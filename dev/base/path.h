// Names of files and directories, as text.
#ifndef BASE_PATH_H
#define BASE_PATH_H

#include <stdbool.h>

// What of a path comes after its last slash; all that comes before it, fresh: "." where there is no
// slash, "/" of "/file".
const char *path_name(const char *path);
char *path_directory(const char *path);

// The path of a name in a directory, and of one next to a file, fresh.
char *path_in(const char *directory, const char *name);
char *path_beside(const char *file, const char *name);

// Whether a name ends so: path_ends_in("x.json", ".json").
bool path_ends_in(const char *path, const char *end);

#endif
